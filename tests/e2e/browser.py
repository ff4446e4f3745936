"""Opens a page in headless Chromium: what it looks like inside, what it says, what it asks the network for."""

import json
import os
import subprocess

from harness import SECONDS

# Runs in a page around the report, which shows it in a frame: sizes, and everything that a browser complains of.
_PROBE = """<!DOCTYPE html><html><body style="margin:0"><pre id="found"></pre><iframe id="page" style="border:0"></iframe><script>
const found = document.getElementById('found'), frame = document.getElementById('page');
frame.style.width = '%(width)dpx'; frame.style.height = '3000px';
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement;
  const wide = [...page.querySelectorAll('body *')].filter(e => !e.closest('svg svg, .scroll, details') &&
      e.getBoundingClientRect().right > %(width)d + 1).map(e => e.tagName + '.' + e.className);
  const flat = [...page.querySelectorAll('svg.p')].filter(s => s.getBoundingClientRect().height < 20).length;
  const outside = [...page.querySelectorAll('svg.p')].reduce((n, s) => {
    const box = s.getBoundingClientRect();
    return n + [...s.querySelectorAll('text')].filter(t => { const b = t.getBoundingClientRect();
      return b.left < box.left - 1 || b.right > box.right + 1 || b.top < box.top - 1 || b.bottom > box.bottom + 1; }).length; }, 0);
  found.textContent = JSON.stringify({scroll: root.scrollWidth, wide, flat, outside, svgs: page.querySelectorAll('svg.p').length,
    paths: page.querySelectorAll('svg.p path').length, tables: page.querySelectorAll('table').length,
    resources: frame.contentWindow.performance.getEntriesByType('resource').map(e => e.name),
    headings: [...page.querySelectorAll('h2')].map(h => h.textContent),
    data: page.getElementById('%(data)s').textContent, title: page.title});
};
frame.src = '%(page)s';
</script></body></html>"""


def _chromium(directory, *arguments):
    return subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                           "--disable-background-networking", "--disable-dev-shm-usage", "--allow-file-access-from-files",
                           f"--user-data-dir={os.path.join(directory, 'chromium')}", "--enable-logging=stderr", "--v=0", *arguments],
                          capture_output=True, text=True, timeout=SECONDS, check=False)


def look(directory, page, width=1280, data="tercio-report"):
    """What is found in the page at this width (the keys of _PROBE), and what the console said. `data`: the id of its data."""
    probe = os.path.join(directory, "probe.html")
    with open(probe, "w", encoding="utf-8") as file:
        file.write(_PROBE % {"width": width, "page": os.path.relpath(page, directory), "data": data})
    done = _chromium(directory, "--virtual-time-budget=10000", "--dump-dom", "file://" + probe)
    text = done.stdout.partition('<pre id="found">')[2].partition("</pre>")[0]
    if not text:
        raise AssertionError(f"chromium showed nothing: {done.stdout[-500:]} {done.stderr[-2000:]}")
    for entity, letter in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(entity, letter)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(text), console


def screenshot(directory, page, path, width=1280, height=2000):
    _chromium(directory, f"--window-size={width},{height}", f"--screenshot={path}", "file://" + page)
    with open(path, "rb") as file:
        return file.read()
