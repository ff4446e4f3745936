"""A fresh Debian 12 (debootstrap), in which nothing but the installed files is: daemons start, a job trains. Once with deploy/install.sh,
once as the image that buildah makes by the Containerfile, with its user and with the daemons as the first processes of their containers.
Needs root and a mirror.
"""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
import tarball_contents  # noqa: E402
from harness import BIN, ROOT, TercioTest, wait_for  # noqa: E402

MINUTES = 60
# In a namespace of its own, so that what is mounted is never seen, nor left behind, outside: the test removes its folders. The tree has
# the devices that debootstrap has made, never those of this machine.
APART = ("unshare", "--mount", "--propagation", "private")
# Without /sys glibc's malloc, which asks for the number of processors, sets errno where gRPC does not expect it.
CHROOT = ("sh", "-ec", 'mount -t proc proc "$1/proc"; mount -t sysfs -o ro sysfs "$1/sys"; shift; exec /usr/sbin/chroot "$@"', "sh")


class FreshDebian(TercioTest):

    debian = None  # a tree that stays as it is

    @classmethod
    def tearDownClass(cls):
        if cls.debian is not None:
            shutil.rmtree(cls.debian)

    def setUp(self):
        super().setUp()
        self.root = self.path("debian")
        self.children = []
        self.addCleanup(self.leave)
        if FreshDebian.debian is None:
            FreshDebian.debian = tempfile.mkdtemp(prefix="tercio-debian.")
            os.chmod(FreshDebian.debian, 0o755)
            self.command(*APART, "debootstrap", "--variant=minbase", "bookworm", FreshDebian.debian)
        self.command("cp", "-a", FreshDebian.debian, self.root)
        # Nothing of what Tercio needs is there.
        self.assertFalse(os.path.exists(os.path.join(self.root, "usr/lib/x86_64-linux-gnu/libprotobuf.so.32")))

    def leave(self):
        for child in reversed(self.children):
            if child.poll() is None:
                self.terminate(child)
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()  # and, by --kill-child, what it has started
                child.wait()
            child.stdout.close()

    def terminate(self, child):
        """SIGTERM to the daemon: `unshare --fork` stands before it and does not hand signals on."""
        inner = subprocess.run(["pgrep", "-P", str(child.pid)], capture_output=True, text=True, check=False).stdout.split()
        os.kill(int(inner[0]) if child.stands_before else child.pid, signal.SIGTERM)

    def command(self, *arguments, seconds=20 * MINUTES):
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=seconds, check=False)
        logs = "" if done.returncode == 0 else "".join(open(path, encoding="utf-8").read()[-2000:] for path in glob.glob(self.path("*.log")))
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}{logs}")
        return done.stdout

    def inside(self, *arguments):
        return self.command(*APART, *CHROOT, self.root, self.root, *arguments, seconds=5 * MINUTES)

    def daemon_inside(self, user, *arguments, first=False, variables=()):
        """`first`: in a process number space of its own, as its process 1, as in a container."""
        log = open(self.path(f"{os.path.basename(arguments[0])}.log"), "w", encoding="utf-8")
        pids = ("--pid", "--fork", "--kill-child") if first else ()
        child = subprocess.Popen([*APART, *pids, *CHROOT, self.root, f"--userspec={user}:{user}", self.root, *arguments], stdout=subprocess.PIPE,
                                 stderr=log, text=True, env={"PATH": "/usr/bin:/bin:/usr/sbin", **dict(variables)})
        child.stands_before = first
        log.close()
        self.children.append(child)
        line = child.stdout.readline()
        with open(log.name, encoding="utf-8") as file:
            self.assertTrue(line.startswith("ready "), line + file.read())
        return child

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
        shutil.copy(self.tarball(), os.path.join(self.root, "srv", "tercio.tar.gz"))
        self.inside("tar", "xf", "/srv/tercio.tar.gz", "-C", "/srv")
        said = self.inside("/srv/tercio/deploy/install.sh", "--prefix", "/usr")
        self.assertIn("systemctl daemon-reload", said)
        self.inside("rm", "-r", "/srv/tercio", "/srv/tercio.tar.gz")
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

    def buildah(self, *arguments):
        """An image engine without a daemon, with a store of its own."""
        store = ("--root", self.path("images"), "--runroot", self.path("images-run"), "--storage-driver", "vfs")
        return self.command(*APART, "buildah", *store, *arguments).strip()

    def build_image(self):
        """Builds both images, and makes the one for CPUs the tree. Returns its user and environment."""
        with tarfile.open(self.tarball()) as archive:
            archive.extractall(self.path("context"))
        context = self.path("context", "tercio")
        base = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", base, FreshDebian.debian, "/")
        self.buildah("commit", "--quiet", base, "docker.io/library/debian:12-slim")
        for name in ("Containerfile.cuda", "Containerfile"):
            self.buildah("bud", "--isolation", "chroot", "--pull-never", "--file", os.path.join(context, "deploy", name), "--tag", "tercio:test", context)
        config = json.loads(self.buildah("inspect", "--type", "image", "localhost/tercio:test"))["OCIv1"]["config"]
        self.assertEqual(config["Entrypoint"], ["/opt/tercio/bin/tercio"])
        shutil.rmtree(self.root)
        self.command("cp", "-a", self.buildah("mount", self.buildah("from", "--pull-never", "localhost/tercio:test")), self.root)
        return config["User"].split(":")[0], [word.split("=", 1) for word in config["Env"]]

    def test_the_image(self):
        user, variables = self.build_image()
        for name in ("corpus.txt", "job.yaml"):
            shutil.copy(self.path(name), os.path.join(self.root, "srv", name))
        programs = dict(variables)["PATH"].split(":")[0]
        self.daemon_inside(user, f"{programs}/tercio-coordinator", "--state-dir", "/var/lib/tercio", "--listen", "127.0.0.1:17078",
                           "--metrics-listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0", first=True, variables=variables)
        agent = self.daemon_inside(user, f"{programs}/tercio-agent", "--coordinator", "127.0.0.1:17078", "--state-dir", "/var/lib/tercio-agent",
                                   "--name", "one", "--slots", "2", "--metrics-listen", "127.0.0.1:0", "--stop-grace", "30", first=True,
                                   variables=variables)
        reach = ("--coordinator", "127.0.0.1:17078")
        job = self.inside(f"{programs}/tercio", "submit", "/srv/job.yaml", *reach, "--set", "training.steps=100000", "--set", "checkpoint.every_steps=0",
                          "--set", "parallelism.data=2", "--set", "resources.ranks=2").strip()

        def get():
            return json.loads(self.inside(f"{programs}/tercio", "get", job, *reach, "-o", "json"))
        wait_for(lambda: get()["step"] > 20, "steps")
        # What the kubelet sends. The job saves, although it never would by itself, and waits for another node.
        self.terminate(agent)
        agent.wait(60)
        status = wait_for(lambda: (now := get())["state"] == "restarting" and now, "a job that waits")
        self.assertIn("waiting", status["error"])
        self.assertEqual(status["restarts"], 0, status)
        self.assertGreater(status["checkpoint"]["step"], 20)


if __name__ == "__main__":
    python_cases.main()
