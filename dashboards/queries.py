"""The queries of the dashboards, and a client for Prometheus."""

import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = ("cluster.json", "job.json", "ranks.json", "checkpoints.json", "coordinator.json")


def load(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return json.load(file)


def substitute(expression, values):
    """`values` by the name of the variable; $__rate_interval among them."""
    for name, value in sorted(values.items(), key=lambda entry: -len(entry[0])):
        expression = expression.replace("$" + name, value)
    left = re.search(r"\$\w+", expression)
    if left:
        raise ValueError(f"{left.group(0)} has no value in {expression}")
    return expression


def expressions(board):
    """(where, expression) of all panels, variables and annotations."""
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']}", target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] != "query":
            continue
        query = variable["query"]["query"]
        inner = re.fullmatch(r"query_result\((.*)\)", query) or re.fullmatch(r"label_values\((.*), \w+\)", query)
        yield f"variable {variable['name']}", inner.group(1)
    for annotation in board["annotations"]["list"]:
        yield f"annotation {annotation['name']}", annotation["expr"]


class Prometheus:

    def __init__(self, address):
        self.address = address  # http://HOST:PORT

    def get(self, path, **parameters):
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                raise ConnectionError("Prometheus is not ready") from error
            raise ValueError(f"{parameters}: {error.read().decode(errors='replace')}") from error

    def now(self, expression):
        return self.get("query", query=expression)["result"]

    def over_time(self, expression, begin, end, step):
        return self.get("query_range", query=expression, start=begin, end=end, step=step)["result"]
