"""Counts the cases in Bazel's test logs; prints failures, each skip with its reason, and the closing line."""

import os
import sys
import xml.etree.ElementTree as ElementTree


def cases_of(path):
    """(name, outcome, reason) of each case in one test.xml."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}"
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        skipped = case.find("skipped")
        if failure is not None:
            yield name, "failed", failure.get("message", "")
        elif skipped is not None:
            yield name, "skipped", (skipped.get("message") or skipped.text or "").strip()
        else:
            yield name, "passed", ""


def main():
    logs, sources, tests = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    counts["failed" if sources else "passed"] += 1
    for folder, _, files in sorted(os.walk(logs)):
        if "test.xml" not in files:
            continue
        for name, outcome, reason in cases_of(os.path.join(folder, "test.xml")):
            counts[outcome] += 1
            if outcome != "passed":
                print(f"{outcome}: {os.path.relpath(folder, logs)} {name}: {reason}")
    if tests not in (0, 4) and counts["failed"] == 0:
        counts["failed"] += 1
        print(f"failed: bazel test ended with code {tests}")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    sys.exit(1 if counts["failed"] else 0)


main()
