"""Tests that are Python scripts (tests/python_cases.py), run by Bazel: cached while nothing changes that they declare."""

# The programs, as a user has them.
PROGRAMS = [
    "//cli:tercio",
    "//coordinator:tercio-coordinator",
    "//worker/agent:tercio-agent",
    "//worker/trainer:tercio-trainer",
]

def tercio_script_test(name, script = None, data = [], tags = [], **kwargs):
    """Runs `name`.py, or another script, on a tree of `data`.

    Args:
      name: of the test.
      script: the script, name.py by default.
      data: every file that the script reads or runs; the tree holds nothing else (tests/run_script.sh).
      tags: more tags.
      **kwargs: of sh_test.
    """
    script = script or name + ".py"
    native.sh_test(
        name = name,
        srcs = ["//tests:run_script.sh"],
        args = ["$(rootpath %s)" % script],
        data = [
            script,
            "//deploy:environment.sh",
            "//tests:python_cases.py",
        ] + data,
        # Scripts make networks, file systems and users, which a sandbox forbids.
        tags = tags + ["no-sandbox"],
        **kwargs
    )
