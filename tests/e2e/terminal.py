"""Runs a program on a terminal of its own, as a person would."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time


class Terminal:
    """A program on a pseudo-terminal, and what it has drawn."""

    def __init__(self, arguments, environment, rows=24, columns=120):
        self.process, self.master = None, None
        self.master, slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen(arguments, stdin=slave, stdout=slave, stderr=slave, env=environment,
                                        start_new_session=True, preexec_fn=self.control)
        self.drawn = b""

    @staticmethod
    def control():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds=0.1, limit=2):
        """All that was drawn, when nothing follows for `seconds`, or after `limit`: a job of small steps never pauses."""
        end = time.monotonic() + limit
        while time.monotonic() < end and select.select([self.master], [], [], seconds)[0]:
            try:
                self.drawn += os.read(self.master, 65536)
            except OSError:
                break
        return self.drawn.decode(errors="replace")

    def screen(self):
        """The lines of the last picture."""
        picture = self.read().split("\x1b[H")[-1].split("\x1b[J")[0]
        return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in picture.replace("\r", "").split("\n")]

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.slave)
        os.close(self.master)
