"""Runs every example of docs/guide.md and docs/finetuning.md, in order and in one directory each, with the real programs.

A ```yaml block begins with a line `# file: NAME` and becomes that file. A ```sh block is run by bash, where an error
ends it and $REPOSITORY is this repository. A ```text block behind it is what it prints (stdout and stderr): a line `...`
stands for any lines, `...` in a line for anything. Other blocks are faults, so that no example is left out.
"""

import os
import re
import signal
import subprocess
import sys
from collections import namedtuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import BIN, ROOT, SECONDS, TercioTest  # noqa: E402

DOCUMENTS = os.path.join(ROOT, "docs")

# line: that of the opening fence, from 1. language: the word behind it.
Block = namedtuple("Block", "line language text")


def blocks_of(page):
    blocks, opened, lines = [], None, []
    for number, line in enumerate(page.splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif opened is None:
            opened, lines = (number, line[3:].strip()), []
        else:
            blocks.append(Block(*opened, "".join(line + "\n" for line in lines)))
            opened = None
    if opened is not None:
        raise AssertionError(f"line {opened[0]}: the block has no end")
    return blocks


def matches(expected, printed):
    pattern = ""
    for line in expected.splitlines():
        pattern += "(?:.*\n)*?" if line == "..." else ".*?".join(map(re.escape, line.split("..."))) + "\n"
    lines = [line.rstrip() + "\n" for line in printed.splitlines()]
    return re.fullmatch(pattern, "".join(lines)) is not None


class PageTest(TercioTest):

    def run_page(self, page, name="page"):
        """Ends with an AssertionError that begins with the name and the line of the block that failed."""
        printed = None  # by the block before
        for block in blocks_of(page):
            where = f"{name}:{block.line}"
            if block.language == "yaml":
                self.write_file(where, block.text)
            elif block.language == "sh":
                printed = self.run_commands(where, block.text)
                continue
            elif block.language == "text" and printed is not None:
                if not matches(block.text, printed):
                    raise AssertionError(f"{where}: the output differs, expected\n{block.text}but this was printed\n{printed}")
            else:
                raise AssertionError(f"{where}: a block is yaml, sh, or text behind sh")
            printed = None

    def write_file(self, where, text):
        name = re.match(r"# file: ([\w.-]+\.yaml)\n", text)
        if name is None:
            raise AssertionError(f"{where}: the block does not begin with '# file: NAME.yaml'")
        with open(self.path("guide", name.group(1)), "w", encoding="utf-8") as file:
            file.write(text)

    def run_commands(self, where, commands):
        environment = {**self.environment(), "REPOSITORY": ROOT, "PATH": BIN + os.pathsep + os.environ["PATH"]}
        # A session of its own, so that nothing it started outlives a block that hangs.
        child = subprocess.Popen(["bash", "-e", "-u", "-c", commands], cwd=self.path("guide"), env=environment,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 text=True, errors="replace", start_new_session=True)
        try:
            printed, _ = child.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            printed, _ = child.communicate()
            raise AssertionError(f"{where}: not done after {SECONDS} s, so far\n{printed}") from None
        if child.returncode != 0:
            raise AssertionError(f"{where}: exit code {child.returncode}, it printed\n{printed}")
        return printed

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("guide"))


class Guide(PageTest):

    def run_document(self, name):
        with open(os.path.join(DOCUMENTS, name), encoding="utf-8") as file:
            self.run_page(file.read(), f"docs/{name}")

    def test_every_example_runs_and_prints_what_the_page_says(self):
        self.run_document("guide.md")

    def test_every_example_of_fine_tuning_does(self):
        self.run_document("finetuning.md")


class Runner(PageTest):
    """That a page which went stale fails."""

    def fails(self, page, expected):
        with self.assertRaises(AssertionError) as caught:
            self.run_page(page)
        self.assertIn(expected, str(caught.exception))

    def test_what_is_right_passes(self):
        self.run_page("# Title\n\n```yaml\n# file: a.yaml\nkey: 1\n```\n\n```sh\ntail -1 a.yaml; pwd\n```\n"
                      "```text\nkey: ...\n.../guide\n```\n```sh\ntercio version >&2\n```\n```text\n...\n```\n")

    def test_what_is_wrong_names_its_line(self):
        self.fails("text\n\n```sh\ntrue\nfalse\ntrue\n```\n", "page:3: exit code 1")
        self.fails("```sh\necho one\n```\n```text\ntwo\n```\n", "page:4: the output differs, expected\ntwo\nbut this was printed\none\n")
        self.fails("```sh\necho $UNKNOWN_NAME\n```\n", "page:1: exit code")
        self.fails("```sh\ntercio no-such-verb\n```\n", "page:1: exit code 2")
        self.fails("```yaml\nkey: 1\n```\n", "page:1: the block does not begin")
        self.fails("```yaml\n# file: ../a.yaml\n```\n", "page:1: the block does not begin")
        self.fails("```python\n1\n```\n", "page:1: a block is")
        self.fails("```sh\ntrue\n```\n```text\n```\n```text\n```\n", "page:6: a block is")
        self.fails("\n```sh\ntrue\n", "line 2: the block has no end")

    def test_dots_stand_for_what_varies(self):
        for expected, printed, match in (
                ("", "", True), ("", "one\n", False), ("one\n", "one", True), ("one\n", "one\ntwo\n", False),
                ("one\n...\n", "one\ntwo\nthree\n", True), ("one\n...\n", "one\n", True),
                ("...\nthree\n", "one\ntwo\nthree\n", True), ("...\ntwo\n", "one\ntwo\nthree\n", False),
                ("loss ..., step 3\n", "loss 2.5, step 3\n", True), ("loss ...\n", "loss\nloss 2\n", False),
                ("a.c\n", "abc\n", False), ("a ... c\n", "a\nc\n", False)):
            self.assertEqual(matches(expected, printed), match, (expected, printed))


if __name__ == "__main__":
    python_cases.main()
