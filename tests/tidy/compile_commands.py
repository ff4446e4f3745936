"""Writes compile_commands.json (ignored by git) for editors and clang-tidy, from what Bazel would run.

    python3 tests/tidy/compile_commands.py
"""

import json
import os
import subprocess

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))


def main():
    query = "mnemonic('CppCompile', //... - //bazel/...)"
    out = subprocess.run(["bazel", "aquery", "--output=jsonproto", query], cwd=ROOT, check=True,
                         capture_output=True, text=True).stdout
    execution_root = subprocess.run(["bazel", "info", "execution_root"], cwd=ROOT, check=True,
                                    capture_output=True, text=True).stdout.strip()
    commands = {}
    for action in json.loads(out)["actions"]:
        arguments = action["arguments"]
        if "-c" not in arguments:
            continue
        source = arguments[arguments.index("-c") + 1]
        if not os.path.exists(os.path.join(ROOT, source)):
            continue  # generated
        kept = [a for a in arguments if not a.startswith("-fno-canonical-system-headers")]
        commands[source] = {"directory": execution_root, "file": os.path.join(ROOT, source),
                            "arguments": kept}
    with open(os.path.join(ROOT, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(sorted(commands.values(), key=lambda c: c["file"]), file, indent=1)
    print(f"compile_commands.json: {len(commands)} files")


if __name__ == "__main__":
    main()
