"""A fresh Debian 12 (debootstrap), in which nothing but the installed files is: daemons start, a job trains. Needs root and a mirror."""

import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
import tarball_contents  # noqa: E402
from harness import BIN, ROOT, TercioTest, wait_for  # noqa: E402

MINUTES = 60


class FreshDebian(TercioTest):

    def setUp(self):
        super().setUp()
        self.root = self.path("debian")
        self.children = []
        self.addCleanup(self.leave)
        self.command("debootstrap", "--variant=minbase", "bookworm", self.root)

    def leave(self):
        for child in reversed(self.children):
            child.terminate()
            child.wait(60)
            child.stdout.close()
        for place in ("proc", "dev"):
            subprocess.run(["umount", "-l", os.path.join(self.root, place)], capture_output=True, check=False)

    def command(self, *arguments, seconds=20 * MINUTES):
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=seconds, check=False)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def inside(self, *arguments):
        return self.command("chroot", self.root, *arguments, seconds=5 * MINUTES)

    def daemon_inside(self, user, *arguments):
        log = open(self.path(f"{os.path.basename(arguments[0])}.log"), "w", encoding="utf-8")
        child = subprocess.Popen(["chroot", f"--userspec={user}:{user}", self.root, *arguments], stdout=subprocess.PIPE, stderr=log, text=True,
                                 env={"PATH": "/usr/bin:/bin"})
        log.close()
        self.children.append(child)
        line = child.stdout.readline()
        self.assertTrue(line.startswith("ready "), line)

    def tarball(self):
        """What deploy/package.py packs of the programs in ./bin."""
        path = self.path("tercio.tar.gz")
        folders = {}
        for place, source in tarball_contents.read().items():
            if place.startswith("bin/"):
                source = os.path.realpath(os.path.join(BIN, os.path.basename(place)))
            folders.setdefault(os.path.dirname(place), []).append(source)
        into = [word for folder, files in folders.items() for word in ("--into", folder, *files)]
        self.command(sys.executable, os.path.join(ROOT, "deploy", "package.py"), "--output", path, "--top", "tercio", "--version-file",
                     os.path.join(ROOT, "common", "version.cc"), *into)
        return path

    def test_a_job_trains_on_the_installed_files(self):
        self.assertFalse(os.path.exists(os.path.join(self.root, "usr/lib/x86_64-linux-gnu/libprotobuf.so.32")))
        shutil.copy(self.tarball(), os.path.join(self.root, "root", "tercio.tar.gz"))
        for place in ("proc", "dev"):
            self.command("mount", "--bind", f"/{place}", os.path.join(self.root, place))
        self.inside("tar", "xf", "/root/tercio.tar.gz", "-C", "/root")
        said = self.inside("/root/tercio/deploy/install.sh", "--prefix", "/usr")
        self.assertIn("systemctl daemon-reload", said)
        self.inside("rm", "-r", "/root/tercio", "/root/tercio.tar.gz")
        # minbase has no systemd; its users by hand, as tercio.sysusers says.
        for user in ("tercio", "tercio-agent"):
            self.inside("useradd", "--system", "--create-home", "--home-dir", f"/var/lib/{user}", user)
        config = {"coordinator": "state-dir: /var/lib/tercio\nlisten: 127.0.0.1:17077\nmetrics-listen: 127.0.0.1:0\n",
                  "agent": "coordinator: 127.0.0.1:17077\nstate-dir: /var/lib/tercio-agent\nname: one\nslots: 2\nmetrics-listen: 127.0.0.1:0\n"}
        for name, text in config.items():
            with open(os.path.join(self.root, "etc", "tercio", f"{name}.yaml"), "w", encoding="utf-8") as file:
                file.write(text)
        for name, user in (("coordinator", "tercio"), ("agent", "tercio-agent")):
            self.daemon_inside(user, f"/usr/bin/tercio-{name}", "--config", f"/etc/tercio/{name}.yaml")
        for name in ("corpus.txt", "job.yaml"):
            shutil.copy(self.path(name), os.path.join(self.root, "srv", name))
        job = self.inside("tercio", "submit", "/srv/job.yaml", "--coordinator", "127.0.0.1:17077", "--set", "training.steps=20", "--set",
                          "parallelism.data=2", "--set", "resources.ranks=2").strip()
        status = json.loads(self.inside("tercio", "wait", job, "--coordinator", "127.0.0.1:17077", "-o", "json"))
        self.assertEqual((status["state"], status["step"]), ("succeeded", 20))
        wait_for(lambda: not self.trainers(job), "the end of the trainers")
        self.inside("/usr/lib/tercio/install.sh", "--prefix", "/usr", "--uninstall", "--purge")
        left = self.inside("find", "/usr", "/etc", "-name", "*tercio*")
        self.assertEqual(left, "")


if __name__ == "__main__":
    python_cases.main()
