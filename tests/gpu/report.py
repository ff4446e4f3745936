"""gpu.json for programs, gpu.md for people."""

import json
import os


def _text(value):
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(_text(part) for part in value)
    return "unknown" if value is None else str(value)


def _cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def _slowest(checks):
    """For people: what took longest, and in it the slowest case of a program of tests."""
    if not checks:
        return ""
    check = max(checks, key=lambda one: one["seconds"])
    text = f"slowest: {check['part']}: {check['name']} ({check['seconds']:.1f} s)"
    cases = [(one["numbers"]["slowest_seconds"], one["numbers"]["slowest"]) for one in checks if one["numbers"].get("slowest")]
    if cases:
        text += "; slowest test: {1} ({0:.1f} s)".format(*max(cases))
    return text


def _markdown(facts, checks, counts):
    gpus = ", ".join(f"{gpu['name']} ({gpu['memory_bytes'] / 2**30:.0f} GiB)" for gpu in facts["gpus"]) or "none"
    lines = ["# Tercio on a GPU", "", f"`{facts['command']}`, {facts['date']}, {facts['seconds']:.0f} s", ""]
    lines += [f"- {line}" for line in facts["version"]]
    lines += [f"- GPUs: {gpus}; driver {_text(facts['driver'])}",
              f"- libraries: {_text(facts['libraries']) or 'none'}; Python {facts['python']}, {facts['cores']} cores, {facts['system']}"]
    if facts["quick"]:
        lines.append("- **--quick: tiny models; no figure here says how fast anything is**")
    lines += ["", "{passed} passed, {failed} failed, {skipped} skipped".format(**counts), "", _slowest(checks), "",
              "| part | check | outcome | seconds | numbers, or why |", "|---|---|---|---|---|"]
    for check in checks:
        said = "; ".join(([check["reason"]] if check["reason"] else []) +
                         [f"{key} {_text(value)}" for key, value in check["numbers"].items()])
        lines.append(f"| {check['part']} | {_cell(check['name'])} | {check['outcome']} | {check['seconds']:.1f} | {_cell(said)} |")
    return "\n".join(lines) + "\n"


def write(folder, facts, checks):
    """Returns the exit code: 0 when something was checked and nothing failed."""
    counts = {outcome: sum(check["outcome"] == outcome for check in checks) for outcome in ("passed", "failed", "skipped")}
    with open(os.path.join(folder, "gpu.json"), "w", encoding="utf-8") as file:
        json.dump({**facts, **counts, "checks": checks}, file, indent=2)
        file.write("\n")
    with open(os.path.join(folder, "gpu.md"), "w", encoding="utf-8") as file:
        file.write(_markdown(facts, checks, counts))
    print(_slowest(checks))
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return 1 if counts["failed"] or not counts["passed"] else 0
