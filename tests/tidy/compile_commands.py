"""Writes compile_commands.json (ignored by git) for editors and clang-tidy, from what Bazel would run.

    python3 tests/tidy/compile_commands.py

Generated headers (*.pb.h) and units are found after a `bazel build //...`.
"""

import json
import os
import re
import subprocess

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
# Clang does not know these, or warns of them.
DROPPED = ("-D__", "-fno-canonical-system-headers", "-Wno-free-nonheap-object", "-Werror")


def bazel(*arguments):
    return subprocess.run(["bazel", arguments[0], "--noshow_progress", *arguments[1:]], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def sources_of(output, unit):
    """The project's files in a unit (bazel/cc.bzl)."""
    with open(os.path.join(output, unit), encoding="utf-8") as file:
        return re.findall(r'^#line 1 "(.*)"$', file.read(), re.M)


def main():
    actions = json.loads(bazel("aquery", "--output=jsonproto", "mnemonic('CppCompile', //...)"))["actions"]
    output = os.path.dirname(bazel("info", "output_path").strip())
    commands = {}
    for action in actions:
        arguments = action["arguments"]
        if "-c" not in arguments:
            continue
        compiled = arguments[arguments.index("-c") + 1]
        for source in sources_of(output, compiled) if compiled.endswith("_unit.cc") else [compiled]:
            absolute = os.path.join(ROOT, source)
            if not os.path.exists(absolute):
                continue  # generated
            kept = [absolute if a == compiled else os.path.join(output, a) if a.startswith(("bazel-out/", "external/")) else a
                    for a in arguments if not a.startswith(DROPPED)]
            commands[source] = {"directory": ROOT, "file": absolute, "arguments": kept}
    with open(os.path.join(ROOT, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(sorted(commands.values(), key=lambda c: c["file"]), file, indent=1)
    print(f"compile_commands.json: {len(commands)} files")


if __name__ == "__main__":
    main()
