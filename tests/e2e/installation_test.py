"""deploy/install.sh: what it installs, keeps and removes, the units, and daemons as these run them."""

import os
import queue
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
import tarball_contents  # noqa: E402
from harness import BIN, ROOT, SECONDS, ClusterTest, TercioTest, layout, wait_for  # noqa: E402

INSTALL = os.path.join(ROOT, "deploy", "install.sh")
UNITS = ("tercio-coordinator.service", "tercio-agent.service")
# Bounds for systemd-analyze security, 0 best to 10 worst. The agent starts trainers, which need devices and executable
# memory.
EXPOSURE = {"tercio-coordinator.service": 2.0, "tercio-agent.service": 3.0}


def install(*arguments, code=0, destdir=None):
    environment = {k: v for k, v in os.environ.items() if k != "DESTDIR"}
    if destdir:
        environment["DESTDIR"] = destdir
    done = subprocess.run([INSTALL, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False, env=environment)
    assert done.returncode == code, f"install.sh {arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def files_below(root):
    return sorted(os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root) for name in names)


def content(path):
    with open(path, "rb") as file:
        return file.read()


class Layout(TercioTest):

    def test_files_modes_and_paths(self):
        root = self.path("root")
        install("--prefix", "/usr", destdir=root)
        found = files_below(root)
        for name in ("tercio", "tercio-coordinator", "tercio-agent", "tercio-trainer"):
            self.assertIn(f"usr/lib/tercio/bin/{name}", found)
            link = os.path.join(root, "usr/bin", name)
            self.assertEqual(os.readlink(link), f"../lib/tercio/bin/{name}")
        for name in ("usr/lib/systemd/system/tercio-coordinator.service", "usr/lib/systemd/system/tercio-agent.service",
                     "usr/lib/sysusers.d/tercio.conf", "usr/lib/tmpfiles.d/tercio.conf", "etc/tercio/coordinator.yaml",
                     "etc/tercio/agent.yaml", "usr/share/doc/tercio/LICENSE", "usr/share/doc/tercio/docs/operations.md", "usr/share/doc/tercio/deploy/kubernetes/base/coordinator.yaml",
                     "usr/share/bash-completion/completions/tercio", "usr/share/fish/vendor_completions.d/tercio.fish",
                     "usr/share/zsh/site-functions/_tercio", "usr/share/man/man1/tercio-submit.1", "usr/share/man/man8/tercio-agent.8",
                     "usr/lib/tercio/manifest"):
            self.assertIn(name, found)
        for name in found:
            path = os.path.join(root, name)
            if os.path.islink(path):
                continue
            mode = stat.S_IMODE(os.stat(path).st_mode)
            runs = name.startswith("usr/lib/tercio/bin/") or name.endswith("/install.sh")
            self.assertEqual(mode, 0o755 if runs else 0o644, name)
            # Nothing of the place where it was built, nor of the place it was staged in.
            for word in (ROOT, root, "/.cache/bazel", "@BINDIR@", "@SYSCONFDIR@", "@DOCDIR@"):
                self.assertNotIn(word.encode(), b"" if name.endswith("install.sh") else content(path), f"{word} in {name}")
        for name in ("", "/coordinator", "/agent"):
            self.assertEqual(stat.S_IMODE(os.stat(f"{root}/etc/tercio/credentials{name}").st_mode), 0o700)
        # All of it is in the manifest.
        manifest = {line.split(" ", 1)[1].lstrip("/") for line in content(os.path.join(root, "usr/lib/tercio/manifest")).decode().splitlines()}
        self.assertEqual(set(found) - manifest - {"usr/lib/tercio/manifest"}, set())

    def test_uninstall_leaves_the_configuration_and_purge_nothing(self):
        root = self.path("root")
        install("--prefix", "/opt/tercio", destdir=root)
        self.assertIn("configuration is kept", install("--prefix", "/opt/tercio", "--uninstall", destdir=root))
        self.assertEqual(files_below(root), ["etc/tercio/agent.yaml", "etc/tercio/coordinator.yaml"])
        self.assertIn("nothing is installed", install("--prefix", "/opt/tercio", "--uninstall", code=3, destdir=root))
        install("--prefix", "/opt/tercio", destdir=root)
        install("--prefix", "/opt/tercio", "--uninstall", "--purge", destdir=root)
        self.assertEqual(files_below(root), [])
        self.assertFalse(os.path.exists(os.path.join(root, "etc/tercio")))

    def test_a_folder_of_others_is_left_alone(self):
        root = self.path("root")
        install("--prefix", "/usr/local", destdir=root)
        theirs = os.path.join(root, "usr/local/bin/theirs")
        with open(theirs, "w", encoding="utf-8") as file:
            file.write("x")
        install("--prefix", "/usr/local", "--uninstall", "--purge", destdir=root)
        self.assertEqual(files_below(root), ["usr/local/bin/theirs"])

    def test_an_upgrade_keeps_configuration_and_removes_what_is_gone(self):
        root = self.path("root")
        install("--prefix", "/usr/local", destdir=root)
        config = os.path.join(root, "etc/tercio/coordinator.yaml")
        with open(config, "a", encoding="utf-8") as file:
            file.write("first-backoff: 3\n")
        changed = content(config)
        # What an older version had.
        old = os.path.join(root, "usr/local/lib/tercio/lib/libold.so.1")
        os.makedirs(os.path.dirname(old), exist_ok=True)
        for path, text in ((old, "old"), (os.path.join(root, "usr/local/lib/tercio/manifest"), "file /usr/local/lib/tercio/lib/libold.so.1\n")):
            with open(path, "a", encoding="utf-8") as file:
                file.write(text)
        program = os.path.join(root, "usr/local/lib/tercio/bin/tercio")
        before = os.stat(program).st_ino
        # A running program is replaced, not written into.
        running = subprocess.Popen([program, "completion", "bash"], stdout=subprocess.PIPE)
        install("--prefix", "/usr/local", destdir=root)
        running.communicate(timeout=SECONDS)
        self.assertNotEqual(os.stat(program).st_ino, before)
        self.assertEqual(content(config), changed)
        self.assertFalse(os.path.exists(old))
        self.assertEqual([name for name in files_below(root) if ".part" in name], [])

    def unpacked(self):
        """The tree that //deploy:tarball_slim would unpack to (its rules are read), with a library beside the programs."""
        tree = self.path("tercio")
        for place, path in tarball_contents.read().items():
            os.makedirs(os.path.dirname(os.path.join(tree, place)), exist_ok=True)
            built = os.path.join(BIN, os.path.basename(path))
            os.symlink(built if place.startswith("bin/") else path, os.path.join(tree, place))
            self.assertTrue(os.path.exists(os.path.join(tree, place)), f"{place}: {path}")
        for folder, name in (("lib", "libone.so.1"), ("lib/compat", "libcuda.so.1")):
            os.mkdir(os.path.join(tree, folder))
            with open(os.path.join(tree, folder, name), "w", encoding="utf-8") as file:
                file.write("a library")
        return tree

    def test_from_the_tarball(self):
        self.unpacked()
        archive = self.path("tercio-slim.tar.xz")
        subprocess.run(["tar", "-chJf", archive, "-C", self.directory, "tercio"], check=True, env={**os.environ, "XZ_OPT": "-0"})
        root = self.path("root")
        install("--prefix", "/usr/local", "--from", archive, destdir=root)
        found = files_below(root)
        for name in ("usr/local/lib/tercio/lib/libone.so.1", "usr/local/lib/tercio/lib/compat/libcuda.so.1", "usr/local/lib/systemd/system/tercio-agent.service", "etc/tercio/agent.yaml"):
            self.assertIn(name, found)

    def test_what_else_lies_in_a_folder_is_not_installed(self):
        """Python's cache, an editor's copies and stray files, in every folder of a tree and of the repository's rules."""
        tree = self.unpacked()
        install("--prefix", "/usr", "--from", tree, destdir=self.path("clean"))
        expected = files_below(self.path("clean"))
        self.assertIn("usr/share/doc/tercio/deploy/prometheus/rules/alerts.yml", expected)
        packed = set(tarball_contents.read(tree))
        for folder, _, names in list(os.walk(tree)):
            os.mkdir(os.path.join(folder, "__pycache__"))
            junk = ["__pycache__/x.cpython-311.pyc", "stray", "notes.txt", ".hidden.yaml.swp"]
            for name in names:
                junk += [f"{name}~", f".{name}", f"#{name}#", f"{name}.orig"]
            for name in junk:
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(ROOT)
        install("--prefix", "/usr", "--from", tree, destdir=self.path("littered"))
        self.assertEqual(files_below(self.path("littered")), expected)
        self.assertEqual(set(tarball_contents.read(tree)), packed)

    def test_a_tarball_has_the_documents_of_the_repository(self):
        """The lists of kinds in install.sh and in deploy/BUILD.bazel are equal."""
        install("--prefix", "/usr", destdir=self.path("repository"))
        install("--prefix", "/usr", "--from", self.unpacked(), destdir=self.path("tarball"))
        found = [[name for name in files_below(self.path(root, "usr/share/doc/tercio")) if name.startswith(("deploy/", "dashboards/"))]
                 for root in ("repository", "tarball")]
        self.assertGreater(len(found[0]), 20)
        self.assertEqual(*found)

    def test_the_installed_script_knows_its_place(self):
        prefix = self.path("place")
        install("--prefix", prefix)
        script = os.path.join(prefix, "lib/tercio/install.sh")
        done = subprocess.run([script, "--uninstall", "--purge"], capture_output=True, text=True, timeout=SECONDS, check=False,
                              env={k: v for k, v in os.environ.items() if k != "DESTDIR"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"removed Tercio from {prefix}", done.stdout)
        self.assertEqual(files_below(self.directory + "/place") if os.path.exists(prefix) else [], [])

    def test_help(self):
        self.assertIn("deploy/install.sh [--prefix", install("--help"))
        self.assertIn("unknown option --frobnicate", install("--frobnicate", code=2))

    @unittest.skipIf(os.getuid() != 0, "only root can become another user")
    def test_who_may_not_write_changes_nothing(self):
        os.chmod(self.directory, 0o755)
        script = self.path("install.sh")
        shutil.copy(INSTALL, script)
        os.makedirs(self.path("theirs"), mode=0o755)
        done = subprocess.run([script, "--prefix", self.path("theirs", "tercio")], capture_output=True, text=True, timeout=SECONDS,
                              check=False, user="nobody", cwd=self.directory)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"{self.path('theirs')} is not writable for nobody: run this as root, or choose another --prefix", done.stderr)

    def test_what_cannot_be(self):
        self.assertIn("does not exist", install("--from", self.path("nothing"), code=3))
        self.assertIn("no bin/tercio", install("--from", self.directory, code=1))
        self.assertIn("an absolute path", install("--prefix", "here", code=2))
        self.assertIn("only letters", install("--prefix", "/opt/two words", code=2))
        self.assertIn("--purge is only valid with", install("--purge", code=2))
        self.assertIn("install.sh [--prefix", install("--wrong", code=2))
        with open(self.path("not.tar.gz"), "w", encoding="utf-8") as file:
            file.write("no archive")
        self.assertIn("cannot unpack", install("--from", self.path("not.tar.gz"), code=1))


