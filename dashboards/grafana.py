"""The few kinds of panels, variables and annotations that the dashboards are made of, as Grafana's JSON
(schema version 38: Grafana 10 and later)."""

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def targets(queries, instant=False, table=False):
    """Queries are (expression, legend)."""
    made = []
    for i, (expression, legend) in enumerate(queries):
        made.append({
            "refId": chr(ord("A") + i), "datasource": SOURCE, "expr": " ".join(expression.split()),
            "legendFormat": legend, "editorMode": "code", "range": not instant, "instant": instant,
            "format": "table" if table else "time_series"})
    return made


def panel(kind, title, unit, description, queries, width, height, instant=False, table=False):
    return {
        "type": kind, "title": title, "description": description, "datasource": SOURCE,
        "gridPos": {"w": width, "h": height}, "targets": targets(queries, instant, table),
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []}, "options": {}}


def graph(title, unit, description, *queries, width=12, height=8, stack=False, log=False, low=0, high=None):
    """Lines over time. `low` and `high` are the least that the axis shows; None: as it comes."""
    made = panel("timeseries", title, unit, description, queries, width, height)
    defaults = made["fieldConfig"]["defaults"]
    if low is not None and not log:
        defaults["min"] = low
    if high is not None:
        defaults["max"] = high
    defaults["custom"] = {
        "drawStyle": "line", "lineWidth": 1, "fillOpacity": 60 if stack else 8, "showPoints": "auto", "spanNulls": False,
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
        "scaleDistribution": {"type": "log", "log": 10} if log else {"type": "linear"}}
    made["options"] = {"legend": {"showLegend": True, "displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
                       "tooltip": {"mode": "multi", "sort": "desc"}}
    return made


def number(title, unit, description, *queries, width=4, height=4, thresholds=()):
    """The current value, large. Thresholds are (from, colour), the first from None."""
    made = panel("stat", title, unit, description, queries, width, height, instant=True)
    steps = [{"value": value, "color": colour} for value, colour in thresholds] or [{"value": None, "color": "text"}]
    defaults = made["fieldConfig"]["defaults"]
    defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    made["options"] = {"colorMode": "value", "graphMode": "none", "textMode": "auto",
                       "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return made


def bars(title, unit, description, *queries, width=12, height=8, low=0, high=None):
    """The current values side by side."""
    made = panel("bargauge", title, unit, description, queries, width, height, instant=True)
    made["fieldConfig"]["defaults"].update({"min": low, "color": {"mode": "palette-classic"}})
    if high is not None:
        made["fieldConfig"]["defaults"]["max"] = high
    made["options"] = {"displayMode": "basic", "orientation": "horizontal", "showUnfilled": True,
                       "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return made


def rows_over_time(title, unit, description, *queries, width=24, height=10, low=0, high=1, colours="continuous-GrYlRd"):
    """A heat map: one row for each series, its value as a colour."""
    made = panel("status-history", title, unit, description, queries, width, height)
    # Grafana draws nothing if there are more points than half the pixels of its width.
    made["maxDataPoints"] = 150
    made["fieldConfig"]["defaults"].update({
        "min": low, "max": high, "color": {"mode": colours}, "custom": {"fillOpacity": 90, "lineWidth": 0}})
    made["options"] = {"showValue": "never", "rowHeight": 0.9, "legend": {"showLegend": False},
                       "tooltip": {"mode": "single"}}
    return made


def states(title, description, *queries, width=24, height=4):
    """Which of several 0/1 series is 1."""
    made = panel("state-timeline", title, "none", description, queries, width, height)
    made["fieldConfig"]["defaults"].update({"custom": {"fillOpacity": 80, "lineWidth": 0}, "color": {"mode": "thresholds"},
                                            "thresholds": {"mode": "absolute", "steps": [
                                                {"value": None, "color": "transparent"}, {"value": 1, "color": "blue"}]}})
    made["options"] = {"showValue": "never", "mergeValues": True, "rowHeight": 0.9, "legend": {"showLegend": False}}
    return made


def histogram(title, unit, description, metric_rate, width=12, height=8):
    """Buckets over time; the query sums rates of buckets by `le`."""
    made = panel("heatmap", title, unit, description, [(metric_rate, "{{le}}")], width, height)
    made["targets"][0]["format"] = "heatmap"
    made["options"] = {"calculate": False, "cellGap": 1, "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
                       "yAxis": {"axisPlacement": "left", "unit": unit}, "tooltip": {"show": True, "yHistogram": False},
                       "legend": {"show": True}}
    return made


def table(title, unit, description, expression, hidden=(), links=(), width=24, height=7):
    """`links`: (column, dashboard, its variable that gets the value)."""
    made = panel("table", title, unit, description, [(expression, "")], width, height, instant=True, table=True)
    made["transformations"] = [{"id": "organize", "options": {
        "excludeByName": {name: True for name in ("Time", "Value", "__name__", "job", "instance", *hidden)}}}]
    made["fieldConfig"]["overrides"] = [
        {"matcher": {"id": "byName", "options": column}, "properties": [{"id": "links", "value": [
            {"title": uid, "url": f"/d/{uid}?${{datasource:queryparam}}&var-{name}=${{__value.raw}}&${{__url_time_range}}"}]}]}
        for column, uid, name in links]
    made["options"] = {"showHeader": True}
    return made


def source_variable():
    """Defaults to the one that deploy/grafana provisions; if none has that name, Grafana takes another."""
    return {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "refresh": 1,
            "hide": 0, "includeAll": False, "multi": False, "options": [], "current": {"text": "Tercio", "value": "tercio-prometheus"}}


def variable(name, label, query, regex="", multi=False):
    """Values found by a query; with `multi` several can be selected, and initially all are."""
    made = {"type": "query", "name": name, "label": label, "datasource": SOURCE,
            "query": {"query": query, "refId": "StandardVariableQuery"}, "definition": query, "regex": regex, "refresh": 2,
            "sort": 3 if name == "rank" else 1, "hide": 0, "multi": multi, "includeAll": multi, "options": [], "current": {}}
    if multi:
        made["allValue"] = ".*"
        made["current"] = {"text": "All", "value": "$__all"}
    return made


def annotation(name, colour, expression, title, text):
    return {"name": name, "enable": True, "hide": False, "iconColor": colour, "datasource": SOURCE,
            "expr": " ".join(expression.split()), "step": "15s", "titleFormat": title, "textFormat": text, "useValueForTime": False}


def dashboard(uid, title, description, variables, annotations, sections):
    """Sections are (title, panels): rows, in which panels flow from left to right."""
    panels = []
    y = 0
    number_of = iter(range(1, 1000))
    for heading, members in sections:
        panels.append({"id": next(number_of), "type": "row", "title": heading, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        y += 1
        x = line = 0
        for member in members:
            place = member["gridPos"]
            if x + place["w"] > 24:
                x, y, line = 0, y + line, 0
            member["gridPos"] = {"x": x, "y": y, "w": place["w"], "h": place["h"]}
            member["id"] = next(number_of)
            x += place["w"]
            line = max(line, place["h"])
            panels.append(member)
        y += line
    return {
        "uid": uid, "title": title, "description": description, "tags": ["tercio"], "schemaVersion": 38, "version": 1,
        "editable": True, "graphTooltip": 1, "refresh": "15s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "templating": {"list": [source_variable(), *variables]}, "annotations": {"list": annotations},
        "links": [{"type": "dashboards", "title": "Tercio", "tags": ["tercio"], "asDropdown": True, "includeVars": True,
                   "keepTime": True}],
        "panels": panels}
