"""A run is reported as it was: no failure, skip or missing result is lost."""

import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import python_cases  # noqa: E402
import summary  # noqa: E402

GOOGLETEST = """<?xml version="1.0"?><testsuites><testsuite name="A">
<testcase name="Good" status="run" result="completed" classname="A"/>
<testcase name="Bad" status="run" result="completed" classname="A"><failure message="1 is not 2"/></testcase>
<testcase name="Left" status="run" result="skipped" classname="A"><skipped message="a.cc:3&#x0A;no GPU"/></testcase>
</testsuite></testsuites>"""
ALL_GOOD = '<testsuites><testsuite><testcase name="x" status="run"/></testsuite></testsuites>'


def events(status, xml_path=None, label="//a:b_test", seconds=0, cached=False):
    outputs = [{"name": "test.xml", "uri": "file://" + xml_path}] if xml_path else []
    return [{"id": {"testResult": {"label": label}}, "testResult": {"testActionOutput": outputs, "testAttemptDurationMillis": str(1000 * seconds), "cachedLocally": cached}},
            {"id": {"testSummary": {"label": label}}, "testSummary": {"overallStatus": status}}]


class SummaryTest(unittest.TestCase):

    def run_report(self, status, xml=None, code=0, checks=()):
        with tempfile.TemporaryDirectory() as folder:
            path = None
            if xml:
                path = os.path.join(folder, "test.xml")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(xml)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                counts = summary.report(events(status, path) if status else [], list(checks), code)
        return counts, out.getvalue()

    def test_cases_are_counted_and_skips_have_their_reason(self):
        counts, out = self.run_report("FAILED", GOOGLETEST, 3)
        self.assertEqual(counts, {"passed": 1, "failed": 1, "skipped": 1})
        self.assertIn("skipped: //a:b_test A.Left: a.cc:3 no GPU", out)
        self.assertIn("failed: //a:b_test A.Bad: 1 is not 2", out)
        self.assertTrue(out.endswith("1 passed, 1 failed, 1 skipped\n"))

    def test_a_target_that_died_is_a_failure_though_its_cases_passed(self):
        for status in ("FAILED", "TIMEOUT", "NO_STATUS", "FAILED_TO_BUILD"):
            self.assertEqual(self.run_report(status, ALL_GOOD, 3)[0]["failed"], 1, status)

    def test_a_target_without_results_is_a_failure(self):
        self.assertEqual(self.run_report("PASSED")[0]["failed"], 1)

    def test_a_flaky_target_is_a_failure(self):
        self.assertEqual(self.run_report("FLAKY", ALL_GOOD)[0]["failed"], 1)

    def test_bazel_that_ended_badly_is_a_failure_and_no_test_is_not(self):
        self.assertEqual(self.run_report(None, code=1)[0]["failed"], 1)
        self.assertEqual(self.run_report(None, code=4)[0]["failed"], 0)

    def test_the_ten_slowest_of_what_ran_are_listed(self):
        happened = [event for i in range(12) for event in events("PASSED", label=f"//a:t{i}_test", seconds=i)]
        happened += events("PASSED", label="//a:unchanged_test", seconds=99, cached=True)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            summary.report(happened, [], 0)
        slowest = [line for line in out.getvalue().splitlines() if line.startswith("slowest: ")]
        self.assertEqual(slowest, [f"slowest: {i}.0 s //a:t{i}_test" for i in range(11, 1, -1)])

    def test_cases_of_scripts_are_reported_as_junit(self):
        cases = [{"name": "A.good", "outcome": "passed", "reason": "", "seconds": 1},
                 {"name": "A.bad", "outcome": "failed", "reason": "1 <is> \x1bnot\n2", "seconds": 0.5},
                 {"name": "A.left", "outcome": "skipped", "reason": "no GPU", "seconds": 0}]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "test.xml")
            python_cases.write_junit(cases, path)
            self.assertEqual(list(summary.cases_of(path)),
                             [("A.good", "passed", ""), ("A.bad", "failed", "1 <is> not 2"), ("A.left", "skipped", "no GPU")])

    def test_source_checks_are_counted(self):
        check = {"name": "sources: words", "outcome": "failed", "reason": "2 faults"}
        counts, out = self.run_report("PASSED", ALL_GOOD, checks=[check])
        self.assertEqual(counts, {"passed": 1, "failed": 1, "skipped": 0})
        self.assertIn("failed: sources: words: 2 faults", out)


if __name__ == "__main__":
    python_cases.main()
