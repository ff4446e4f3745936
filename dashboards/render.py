#!/usr/bin/env python3
"""Draws a dashboard as one SVG file, from the answers of a Prometheus to the expressions that Grafana would send. For documents,
and to look at panels where there is no Grafana.

    python3 dashboards/render.py job.json --prometheus http://HOST:PORT --set job=JOB [--set node=a] [--begin UNIX] [--end UNIX]
                                 [--width 1200] [--skip-empty] --output FILE.svg
"""

import argparse
import html
import math
import re
import time

import queries

COLOURS = ("#3274d9", "#e0752d", "#299c46", "#a352cc", "#d44a3a", "#14b8a6", "#b8860b", "#8f8f8f", "#e05297", "#5b6ee1")
UNITS = {"bytes": "B", "s": "s", "Bps": "B/s", "reqps": "/s", "watt": "W", "celsius": "°C", "hertz": "Hz"}
CELL = 32  # pixels of a unit of a panel's height
MARGIN = 8
STEPS = 240


def human(value, unit):
    """Three digits with a prefix."""
    if value is None or math.isnan(value):
        return "-"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    base = 1024 if unit == "bytes" else 1000
    size = abs(value)
    if unit == "s":
        for seconds, name in ((86400, "d"), (3600, "h"), (60, "min")):
            if size >= 2 * seconds:
                return f"{value / seconds:.3g} {name}"
        return f"{value:.3g} s" if size >= 1 or size == 0 else f"{value * 1000:.3g} ms"
    prefixes = ["", "Ki", "Mi", "Gi", "Ti"] if base == 1024 else ["", "k", "M", "G", "T"]
    at = 0
    while size >= base and at < len(prefixes) - 1:
        size, value, at = size / base, value / base, at + 1
    return f"{value:.3g} {prefixes[at]}{UNITS.get(unit, '')}".rstrip()


def text(x, y, what, size=11, anchor="start", colour="#333", weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
            f'font-weight="{weight}">{html.escape(str(what))}</text>')


def legend_of(target, metric):
    if not target["legendFormat"]:
        return metric.get("job_name", "value")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: metric.get(found.group(1), ""), target["legendFormat"]).strip()


def points_of(series):
    return [(float(at), float(value)) for at, value in series["values"] if math.isfinite(float(value))]


