"""Every tool of compute-sanitizer runs on every test of kernels, and what it finds is a failure of that check alone."""

import io
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import python_cases  # noqa: E402
import sanitizer  # noqa: E402
from checks import Part  # noqa: E402
from tree import Tree  # noqa: E402

# Finds a race in the second test.
FAKE = """#!/bin/bash
[ "$1 $3 $4" = "--tool --error-exitcode 86" ] || exit 3
case "$2 $5" in "racecheck "*/b_test) echo "========= COMPUTE-SANITIZER"; echo "========= Error: Race"; exit 86 ;; esac
exec "$5"
"""


class SanitizerTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        for name in ("a_test", "b_test"):
            self.program("tests", name, "#!/bin/bash\nexit 0\n")
        self.log = io.StringIO()

    def program(self, folder, name, text):
        os.makedirs(os.path.join(self.folder, folder), exist_ok=True)
        path = os.path.join(self.folder, folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def outcomes(self):
        tree = Tree(self.folder, [], self.folder, self.log)
        tree.environment = {"PATH": "/usr/bin:/bin", "CUDA_HOME": os.path.join(self.folder, "cuda")}
        part = Part("sanitizer", 60)
        part.run(sanitizer.run, tree, None, None)
        return {check["name"]: (check["outcome"], check["reason"]) for check in part.checks}

    def test_a_finding_fails_its_check_alone(self):
        self.program("cuda/bin", "compute-sanitizer", FAKE)
        outcomes = self.outcomes()
        self.assertEqual(len(outcomes), 1 + 2 * len(sanitizer.TOOLS), outcomes)
        failed = {name: reason for name, (outcome, reason) in outcomes.items() if outcome != "passed"}
        self.assertEqual(list(failed), ["b_test, racecheck"], outcomes)
        self.assertIn("Error: Race", failed["b_test, racecheck"])
        self.assertIn("Error: Race", self.log.getvalue())

    def test_failing_cases_are_a_failure(self):
        self.program("cuda/bin", "compute-sanitizer", FAKE)
        self.program("tests", "a_test", "#!/bin/bash\nexit 1\n")
        self.assertEqual(self.outcomes()["a_test, memcheck"][0], "failed")

    @unittest.skipIf(sanitizer.find({"PATH": "/usr/bin:/bin"}), "this machine has compute-sanitizer")
    def test_a_machine_without_it_says_where_it_was_looked_for(self):
        outcomes = self.outcomes()
        self.assertEqual(list(outcomes), ["compute-sanitizer"])
        self.assertIn("CUDA_HOME", outcomes["compute-sanitizer"][1])


if __name__ == "__main__":
    python_cases.main()
