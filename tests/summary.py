"""Reports a test run: each target, the slowest of those that ran, each failed or skipped case with its reason, and the counts.

    python3 tests/summary.py --events FILE --checks FILE --bazel_code N

--events is Bazel's build event file (JSON lines), so that only targets of this run are counted; --checks has
one JSON line {name, outcome, reason} per source check.
"""

import argparse
import json
import os
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

SLOWEST = 10


def read_json_lines(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def targets_of(events):
    """label -> {"status", "seconds", "cached", "files": [test.xml]} of every test that was asked for."""
    targets = {}
    for event in events:
        identity = event.get("id", {})
        if "testSummary" in identity:
            entry = targets.setdefault(identity["testSummary"]["label"], new_target())
            entry["status"] = event.get("testSummary", {}).get("overallStatus", "NO_STATUS")
            if "aborted" in event:
                entry["status"] = "NO_STATUS"
        elif "testResult" in identity:
            entry = targets.setdefault(identity["testResult"]["label"], new_target())
            result = event.get("testResult", {})
            entry["cached"] = bool(result.get("cachedLocally"))
            entry["seconds"] += int(result.get("testAttemptDurationMillis", 0)) / 1000
            entry["files"] += [urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
                               for output in result.get("testActionOutput", [])
                               if output.get("name") == "test.xml" and "uri" in output]
        elif "targetConfigured" in identity and \
                event.get("configured", {}).get("targetKind", "").endswith("_test rule"):
            targets.setdefault(identity["targetConfigured"]["label"], new_target())
    return targets


def new_target():
    return {"status": "NO_STATUS", "seconds": 0.0, "cached": False, "files": []}


def cases_of(path):
    """(name, outcome, reason) of each case in one test.xml, of GoogleTest or of Bazel."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        skipped = case.find("skipped")
        if failure is not None:
            yield name, "failed", first_lines(failure.get("message") or failure.text or "")
        elif skipped is not None or case.get("result") == "skipped":
            text = "" if skipped is None else skipped.get("message") or skipped.text or ""
            yield name, "skipped", first_lines(text)
        elif case.get("status") == "notrun" or case.get("result") == "suppressed":
            yield name, "skipped", "disabled in the source"
        else:
            yield name, "passed", ""


def first_lines(text):
    return " ".join(line.strip() for line in text.strip().splitlines()[:6])


def outcomes_of(label, target):
    """The cases of one target; never empty, and with a failure whenever Bazel saw one."""
    cases = []
    for path in target["files"]:
        try:
            cases += list(cases_of(path))
        except (OSError, ElementTree.ParseError) as error:
            cases.append((path, "failed", f"the results cannot be read: {error}"))
    good = target["status"] in ("PASSED", "FLAKY")
    if not good and not any(outcome == "failed" for _, outcome, _ in cases):
        cases.append((label, "failed", f"Bazel says {target['status']}"))
    if target["status"] == "FLAKY":
        cases.append((label, "failed", "flaky: failed at first, passed when repeated"))
    if not cases:
        cases.append((label, "failed", "no results were written"))
    return cases


def report(events, checks, bazel_code):
    """Prints everything; returns the counts."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    details = []
    for check in checks:
        counts[check["outcome"]] += 1
        print(f"{check['outcome']:8}{check['name']}")
        if check["outcome"] != "passed":
            details.append(f"{check['outcome']}: {check['name']}: {check['reason']}")
    targets = targets_of(events)
    for label, target in sorted(targets.items()):
        cases = outcomes_of(label, target)
        here = {key: sum(outcome == key for _, outcome, _ in cases) for key in counts}
        for key in counts:
            counts[key] += here[key]
        word = "failed" if here["failed"] else "skipped" if not here["passed"] else "passed"
        when = "unchanged" if target["cached"] else f"{target['seconds']:.1f} s"
        parts = ", ".join(f"{here[key]} {key}" for key in counts if here[key])
        print(f"{word:8}{label} ({parts}, {when})")
        details += [f"{outcome}: {label} {name}: {reason}" for name, outcome, reason in cases
                    if outcome != "passed"]
    if bazel_code not in (0, 4) and counts["failed"] == 0:  # 4: there was no test to run
        counts["failed"] += 1
        details.append(f"failed: bazel test ended with code {bazel_code}")
    print_slowest(targets)
    print("\n".join(details))
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return counts


def print_slowest(targets):
    """The ten targets of this run that took longest; those that were unchanged took no time."""
    ran = sorted(((target["seconds"], label) for label, target in targets.items() if not target["cached"]), reverse=True)
    for seconds, label in ran[:SLOWEST]:
        print(f"slowest: {seconds:.1f} s {label}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", required=True)
    parser.add_argument("--checks", required=True)
    parser.add_argument("--bazel_code", type=int, required=True)
    options = parser.parse_args()
    counts = report(read_json_lines(options.events), read_json_lines(options.checks), options.bazel_code)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