class Sheet:

    def __init__(self, prometheus, values, begin, end, width):
        self.prometheus = prometheus
        self.values = values
        self.begin, self.end = begin, end
        self.width = width
        self.parts = []

    def series(self, panel):
        """(legend, [(time, value)]) of all targets, by legend."""
        step = max(0.5, (self.end - self.begin) / STEPS)
        found = []
        for target in panel["targets"]:
            expression = queries.substitute(target["expr"], self.values)
            for series in self.prometheus.over_time(expression, self.begin, self.end, step):
                points = points_of(series)
                if points:
                    found.append((legend_of(target, series["metric"]), points))
        return sorted(found, key=lambda entry: [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", entry[0])])

    # ---- panels: each in a box (x, y, w, h) ----

    def frame(self, panel, x, y, w, h):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="#fff" stroke="#ddd" rx="3"/>')
        self.parts.append(text(x + MARGIN, y + 16, panel["title"], 12, weight="bold"))

    def legend(self, names, x, y, w):
        at = x
        for i, name in enumerate(names):
            length = 16 + 6 * len(name)
            if at + length > x + w:
                self.parts.append(text(at, y, f"+{len(names) - i}", 10, colour="#777"))
                return
            self.parts.append(f'<rect x="{at}" y="{y - 7}" width="8" height="8" fill="{COLOURS[i % len(COLOURS)]}"/>')
            self.parts.append(text(at + 11, y, name, 10, colour="#555"))
            at += length + 4

    def axes(self, x, y, w, h, low, high, unit, log):
        for i in range(5):
            share = i / 4
            value = low * (high / low) ** share if log else low + (high - low) * share
            line = y + h - share * h
            self.parts.append(f'<line x1="{x}" x2="{x + w}" y1="{line:.1f}" y2="{line:.1f}" stroke="#eee"/>')
            self.parts.append(text(x - 4, line + 4, human(value, unit), 9, "end", "#777"))
        for i in range(5):
            seconds = (self.end - self.begin) * i / 4
            self.parts.append(text(x + w * i / 4, y + h + 12, f"{seconds:.0f} s", 9, "middle", "#777"))

    def graph(self, panel, x, y, w, h):
        defaults = panel["fieldConfig"]["defaults"]
        custom = defaults["custom"]
        stacked = custom["stacking"]["mode"] == "normal"
        log = custom["scaleDistribution"]["type"] == "log"
        series = self.series(panel)
        if stacked:
            series = stack(series)
        values = [value for _, points in series for _, value in points if not log or value > 0]
        if not values:
            return self.nothing(x, y, w, h)
        low, high = defaults.get("min", min(values)), defaults.get("max", max(values))
        low, high = min(low, *values, high), max(high, *values)
        if log:
            low = min(values)
        if high <= low:
            high = low + (abs(low) or 1)
        left, top, width, height = x + 58, y + 26, w - 70, h - 60
        self.axes(left, top, width, height, low, high, defaults["unit"], log)

        def place(at, value):
            share = math.log(max(value, low) / low) / math.log(high / low) if log else (value - low) / (high - low)
            return f"{left + (at - self.begin) / (self.end - self.begin) * width:.1f},{top + height - share * height:.1f}"
        below = None
        for i, (_, points) in enumerate(series):
            colour = COLOURS[i % len(COLOURS)]
            line = " ".join(place(at, value) for at, value in points)
            if stacked:
                base = below or [(at, low) for at, _ in points]
                area = line + " " + " ".join(place(at, value) for at, value in reversed(base))
                self.parts.append(f'<polygon points="{area}" fill="{colour}" fill-opacity="0.6"/>')
                below = points
            elif len(points) == 1:
                cx, cy = line.split(",")
                self.parts.append(f'<circle cx="{cx}" cy="{cy}" r="2.5" fill="{colour}"/>')
            for part in broken(points, (self.end - self.begin) / STEPS * 6):
                line = " ".join(place(at, value) for at, value in part)
                self.parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        self.legend([name for name, _ in series], left, y + h - 10, width)

    def rows(self, panel, x, y, w, h):
        series = self.series(panel)
        if not series:
            return self.nothing(x, y, w, h)
        state = panel["type"] == "state-timeline"
        left, top, width, height = x + 90, y + 26, w - 102, h - 48
        row = height / len(series)
        high = 1 if state else max(value for _, points in series for _, value in points) or 1
        for i, (name, points) in enumerate(series):
            self.parts.append(text(left - 6, top + (i + 0.5) * row + 4, name, 10, "end", "#555"))
            for at, until, share in cells_of(points, high):
                if state and share < 0.5:
                    continue
                colour = "#3274d9" if state else heat(share)
                begin = left + (at - self.begin) / (self.end - self.begin) * width
                end = left + (until - self.begin) / (self.end - self.begin) * width
                self.parts.append(f'<rect x="{begin:.1f}" y="{top + i * row + 1:.1f}" width="{end - begin + 0.3:.1f}" '
                                  f'height="{row - 2:.1f}" fill="{colour}"/>')
        for i in range(5):
            self.parts.append(text(left + width * i / 4, top + height + 13, f"{(self.end - self.begin) * i / 4:.0f} s", 9,
                                   "middle", "#777"))
        if not state:
            self.parts.append(text(x + w - 12, y + 16, f"from 0 (grey) to {human(high, panel['fieldConfig']['defaults']['unit'])}"
                                   " (red)", 10, "end", "#777"))

    def buckets(self, panel, x, y, w, h):
        """The rate of each bucket beside that of the next smaller one."""
        series = sorted(self.series(panel), key=lambda entry: float(entry[0]))
        cells = []
        before = {}
        for name, points in series:
            cells.append((name, [(at, value - before.get(at, 0)) for at, value in points]))
            before = dict(points)
        cells = [(name, points) for name, points in cells if any(value > 0 for _, value in points)]
        if not cells:
            return self.nothing(x, y, w, h)
        high = max(value for _, points in cells for _, value in points)
        left, top, width, height = x + 58, y + 26, w - 70, h - 48
        row = height / len(cells)
        for i, (name, points) in enumerate(reversed(cells)):
            self.parts.append(text(left - 4, top + (i + 0.5) * row + 4, "≤ " + human(float(name), "s"), 9, "end", "#777"))
            for (at, value), (until, _) in zip(points, points[1:]):
                if value > 0:
                    begin = left + (at - self.begin) / (self.end - self.begin) * width
                    end = left + (until - self.begin) / (self.end - self.begin) * width
                    self.parts.append(f'<rect x="{begin:.1f}" y="{top + i * row:.1f}" width="{end - begin + 0.3:.1f}" '
                                      f'height="{row - 1:.1f}" fill="#e0752d" fill-opacity="{0.1 + 0.9 * value / high:.2f}"/>')

    def stat(self, panel, x, y, w, h):
        values = [points[-1][1] for _, points in self.series(panel)]
        unit = panel["fieldConfig"]["defaults"]["unit"]
        self.parts.append(text(x + w / 2, y + h / 2 + 18, human(values[0], unit) if values else "-", 24, "middle", "#222", "bold"))

    def bars(self, panel, x, y, w, h):
        series = [(name, points[-1][1]) for name, points in self.series(panel)]
        if not series:
            return self.nothing(x, y, w, h)
        unit = panel["fieldConfig"]["defaults"]["unit"]
        high = max(panel["fieldConfig"]["defaults"].get("max", 0), max(value for _, value in series)) or 1
        left, top, width, height = x + 130, y + 26, w - 210, h - 34
        row = height / len(series)
        for i, (name, value) in enumerate(series):
            at = top + i * row
            self.parts.append(text(left - 6, at + row / 2 + 4, name, 10, "end", "#555"))
            self.parts.append(f'<rect x="{left}" y="{at + row * 0.15:.1f}" width="{max(0.5, width * value / high):.1f}" '
                              f'height="{row * 0.7:.1f}" fill="{COLOURS[i % len(COLOURS)]}"/>')
            self.parts.append(text(left + max(0.5, width * value / high) + 6, at + row / 2 + 4, human(value, unit), 10))

    def nothing(self, x, y, w, h):
        self.parts.append(text(x + w / 2, y + h / 2 + 8, "no data", 11, "middle", "#999"))

    KINDS = {"timeseries": graph, "status-history": rows, "state-timeline": rows, "heatmap": buckets, "stat": stat,
             "bargauge": bars}

    def draw(self, board, skip_empty):
        """Panels flow as in Grafana; tables are left out."""
        unit = self.width / 24
        y = 40
        for section in sections_of(board):
            panels = [p for p in section[1] if p["type"] in self.KINDS and not (skip_empty and not self.series(p))]
            if not panels:
                continue
            self.parts.append(text(MARGIN, y + 16, section[0], 14, weight="bold", colour="#111"))
            y += 24
            x = line = 0
            for panel in panels:
                w, h = panel["gridPos"]["w"], panel["gridPos"]["h"]
                if x + w > 24:
                    x, y, line = 0, y + line * CELL, 0
                box = (x * unit + 2, y + 2, w * unit - 4, h * CELL - 4)
                self.frame(panel, *box)
                self.KINDS[panel["type"]](self, panel, *box)
                x, line = x + w, max(line, h)
            y += line * CELL + 6
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{y:.0f}" '
                f'viewBox="0 0 {self.width} {y:.0f}" font-family="Helvetica, Arial, sans-serif">'
                f'<rect width="100%" height="100%" fill="#f6f6f6"/>')
        return "\n".join([head, text(MARGIN, 26, board["title"], 18, weight="bold"), *self.parts, "</svg>\n"])


def sections_of(board):
    sections = []
    for panel in board["panels"]:
        if panel["type"] == "row":
            sections.append((panel["title"], []))
        else:
            sections[-1][1].append(panel)
    return sections


def stack(series):
    """Each series on top of those before it, at the times that any of them has."""
    times = sorted({at for _, points in series for at, _ in points})
    total = dict.fromkeys(times, 0.0)
    made = []
    for name, points in series:
        own = dict(points)
        total = {at: value + own.get(at, 0.0) for at, value in total.items()}
        made.append((name, sorted(total.items())))
    return made


def broken(points, gap):
    """Parts of a line, split where there are no values for `gap` seconds."""
    parts = [[points[0]]]
    for before, point in zip(points, points[1:]):
        if point[0] - before[0] > gap:
            parts.append([])
        parts[-1].append(point)
    return parts


def cells_of(points, high):
    """(from, until, share of `high` in steps of 1/20), neighbours that are alike as one."""
    cells = []
    for (at, value), (until, _) in zip(points, points[1:]):
        share = round(20 * max(0.0, min(1.0, value / high))) / 20
        if cells and cells[-1][2] == share and cells[-1][1] == at:
            at = cells.pop()[0]
        cells.append((at, until, share))
    return cells


def heat(share):
    """From grey over yellow to red."""
    low, middle, high = (224, 224, 224), (242, 204, 12), (212, 74, 58)
    begin, end, at = (low, middle, 2 * share) if share < 0.5 else (middle, high, 2 * share - 1)
    return "#" + "".join(f"{round(b + (e - b) * at):02x}" for b, e in zip(begin, end))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("board", choices=queries.FILES)
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--begin", type=float, default=time.time() - 3600)
    parser.add_argument("--end", type=float, default=time.time())
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--skip-empty", action="store_true", help="leave out panels without data")
    parser.add_argument("--output", required=True)
    options = parser.parse_args()
    values = {"job": ".*", "node": ".*", "rank": ".*", "__rate_interval": "1m"}
    values.update(entry.split("=", 1) for entry in options.set)
    sheet = Sheet(queries.Prometheus(options.prometheus), values, options.begin, options.end, options.width)
    drawn = sheet.draw(queries.load(options.board), options.skip_empty)
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(drawn)


if __name__ == "__main__":
    main()
