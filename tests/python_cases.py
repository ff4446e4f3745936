"""Runs the unittest cases of a script and appends their outcomes, for tests/summary.py, to --results FILE."""

import json
import sys
import unittest


class _Recorder(unittest.TextTestResult):

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.cases = []

    def _add(self, test, outcome, reason=""):
        name = test.id().replace("__main__.", "")
        self.cases.append({"name": name, "outcome": outcome, "reason": reason})

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
    sys.exit(0 if outcome.wasSuccessful() else 1)
