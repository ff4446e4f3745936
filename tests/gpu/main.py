"""Runs all parts, whatever becomes of each, and writes gpu.json, gpu.md and gpu.log. tests/gpu.sh calls it and says how."""

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time

import architectures
import curves
import kernels
import layouts
import operations
import recovery
import report
import sanitizer
import speed
from checks import Failure, Part
from jobs import Jobs
from machine import Driver, library_folders, library_versions, missing_libraries
from tree import Tree

# name -> (what runs, seconds that it may take). They keep a part that hangs from taking all, and are several times what a part should take:
# a first run on a machine compiles cuDNN's plans (1 to 3 s for each shape) and reads gigabytes of libraries.
PARTS = {
    "operations": (operations.run, 300),
    "curves": (curves.run, 240),
    "architectures": (architectures.run, 240),
    "fp8": (architectures.fp8, 60),
    "repeat": (recovery.repeat, 90),
    "host": (layouts.host, 100),
    "nccl": (layouts.nccl, 90),
    "memory": (recovery.memory, 60),
    "kill": (recovery.kill, 100),
    "kernels": (kernels.run, 60),
    "speed": (speed.run, 300),
}
_START_SECONDS = 60
# These run only where --only names them, and have their own limit.
OPTIONAL_PARTS = {"sanitizer": (sanitizer.run, 7200)}
KNOWN = {**PARTS, **OPTIONAL_PARTS}


def first_check(part, tree, machine):
    """What all the rest stands on. False: nothing else can run."""
    with part.check("GPUs, driver and libraries") as numbers:
        numbers.update(gpus=len(machine.gpus), driver=machine.version)
        trainer = tree.program("tercio-trainer-cuda")
        missing = missing_libraries(trainer, tree.environment)
        if missing:
            raise Failure(f"tercio-trainer-cuda does not find {', '.join(missing)}: take the tarball with NVIDIA's libraries, or name "
                          "their folder in LD_LIBRARY_PATH or CUDA_HOME, or run with a python3 that has their wheels")
        if not machine.gpus:
            raise Failure("NVIDIA's driver (libnvidia-ml.so.1) shows no GPU")
        tree.tercio(part, "version")
    return part.checks[-1]["outcome"] == "passed"


def describe(options, tree, machine):
    try:
        with open(os.path.join(tree.root, "VERSION"), encoding="utf-8") as file:
            version = file.read().splitlines()
    except OSError:
        version = []
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(["tests/gpu.sh", *sys.argv[1:]]),
        "version": version,
        "quick": options.quick,
        "gpus": [{"name": gpu["name"], "memory_bytes": gpu["memory_bytes"]} for gpu in machine.gpus],
        "driver": machine.version,
        "libraries": library_versions([os.path.join(tree.root, "lib"), *library_folders()]),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
    }


def main():
    parser = argparse.ArgumentParser(prog="tests/gpu.sh")
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--tree", default=os.path.dirname(os.path.dirname(here)), help="the unpacked tarball")
    parser.add_argument("--output", default="gpu", help="folder of gpu.json, gpu.md and gpu.log")
    parser.add_argument("--quick", action="store_true", help="tiny models")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between: " + " ".join(KNOWN))
    parser.add_argument("--seconds", type=float, default=_START_SECONDS + sum(seconds for _, seconds in PARTS.values()),
                        help="limit of all parts together (default: %(default)s)")
    options = parser.parse_args()
    chosen = options.only.split(",")
    unknown = [name for name in chosen if name not in KNOWN]
    if unknown:
        parser.error(f"--only: no part {unknown[0]}; there are: {' '.join(KNOWN)}")
    os.makedirs(options.output, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix="tercio-gpu.")
    begin = time.monotonic()
    try:
        with open(os.path.join(options.output, "gpu.log"), "w", encoding="utf-8") as log:
            machine = Driver(library_folders())
            tree = Tree(os.path.abspath(options.tree), library_folders(), scratch, log)
            options.jobs = Jobs(options.quick, scratch)
            checks = []
            start = Part("start", _START_SECONDS)
            able = first_check(start, tree, machine)
            checks += start.checks
            for name in chosen if able else []:
                run, seconds = KNOWN[name]
                left = begin + options.seconds - time.monotonic()
                part = Part(name, seconds if name in OPTIONAL_PARTS else max(0, min(seconds, left)))
                part.run(run, tree, machine, options)
                checks += part.checks
            facts = describe(options, tree, machine)
        facts["seconds"] = round(time.monotonic() - begin, 1)
        return report.write(options.output, facts, checks)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
