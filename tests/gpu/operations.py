"""Kernels, devices and libraries against the CPU and double references: the GoogleTest programs of the tarball."""

import os
import xml.etree.ElementTree as ElementTree

from checks import require


def _failed_cases(path):
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        failure = case.find("failure")
        if failure is not None:
            yield f"{case.get('classname')}.{case.get('name')}: {' '.join(failure.get('message', '').split())[:200]}"


def slowest_case(root):
    """The case of a program that took longest, and its seconds."""
    cases = [(float(case.get("time", 0)), f"{case.get('classname')}.{case.get('name')}") for case in root.iter("testcase")]
    return max(cases, default=(0.0, ""))


def programs(tree):
    folder = os.path.join(tree.root, "tests")
    found = sorted(name for name in os.listdir(folder) if name.endswith("_test"))
    require(found, f"no programs *_test in {folder}: the tarball was made on a machine without CUDA")
    return found


def run(part, tree, machine, options):
    for name in programs(tree):
        with part.check(name) as numbers:
            results = os.path.join(tree.folder("results"), "results.xml")
            code, out, _ = tree.run(part, [tree.program(name, "tests"), f"--gtest_output=xml:{results}"], codes=(0, 1))
            require(os.path.exists(results), f"it ended with {code} and wrote no results: {out.strip()[-300:]}")
            root = ElementTree.parse(results).getroot()
            slowest, name_of_slowest = slowest_case(root)
            numbers.update(cases=int(root.get("tests")), failed=int(root.get("failures")), slowest=name_of_slowest, slowest_seconds=slowest)
            failed = list(_failed_cases(results))
            if code != 0:
                tree.log.write(out)
            require(numbers["cases"] > 0, "it has no cases")
            require(code == 0 and not failed, f"{len(failed)} of {numbers['cases']} cases failed; {'; '.join(failed[:3])}")
