"""The tests of kernels under NVIDIA's compute-sanitizer: accesses outside of memory, races for shared memory, barriers that not all threads reach.
Takes long, and runs only where it is asked for (--only sanitizer)."""

import os
import shutil

import operations
from checks import require

# initcheck is not among them: libraries read what they do not use.
TOOLS = ("memcheck", "racecheck", "synccheck")
_ERRORS = 86  # the exit code that stands for a finding, which GoogleTest never has


def find(environment):
    """compute-sanitizer, or None."""
    homes = [environment.get("CUDA_HOME"), "/usr/local/cuda"]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(
        [environment.get("PATH", "")] + [os.path.join(home, "bin") for home in homes if home]))


def run(part, tree, machine, options):
    sanitizer = find(tree.environment)
    with part.check("compute-sanitizer"):
        require(sanitizer, "compute-sanitizer is neither on PATH nor in bin/ of CUDA_HOME or /usr/local/cuda: install the CUDA toolkit")
    if not sanitizer:
        return
    for tool in TOOLS:
        for name in operations.programs(tree):
            with part.check(f"{name}, {tool}"):
                code, out, _ = tree.run(part, [sanitizer, "--tool", tool, "--error-exitcode", str(_ERRORS), tree.program(name, "tests")],
                                        codes=(0, 1, _ERRORS))
                if code != 0:
                    tree.log.write(out)
                found = [line for line in out.splitlines() if line.startswith("=========")]
                require(code != _ERRORS, f"{tool} found faults, which gpu.log has: {' '.join(found[1:3])}")
                require(code == 0, "cases of the test failed, which gpu.log has")
