"""Completion in real shells, and manual pages as man shows them."""

import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import BIN, SECONDS, ClusterTest, TercioTest, layout, wait_for  # noqa: E402

# Completes the words of the command line and prints what is offered.
BASH = """
source <(tercio completion bash)
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_tercio
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

# zsh completes only where somebody types: in a terminal of its own.
ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f
zpty -w shell $'PS1=; autoload -Uz compinit; compinit -u -D; source <(tercio completion zsh)'
zpty -w shell $'zstyle ":completion:*" list-separator "--"; LISTMAX=0; unsetopt auto_menu'
zpty -w shell $'print ready-"now"'
zpty -r shell out '*ready-now*'
zpty -w -n shell "$1"$'\t'
sleep 2
zpty -w -n shell $'\C-u'
while zpty -r -t shell out; do print -r -- "$out"; done
zpty -d shell
"""


class Shells(ClusterTest):

    def shell(self, *command):
        environment = {**self.environment(), "PATH": f"{BIN}:/usr/bin:/bin", "HOME": self.directory,
                       "TERCIO_COORDINATOR": self.address or "127.0.0.1:1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=self.directory,
                              env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def offered(self, *words):
        script = BASH.format(words=" ".join(f"'{word}'" for word in words))
        return self.shell("bash", "--norc", "-c", script).split()

    def soon(self, expected, ask):
        """Shells ask a coordinator with little patience; where the machine is busy, again, as a person would."""
        wait_for(lambda: ask() == expected, expected)

    def test_bash(self):
        self.assertEqual(sorted(self.offered("tercio", "pl")), ["plan", "plot"])
        self.assertEqual(set(self.offered("tercio", "checkpoint", "")), {"list", "verify", "prune", "now", "import", "export"})
        self.assertEqual(self.offered("tercio", "get", "--coord"), ["--coordinator"])
        self.assertEqual(self.offered("tercio", "get", "x", "-o", ""), ["json", "jsonl"])
        self.assertIn("job.yaml", self.offered("tercio", "submit", "jo"))
        self.assertEqual(self.offered("tercio", "completion", "z"), ["zsh"])
        self.assertEqual(self.offered("tercio", "drill", "x", "--fault", "kill"), ["kill-trainer", "kill-agent"])
        self.assertEqual(self.offered("tercio", "plot", "x", "--metric", "l"),
                         ["loss", "logps_chosen", "logps_rejected", "learning_rate"])
        # Nobody answers: quick, and quiet.
        self.assertEqual(self.offered("tercio", "get", "jo"), [])
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.agent(self.address, "node-seven", 1)
        job = self.submit(*layout(1, 1, 4))
        self.submit("--set", "name='$(touch harmed)'", *layout(1, 1, 4))
        self.soon(["small"], lambda: sorted(name for name in self.offered("tercio", "get", "") if not name.startswith("job-")))
        self.soon([job], lambda: self.offered("tercio", "get", job[:-1]))
        self.soon(["node-seven"], lambda: self.offered("tercio", "nodes", "drain", "node"))
        self.assertFalse(os.path.exists(self.path("harmed")))

    def test_zsh(self):
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.submit("--set", "name=shakespeare", *layout(1, 1, 4))
        for typed, completed in (("tercio get sha", "tercio get shakespeare"), ("tercio checkpoint ver", "tercio checkpoint verify")):
            self.soon(True, lambda: completed in self.shell("zsh", "-f", "-c", ZSH, "zsh", typed))  # noqa: B023

    def test_fish(self):
        _, ready = self.coordinator()
        self.address = ready["coordinator"]
        self.agent(self.address, "node-seven", 1)
        job = self.submit("--set", "name=shakespeare", *layout(1, 1, 4))
        offered = lambda line: [offer.split("\t")[0] for offer in self.shell(
            "fish", "--no-config", "-c", f"tercio completion fish | source; complete -C '{line}'").splitlines()]
        self.assertEqual(offered("tercio pl"), ["plan", "plot"])
        self.soon([job, "shakespeare"], lambda: sorted(offered("tercio get ")))
        self.assertEqual(offered("tercio get --coord"), ["--coordinator"])
        self.assertEqual(offered("tercio get x -o "), ["json", "jsonl"])
        self.soon(["node-seven"], lambda: offered("tercio nodes drain node"))
        self.assertIn("job.yaml", offered("tercio submit jo"))
        self.assertEqual(offered("tercio list "), [])


class Manual(TercioTest):

    def verbs(self, *words):
        """All verbs, as --help lists them."""
        out, _ = self.tercio(*words, "--help")
        listed = out.partition("Subcommands:\n")[2].partition("\n\n")[0]
        names = re.findall(r"^  (\S+)", listed, re.MULTILINE)
        return [[*words, name] for name in names] + [found for name in names for found in self.verbs(*words, name)]

    def rendered(self, path):
        done = subprocess.run(["man", "--warnings", "-l", path], capture_output=True, text=True, timeout=SECONDS, check=False,
                              env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "400", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""})
        self.assertEqual((done.returncode, done.stderr), (0, ""), path)
        return re.sub(".\b", "", done.stdout)

    def test_every_verb_and_option_has_its_place(self):
        self.tercio("man", "--output", self.path("man"))
        verbs = [[], *self.verbs()]
        self.assertGreater(len(verbs), 30)
        self.assertEqual(sorted(os.listdir(self.path("man"))), sorted("-".join(["tercio", *verb]) + ".1" for verb in verbs))
        for verb in verbs:
            text = self.rendered(self.path("man", "-".join(["tercio", *verb]) + ".1"))
            for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "SEE ALSO"):
                self.assertIn(f"\n{section}\n", text)
            told, _ = self.tercio(*verb, "--help")
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", told.partition("Options:\n")[2].partition("Subcommands:")[0]):
                self.assertIn(option, text, verb)
        page, _ = self.tercio("man", "checkpoint", "list")
        self.assertIn("TERCIO\\-CHECKPOINT\\-LIST", page)
        self.tercio("man", "nothing", code=3)

    def test_daemons(self):
        for program in ("tercio-coordinator", "tercio-agent"):
            run = lambda option: subprocess.run([os.path.join(BIN, program), option], capture_output=True, text=True,
                                                timeout=SECONDS, check=True).stdout
            path = self.path(program + ".8")
            with open(path, "w", encoding="utf-8") as file:
                file.write(run("--man"))
            text = self.rendered(path)
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", run("--help")):
                self.assertIn(option, text)
            self.assertIn("tercio(1)", text)


if __name__ == "__main__":
    python_cases.main()
