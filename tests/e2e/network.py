"""Network namespaces of a test's own: each has one interface on a bridge that they share. Needs root."""

import os
import subprocess


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


def why_not():
    """Empty where this machine lets the test make namespaces."""
    name = f"tercio-try-{os.getpid()}"
    try:
        tried = ip("netns", "add", name)
        if tried.returncode != 0:
            return f"no network namespaces here: {tried.stderr.strip()}"
        tried = ip("-n", name, "link", "add", "br0", "type", "bridge")
        return f"no bridges here: {tried.stderr.strip()}" if tried.returncode != 0 else ""
    except OSError as error:
        return f"no network namespaces here: {error}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class Network:
    """Belongs to a test, whose clean-ups take it away; the test is skipped where it cannot be made."""

    def __init__(self, test):
        reason = why_not()
        if reason:
            test.skipTest(reason)
        self.test = test
        self.spaces = {}
        self.addresses = {}
        self.switch = self.add_space("switch")
        self.checked(ip("-n", self.switch, "link", "add", "br0", "type", "bridge"))
        self.checked(ip("-n", self.switch, "link", "set", "br0", "up"))

    def checked(self, done):
        self.test.assertEqual(done.returncode, 0, done.stderr)

    def add_space(self, name):
        space = f"tercio-{os.getpid()}-{name}"
        self.checked(ip("netns", "add", space))
        self.test.addCleanup(ip, "netns", "del", space)
        self.checked(ip("-n", space, "link", "set", "lo", "up"))
        return space

    def plug_in(self, name):
        """A namespace with the next address."""
        number = len(self.spaces) + 1
        space, port = self.add_space(name), f"port{number}"
        self.checked(ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self.switch))
        self.checked(ip("-n", space, "addr", "add", f"10.231.7.{number}/24", "dev", "eth0"))
        self.checked(ip("-n", space, "link", "set", "eth0", "up"))
        self.checked(ip("-n", self.switch, "link", "set", port, "master", "br0"))
        self.checked(ip("-n", self.switch, "link", "set", port, "up"))
        self.spaces[name], self.addresses[name] = space, f"10.231.7.{number}"

    def inside(self, name):
        """The words before a command that runs in the namespace."""
        return ["ip", "netns", "exec", self.spaces[name]]

    def between(self, a, b, change):
        """Packets between the two vanish ("add") or pass again ("del")."""
        for here, there in ((a, b), (b, a)):
            self.checked(ip("-n", self.spaces[here], "route", change, "blackhole", self.addresses[there] + "/32"))
