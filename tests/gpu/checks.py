"""Parts of a run and their checks: each has an outcome, and one that fails keeps none of the others from running."""

import contextlib
import sys
import time
import traceback


class Failure(Exception):
    """A check does not hold, or a program did not do its work."""


class Skip(Exception):
    """A check cannot be made on this machine, and why."""


class Part:
    """One part: a time limit for all that its checks start, and their outcomes."""

    def __init__(self, name, seconds):
        self.name = name
        self.seconds = seconds
        self.begin = time.monotonic()
        self.checks = []

    def remaining(self):
        """Seconds that are left of the limit. A part that has used it up fails where it is."""
        left = self.begin + self.seconds - time.monotonic()
        if left <= 0:
            raise Failure(f"the time limit of this part, {self.seconds:.0f} s, is over")
        return left

    def run(self, function, *arguments):
        """function(part, *arguments); what goes wrong between its checks is a check that failed."""
        try:
            function(self, *arguments)
        except Exception as error:
            with self.check("between two checks"):
                raise error

    @contextlib.contextmanager
    def check(self, name):
        """What is measured goes into the numbers that it gives; an exception is the outcome, and is kept."""
        entry = {"part": self.name, "name": name, "outcome": "passed", "reason": "", "seconds": 0.0, "numbers": {}}
        begin = time.monotonic()
        # Where the time is over, the first program that is started says so: a check that is not entered would end the whole run.
        try:
            yield entry["numbers"]
        except Skip as skip:
            entry.update(outcome="skipped", reason=str(skip))
        except Failure as failure:
            entry.update(outcome="failed", reason=str(failure))
        except Exception as error:  # a fault of these scripts, or a program that prints what it should not
            where = traceback.extract_tb(error.__traceback__)[-1]
            entry.update(outcome="failed", reason=f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})")
        entry["seconds"] = round(time.monotonic() - begin, 2)
        self.checks.append(entry)
        print(f"{entry['outcome']:8}{self.name}: {name} ({entry['seconds']:.1f} s)"
              f"{': ' if entry['reason'] else ''}{entry['reason']}", file=sys.stderr, flush=True)


def require(condition, reason):
    if not condition:
        raise Failure(reason)


def wait_for(part, condition, what):
    """The first true value of condition(); fails when the part's time is over."""
    while True:
        value = condition()
        if value:
            return value
        try:
            part.remaining()
        except Failure as failure:
            raise Failure(f"waited in vain for {what}: {failure}") from None
        time.sleep(0.02)
