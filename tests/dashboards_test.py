#!/usr/bin/env python3
"""Dashboards, rules and what they refer to, without running anything of Tercio: files are what their script writes, panels say
what they show, metrics and labels exist, alerts have tests and a section in the runbook.

    python3 tests/dashboards_test.py [--results FILE]
"""

import os
import re
import subprocess
import sys
import unittest

import python_cases

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "dashboards"))
import queries  # noqa: E402

PROMETHEUS = os.path.join(ROOT, "deploy", "prometheus")
# Those of Grafana's that are used here.
UNITS = {"none", "short", "percentunit", "s", "bytes", "Bps", "reqps", "watt", "celsius", "hertz"}
# Not ours: Prometheus' own.
FOREIGN = {"up", "ALERTS"}
FOREIGN_LABELS = {"job", "instance", "node", "le", "__name__", "alertname", "alertstate"}


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def documented():
    """Name of each metric -> its labels, with those of histograms' series."""
    labels = {}
    for name, kind, names in re.findall(r"^\| `(\w+)` \| (\w+)[^|]*\|[^|]*\|([^|]*)\|", read("docs", "metrics.md"), re.M):
        found = set(re.findall(r"`(\w+)`", names))
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            labels[name + suffix] = found
    return labels


def rules():
    """(record or alert, its lines) of the files."""
    found = []
    for name in ("recording.yml", "alerts.yml"):
        text = read("deploy", "prometheus", "rules", name)
        for block in re.split(r"^      - (?=record|alert)", text, flags=re.M)[1:]:
            # A comment between two rules is of the second.
            found.append((re.match(r"\w+: (\S+)", block).group(1), re.sub(r"^\s*#.*$", "", block, flags=re.M)))
    return found


def expression_of(block):
    return re.search(r"expr: (?:\|\n)?(.*?)(?=\n        \w+:|\Z)", block, re.S).group(1)


