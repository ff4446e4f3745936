"""Runs the unittest cases of a script and reports each of them: to Bazel, where XML_OUTPUT_FILE is set, as JUnit does, and for
tests/summary.py, as lines of JSON appended to --results FILE."""

import json
import os
import sys
import time
import unittest
import xml.etree.ElementTree as ElementTree


class _Recorder(unittest.TextTestResult):

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.cases = []
        self.began = time.monotonic()

    def startTest(self, test):
        self.began = time.monotonic()
        super().startTest(test)

    def _add(self, test, outcome, reason=""):
        name = test.id().replace("__main__.", "")
        self.cases.append({"name": name, "outcome": outcome, "reason": reason, "seconds": time.monotonic() - self.began})

    def addSuccess(self, test):
        super().addSuccess(test)
        self._add(test, "passed")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._add(test, "failed", str(err[1]).strip().splitlines()[0])

    def addError(self, test, err):
        super().addError(test, err)
        self._add(test, "failed", repr(err[1]))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._add(test, "skipped", reason)


def write_junit(cases, path):
    suite = ElementTree.Element("testsuite", name=os.path.basename(sys.argv[0]), tests=str(len(cases)))
    for case in cases:
        entry = ElementTree.SubElement(suite, "testcase", name=case["name"], time=f"{case['seconds']:.3f}")
        if case["outcome"] != "passed":
            tag = {"failed": "failure", "skipped": "skipped"}[case["outcome"]]
            ElementTree.SubElement(entry, tag, message="".join(c for c in case["reason"] if c.isprintable() or c in "\n\t"))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def main():
    results = None
    if "--results" in sys.argv:
        at = sys.argv.index("--results")
        results = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    outcome = unittest.TextTestRunner(resultclass=_Recorder, verbosity=0).run(suite)
    if results:
        with open(results, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(case) + "\n" for case in outcome.cases)
    if "XML_OUTPUT_FILE" in os.environ:
        write_junit(outcome.cases, os.environ["XML_OUTPUT_FILE"])
    sys.exit(0 if outcome.wasSuccessful() else 1)