class Units(TercioTest):

    def setUp(self):
        super().setUp()
        self.prefix = self.path("installed")
        install("--prefix", self.prefix)
        self.units = {unit: os.path.join(self.prefix, "lib/systemd/system", unit) for unit in UNITS}

    def analyze(self, *arguments):
        return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)

    def test_systemd_finds_no_fault(self):
        done = self.analyze("verify", "--man=no", "--recursive-errors=no", *self.units.values())
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        broken = self.path("broken.service")
        with open(broken, "w", encoding="utf-8") as file:
            file.write(content(self.units[UNITS[0]]).decode().replace("WatchdogSec=60", "WatchdogSec=sixty"))
        self.assertIn("sixty", self.analyze("verify", "--man=no", "--recursive-errors=no", broken).stderr)

    def test_exposure(self):
        for unit, path in self.units.items():
            done = self.analyze("security", "--offline=true", "--no-pager", path)
            found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
            self.assertTrue(found, done.stdout + done.stderr)
            self.assertLess(float(found.group(1)), EXPOSURE[unit], done.stdout)

    def test_what_an_agent_needs_to_find_its_trainers_again(self):
        settings = content(self.units["tercio-agent.service"]).decode().splitlines()
        for line in ("KillMode=process", "RestartKillSignal=SIGUSR1", "RuntimeDirectory=tercio-agent", "RuntimeDirectoryPreserve=restart",
                     "Restart=always", "Type=notify", "NotifyAccess=main"):
            self.assertIn(line, settings)

    def test_users_and_folders(self):
        for kind, name in (("sysusers", "sysusers.d"), ("tmpfiles", "tmpfiles.d")):
            root = self.path(kind)
            for folder in ("etc", "usr/lib", "var", "run"):
                os.makedirs(os.path.join(root, folder), exist_ok=True)
            tool = ["systemd-sysusers"] if kind == "sysusers" else ["systemd-tmpfiles", "--create"]
            done = subprocess.run([*tool, f"--root={root}", os.path.join(self.prefix, "lib", name, "tercio.conf")], capture_output=True,
                                  text=True, timeout=SECONDS, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
        users = content(self.path("sysusers", "etc", "passwd")).decode()
        for user in ("tercio:", "tercio-agent:"):
            self.assertIn("\n" + user, "\n" + users)
        # Every user and group that a unit names is made.
        groups = content(self.path("sysusers", "etc", "group")).decode()
        for path in self.units.values():
            for line in content(path).decode().splitlines():
                if line.startswith(("Group=", "SupplementaryGroups=")):
                    for group in line.split("=", 1)[1].split():
                        self.assertIn(f"\n{group}:", "\n" + groups)


class Manager:
    """systemd's side: the socket of sd_notify, read all the time."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.seen = []
        self.news = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        while True:
            try:
                self.news.put(self.socket.recv(4096).decode())
            except OSError:
                return

    def wait_for(self, start, seconds=SECONDS):
        """The next message that begins so; queue.Empty when there is none for that time."""
        while True:
            self.seen.append(self.news.get(timeout=seconds))
            if self.seen[-1].startswith(start):
                return self.seen[-1]


class AsAService(ClusterTest):
    """The installed programs, started, reloaded and restarted as the units say."""

    def setUp(self):
        super().setUp()
        self.prefix = self.path("p")
        install("--prefix", self.prefix)
        self.runtime = self.path("run")
        os.mkdir(self.runtime)
        self.managers = {}

    def config(self, program, **settings):
        path = os.path.join(self.prefix, "etc/tercio", f"{program}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{key.replace('_', '-')}: {value}\n" for key, value in settings.items())
        return path

    def unit(self, program, **settings):
        """What the unit starts, with what systemd would set; the agent with the folder that it keeps over restarts."""
        path = self.config(program, **settings)
        manager = Manager(self.path(f"n{len(self.daemons)}"))
        log = open(self.path(f"{program}.{len(self.daemons)}.log"), "w", encoding="utf-8")
        environment = {**self.environment(), "NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "400000", "RUNTIME_DIRECTORY": self.runtime}
        child = subprocess.Popen([f"{self.prefix}/bin/tercio-{program}", "--config", path], stdout=subprocess.PIPE, stderr=log, text=True,
                                 env=environment, stdin=subprocess.DEVNULL)
        child.log = log.name
        log.close()
        self.daemons.append(child)
        manager.wait_for("READY=1")
        ready = dict(part.split("=", 1) for part in child.stdout.readline().split()[1:])
        return child, manager, ready

    def start_coordinator(self, **settings):
        child, manager, ready = self.unit("coordinator", **{"state_dir": self.state, "listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0",
                                                            "first_backoff": 0.2, **settings})
        self.address = ready["coordinator"]
        return child, manager

    def start_agent(self, **settings):
        return self.unit("agent", **{"coordinator": self.address, "state_dir": self.path("agent"), "name": "one", "slots": 4,
                                     "metrics_listen": "127.0.0.1:0", "stop_grace": 5, **settings})[:2]

    def log_of(self, child):
        return content(child.log).decode()

    def test_watchdog_status_reload_and_stop(self):
        coordinator, manager = self.start_coordinator()
        manager.wait_for("WATCHDOG=1")
        self.assertIn("STATUS=0 nodes, 0 jobs running, 0 queued", manager.seen)
        agent, agents_manager = self.start_agent()
        agents_manager.wait_for("WATCHDOG=1")
        agents_manager.wait_for("STATUS=node one, 0 runs, coordinator " + self.address)
        manager.wait_for("STATUS=1 nodes")
        # A change that counts at once, and one that does not.
        self.config("coordinator", state_dir=self.state, listen="127.0.0.1:1", metrics_listen="127.0.0.1:0", first_backoff=0.2,
                    allow_drills="true")
        coordinator.send_signal(signal.SIGHUP)
        self.assertIn("MONOTONIC_USEC=", manager.wait_for("RELOADING=1"))
        manager.wait_for("READY=1")
        self.assertIn("changed: --allow-drills", self.log_of(coordinator))
        self.assertIn("changes that need a restart: --listen", self.log_of(coordinator))
        err = self.tercio(*self.reach("drill", "nobody", "--fault", "kill-trainer", "--rank", "0"), code=3)[1]
        self.assertNotIn("not allowed", err)
        # A file with faults changes nothing.
        self.config("coordinator", state_dir=self.state, max_streams="many")
        coordinator.send_signal(signal.SIGHUP)
        manager.wait_for("RELOADING=1")
        manager.wait_for("READY=1")
        self.assertIn("the previous one stays in use", self.log_of(coordinator))
        self.config("agent", coordinator=self.address, state_dir=self.path("agent"), name="one", slots=4, metrics_listen="127.0.0.1:0",
                    stop_grace=6, snapshot_reserve="2GiB")
        agent.send_signal(signal.SIGHUP)
        agents_manager.wait_for("RELOADING=1")
        agents_manager.wait_for("READY=1")
        self.assertIn("changed: --snapshot-reserve, --stop-grace", self.log_of(agent))
        for child, listener in ((agent, agents_manager), (coordinator, manager)):
            child.send_signal(signal.SIGTERM)
            listener.wait_for("STOPPING=1")
            self.assertEqual(child.wait(SECONDS), 0)

    def test_a_daemon_that_stands_still_feeds_no_watchdog(self):
        coordinator, manager = self.start_coordinator()
        manager.wait_for("WATCHDOG=1")
        os.kill(coordinator.pid, signal.SIGSTOP)
        with self.assertRaises(queue.Empty):
            while True:
                manager.wait_for("WATCHDOG=1", 2)  # ten times the interval of the pings
        os.kill(coordinator.pid, signal.SIGCONT)
        manager.wait_for("WATCHDOG=1")

    def test_started_twice(self):
        self.start_coordinator()
        self.start_agent()
        for name, said in (("coordinator", "cannot use the state directory"), ("agent", "another agent uses the state directory")):
            done = subprocess.run([f"{self.prefix}/bin/tercio-{name}", "--config", os.path.join(self.prefix, "etc/tercio", f"{name}.yaml")],
                                  capture_output=True, text=True, timeout=SECONDS, check=False, env=self.environment())
            self.assertEqual(done.returncode, 7, done.stderr)
            self.assertIn(said, done.stderr)
            self.assertEqual(done.stderr.count("error: "), 1)

    def test_upgrade_with_a_running_job(self):
        """Installed over the running one, then restarted with the unit's signals: first the coordinator, then the agent."""
        coordinator, _ = self.start_coordinator()
        agent, _ = self.start_agent()
        job = self.submit("--set", "training.steps=800", *layout(1, 1, 2))
        self.after_step(job, 20)
        trainers = self.trainers(job)
        old = os.stat(os.path.join(self.prefix, "lib/tercio/bin/tercio-trainer")).st_ino
        install("--prefix", self.prefix)
        self.assertNotEqual(os.stat(os.path.join(self.prefix, "lib/tercio/bin/tercio-trainer")).st_ino, old)
        port = int(self.address.rsplit(":", 1)[1])
        coordinator.send_signal(signal.SIGTERM)
        self.assertEqual(coordinator.wait(SECONDS), 0)
        self.start_coordinator(listen=f"127.0.0.1:{port}")
        agent.send_signal(signal.SIGUSR1)  # RestartKillSignal=
        self.assertEqual(agent.wait(SECONDS), 0)
        self.assertEqual(self.trainers(job), trainers)
        self.start_agent()
        step = self.get(job)["step"]
        self.after_step(job, step)
        self.assertEqual(self.trainers(job), trainers, "others than before")
        status = self.json(*self.reach("wait", job))
        self.assertEqual((status["state"], status["step"], status["attempt"], status["restarts"]), ("succeeded", 800, 1, 0))
        # What ran after the upgrade was what had been running before it; the next job runs the new programs.
        wait_for(lambda: not self.trainers(job), "the end of the trainers")


if __name__ == "__main__":
    python_cases.main()