def anchors(text):
    """As GitHub makes them of headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.M)}


class Expressions(unittest.TestCase):

    def check(self, where, expression):
        known = documented()
        recorded = {name for name, _ in rules() if ":" in name}
        for name, selector in re.findall(r"([a-zA-Z_:][\w:]*)(\{[^}]*\})?", re.sub(r'"[^"]*"', '""', expression)):
            if not name.startswith(("tercio", "process_")):
                continue
            self.assertTrue(name in known or name in recorded or name in FOREIGN, f"{where}: there is no metric {name}")
            for label in re.findall(r"(\w+)\s*[=!]", selector):
                if name in known:
                    self.assertIn(label, known[name] | FOREIGN_LABELS, f"{where}: {name} has no such label")

    def test_of_dashboards(self):
        for name in queries.FILES:
            for where, expression in queries.expressions(queries.load(name)):
                self.check(f"{name}, {where}", expression)

    def test_of_rules(self):
        for name, block in rules():
            self.check(name, expression_of(block))

    def test_a_wrong_one_is_found(self):
        for wrong in ("tercio_no_such_metric", "rate(tercio_loss_bucket[5m])", 'tercio_loss{phase="wait"}', "tercio:nothing"):
            with self.assertRaises(AssertionError):
                self.check("here", wrong)


class Dashboards(unittest.TestCase):

    def test_files_are_what_the_script_writes(self):
        checked = subprocess.run([sys.executable, os.path.join(ROOT, "dashboards", "make.py"), "--check"], capture_output=True,
                                 text=True)
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))
        self.assertEqual(sorted(f for f in os.listdir(os.path.join(ROOT, "dashboards")) if f.endswith(".json")),
                         sorted(queries.FILES))

    def test_boards_and_panels_say_what_they_are(self):
        uids, titles = set(), set()
        for name in queries.FILES:
            board = queries.load(name)
            self.assertEqual(board["schemaVersion"], 38)
            self.assertNotIn("id", board)  # Grafana's to give
            uids.add(board["uid"])
            titles.add(board["title"])
            ids, panel_titles = set(), set()
            for panel in board["panels"]:
                self.assertNotIn(panel["id"], ids)
                ids.add(panel["id"])
                self.assertTrue(panel["title"])
                if panel["type"] == "row":
                    panel_titles = set()
                    continue
                where = f"{name}: {panel['title']}"
                self.assertNotIn(panel["title"], panel_titles, where)
                panel_titles.add(panel["title"])
                self.assertIn(panel["fieldConfig"]["defaults"]["unit"], UNITS, where)
                self.assertGreater(len(panel["description"]), 5, where)
                self.assertTrue(panel["description"].endswith("."), where)
                self.assertTrue(panel["targets"], where)
                self.assertEqual(len({target["refId"] for target in panel["targets"]}), len(panel["targets"]), where)
                if panel["type"] == "status-history":
                    self.assertLessEqual(panel["maxDataPoints"], 200, where)
        self.assertEqual((len(uids), len(titles)), (len(queries.FILES), len(queries.FILES)))

    def test_panels_do_not_overlap(self):
        for name in queries.FILES:
            cells = set()
            for panel in queries.load(name)["panels"]:
                place = panel["gridPos"]
                self.assertLessEqual(place["x"] + place["w"], 24)
                own = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
                self.assertFalse(cells & own, f"{name}: {panel['title']}")
                cells |= own

    def test_nothing_is_of_one_place(self):
        """The data source is a variable; no job, node or address is named; variables that are used exist."""
        for name in queries.FILES:
            board = queries.load(name)
            text = read("dashboards", name)
            self.assertNotRegex(text, r"job-[0-9a-f]{8}|127\.0\.0\.1|localhost|\d+\.\d+\.\d+\.\d+")
            for where, expression in queries.expressions(board):
                self.assertNotRegex(expression, r'(job_id|job_name|node|instance)=~?"(?!\$)', where)
            sources = [target["datasource"]["uid"] for panel in board["panels"] for target in panel.get("targets", [])]
            sources += [panel["datasource"]["uid"] for panel in board["panels"] if panel["type"] != "row"]
            sources += [entry["datasource"]["uid"] for entry in board["annotations"]["list"]]
            sources += [v["datasource"]["uid"] for v in board["templating"]["list"] if v["type"] == "query"]
            self.assertEqual(set(sources), {"${datasource}"})
            variables = [v["name"] for v in board["templating"]["list"]]
            self.assertEqual(variables[0], "datasource")
            for where, expression in queries.expressions(board):
                queries.substitute(expression, {**{v: "x" for v in variables}, "__rate_interval": "1m"})

    def test_links_lead_to_boards_and_their_variables(self):
        boards = {(board := queries.load(name))["uid"]: {v["name"] for v in board["templating"]["list"]} for name in queries.FILES}
        links = re.findall(r'"url": "/d/([\w-]+)\?\$\{(\w+):queryparam\}&var-(\w+)=', "".join(read("dashboards", name) for name in queries.FILES))
        self.assertTrue(links)
        for uid, source, variable in links:
            self.assertIn(variable, boards[uid])
            self.assertIn(source, boards[uid])

    def test_they_are_provisioned(self):
        provider = read("deploy", "grafana", "provisioning", "dashboards", "tercio.yaml")
        for line in ("apiVersion: 1", "type: file", "disableDeletion: true", "path: "):
            self.assertIn(line, provider)
        source = read("deploy", "grafana", "provisioning", "datasources", "tercio.yaml")
        for line in ("apiVersion: 1", "type: prometheus", "url: "):
            self.assertIn(line, source)
        # Grafana does not start with two defaults, and one file overwrites another's source of the same name.
        self.assertNotIn("isDefault", source)
        self.assertNotRegex(source, r"name: Prometheus\b")
        uid = re.search(r"uid: (\S+)", source).group(1)
        for name in queries.FILES:
            self.assertEqual(queries.load(name)["templating"]["list"][0]["current"]["value"], uid)


class Rules(unittest.TestCase):

    def promtool(self, *arguments):
        done = subprocess.run(["promtool", *arguments], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_promtool_takes_them(self):
        self.promtool("check", "rules", os.path.join(PROMETHEUS, "rules", "recording.yml"),
                      os.path.join(PROMETHEUS, "rules", "alerts.yml"))
        self.promtool("check", "config", os.path.join(PROMETHEUS, "prometheus.yml"))

    def test_alerts_fire_when_they_should(self):
        self.promtool("test", "rules", os.path.join(ROOT, "tests", "prometheus", "alerts_test.yml"))

    def alerts(self):
        return [(name, block) for name, block in rules() if ":" not in name]

    def test_alerts_are_complete(self):
        headings = anchors(read("docs", "operations.md"))
        self.assertGreater(len(self.alerts()), 40)
        for name, block in self.alerts():
            self.assertRegex(block, r"severity: (critical|warning)\n", name)
            for field in ("summary", "description"):
                self.assertRegex(block, field + r': ".+"\n', name)
            document, anchor = re.search(r"runbook_url: (\S+)#(\S+)", block).groups()
            self.assertEqual(document, "docs/operations.md")
            self.assertIn(anchor, headings, name)

    def test_runbook_has_no_alert_that_is_none(self):
        named = set(re.findall(r"^#+ Alert: (\w+)$", read("docs", "operations.md"), re.M))
        self.assertEqual(named, {name for name, _ in self.alerts()})

    def test_each_kind_of_event_is_explained(self):
        kinds = set(re.findall(r'^    "(\w+)",$', read("coordinator", "core", "event_kind.h"), re.M))
        table = re.search(r"\n## Events\n(.*?)\n## ", read("docs", "operations.md"), re.S).group(1)
        explained = {kind for row in re.findall(r"^\| (`[^|]*) \|", table, re.M) for kind in re.findall(r"`(\w+)`", row)}
        self.assertGreater(len(kinds), 30)
        self.assertEqual(explained, kinds)

    def test_each_alert_has_a_test(self):
        tested = set(re.findall(r'alertname="(\w+)"', read("tests", "prometheus", "alerts_test.yml")))
        self.assertEqual(tested, {name for name, _ in self.alerts()})


if __name__ == "__main__":
    python_cases.main()
