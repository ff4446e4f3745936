"""deploy/package.py: what it packs runs wherever it is unpacked, with its own libraries only, and the same input gives the same bytes."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import BIN, ROOT, SECONDS, TercioTest  # noqa: E402

PACKAGE = os.path.join(ROOT, "deploy", "package.py")
PROGRAMS = ("tercio", "tercio-coordinator", "tercio-agent", "tercio-trainer")
GLIBC = re.compile(r"(ld-linux-x86-64|lib(c|m|pthread|dl|rt|resolv))\.so\.\d+")
BARE = ("env", "-i", "PATH=/usr/bin:/bin")


class Tarball(TercioTest):

    def pack(self, name, *more, programs=PROGRAMS):
        """Programs of ./bin (or by their path), as //deploy:tarball packs them."""
        path = self.path(name)
        done = subprocess.run(
            [sys.executable, PACKAGE, "--output", path, "--top", "tercio", "--version-file", os.path.join(ROOT, "common", "version.cc"),
             "--into", "bin", *(os.path.realpath(os.path.join(BIN, program)) for program in programs),
             "--into", "tests", os.path.join(ROOT, "tests", "gpu.sh"), *more],
            capture_output=True, text=True, timeout=SECONDS, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    def unpack(self, archive):
        """Into a folder whose name has a space, which is moved then."""
        first, moved = self.path("first place"), self.path("other place")
        with tarfile.open(archive) as opened:
            opened.extractall(first)
        os.rename(first, moved)
        return os.path.join(moved, "tercio")

    def bare(self, *command):
        done = subprocess.run([*BARE, f"HOME={self.path('home')}", *command], capture_output=True, text=True, timeout=SECONDS,
                              check=False, cwd=self.directory)
        self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def test_folders_keep_the_places_of_their_files(self):
        pages = self.path("pages")
        self.tercio("man", "--output", os.path.join(pages, "man1"))
        tree = self.unpack(self.pack("tercio.tar.gz", "--into", "man", pages, programs=PROGRAMS[:1]))
        self.assertEqual(sorted(os.listdir(os.path.join(tree, "man", "man1"))), sorted(os.listdir(os.path.join(pages, "man1"))))
        with open(os.path.join(tree, "man", "man1", "tercio-submit.1"), encoding="utf-8") as file:
            self.assertIn("tercio\\-submit", file.read())

    def test_it_runs_wherever_it_lies(self):
        tree = self.unpack(self.pack("tercio.tar.gz"))
        os.mkdir(self.path("home"))
        job = json.loads(self.bare(os.path.join(tree, "bin", "tercio"), "run", self.path("job.yaml"), "--set", "training.steps=6",
                                   "--set", "parallelism.data=2", "--set", "resources.ranks=2", "-o", "json"))
        self.assertEqual((job["state"], job["step"]), ("succeeded", 6))
        taken = set()
        for program in PROGRAMS:
            path = os.path.join(tree, "bin", program)
            for line in self.bare("ldd", path).splitlines():
                name, arrow, found = line.strip().partition(" => ")
                if not arrow or GLIBC.fullmatch(name):
                    continue
                taken.add(name)
                self.assertEqual(os.path.realpath(found.rsplit(" (", 1)[0]),
                                 os.path.realpath(os.path.join(tree, "lib", name)), line)
            dynamic = self.bare("readelf", "-d", path)
            self.assertEqual(re.findall(r"\((RPATH|RUNPATH)\).*\[(.*)\]", dynamic), [("RPATH", "$ORIGIN/../lib")])
        # Nothing else, no library of GPUs, none of the C library or the driver.
        self.assertEqual(set(os.listdir(os.path.join(tree, "lib"))), taken)
        self.assertFalse([name for name in taken if re.match(r"lib(c|cu[bdr].*|nccl|nv.*)\.so", name)])
        with open(os.path.join(tree, "VERSION"), encoding="utf-8") as file:
            self.assertRegex(file.read(), r"^tercio \d+\.\d+\.\d+\ncommit unknown\nneeds x86-64 with AVX2, glibc 2\.\d+ or later\n$")
        with open(os.path.join(tree, "LICENSES"), encoding="utf-8") as file:
            licenses = file.read()
        for name in taken:
            self.assertIn(f"\n{name}: Debian's ", licenses)
        self.assertTrue(os.access(os.path.join(tree, "tests", "gpu.sh"), os.X_OK))

    def test_the_same_programs_give_the_same_bytes(self):
        with open(self.path("status"), "w", encoding="utf-8") as file:
            file.write("STABLE_TERCIO_COMMIT abc\nSTABLE_TERCIO_COMMIT_SECONDS 1700000000\n")
        # xz is slow, so it gets a smaller program.
        archives = [self.pack(f"{i}.{kind}", "--status", self.path("status"), programs=(program,))
                    for kind, program in (("tar.gz", "tercio"), ("tar.xz", "/usr/bin/python3")) for i in range(2)]
        contents = []
        for path in archives:
            with open(path, "rb") as file:
                contents.append(file.read())
        self.assertTrue(contents[0] == contents[1], "other bytes of .tar.gz")
        self.assertTrue(contents[2] == contents[3], "other bytes of .tar.xz")
        with tarfile.open(archives[0]) as archive:
            for entry in archive:
                self.assertEqual((entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname), (1700000000, 0, 0, "", ""), entry.name)
                self.assertIn(entry.mode, (0o644, 0o755), entry.name)
            version = archive.extractfile("tercio/VERSION").read().decode()
        self.assertIn("\ncommit abc\n", version)

    def test_order_times_modes_and_places_of_the_input_do_not_count(self):
        """The same files, given in another order, of another time, from another folder, with another mask."""
        contents = []
        for i, mask in enumerate((0o022, 0o077)):
            folder = self.path(f"input{i}" + "x" * 30 * i)
            os.mkdir(folder, 0o755)
            sources = []
            for name in ("tercio", "tercio-agent"):
                sources.append(shutil.copy(os.path.realpath(os.path.join(BIN, name)), os.path.join(folder, name)))
            for name in ("b.yaml", "a.yaml", "c.yaml"):
                sources.append(os.path.join(folder, name))
                with open(sources[-1], "w", encoding="utf-8") as file:
                    file.write(name)
            for source in sources:
                os.utime(source, (1e9 + i, 1e9 + i))
            order = sources if i == 0 else sources[::-1]
            done = subprocess.run([sys.executable, PACKAGE, "--output", os.path.join(folder, "x.tar.gz"), "--top", "tercio", "--into", "files", *order],
                                  capture_output=True, text=True, timeout=SECONDS, check=False, umask=mask, cwd=folder,
                                  env={**os.environ, "TZ": ("UTC", "Asia/Tokyo")[i], "PYTHONHASHSEED": str(i)})
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(os.path.join(folder, "x.tar.gz"), "rb") as file:
                contents.append(file.read())
        self.assertTrue(contents[0] == contents[1], "other bytes")

    def test_libraries_of_the_toolkit_are_left_out_of_the_slim_one_and_named(self):
        """The toolkit is a folder with a library that a program needs, here."""
        toolkit = self.path("toolkit")
        os.mkdir(toolkit)
        found = subprocess.run(["ldd", os.path.join(BIN, "tercio")], capture_output=True, text=True, check=True).stdout
        name, path = re.search(r"(libxxhash\.so\.\d+) => (\S+)", found).groups()
        shutil.copy(path, os.path.join(toolkit, name))
        # NVIDIA's package for older drivers lies beside the toolkit's libraries.
        os.mkdir(self.path("compat"))
        for file in ("libcuda.so.1", "libcuda.so.580.65.06"):
            shutil.copy(path, os.path.join(self.path("compat"), file))
        for slim in ((), ("--slim",)):
            archive = self.pack(f"toolkit{len(slim)}.tar.gz", "--toolkit", toolkit, *slim, programs=("tercio",))
            with tarfile.open(archive) as opened:
                names = opened.getnames()
                version = opened.extractfile("tercio/VERSION").read().decode()
            self.assertEqual(f"tercio/lib/{name}" in names, not slim)
            self.assertEqual([n for n in names if "compat" in n], [] if slim else ["tercio/lib/compat/libcuda.so.1"])
            self.assertEqual(version.count(f"are not included, programs for GPUs look for: {name}\n"), len(slim))

    def test_what_a_program_loads_itself_comes_with_its_parts(self):
        """cuDNN, which no program is linked with: one that holds its name gets all that lies beside it, another gets nothing."""
        toolkit, names = self.path("toolkit"), {"libcudnn.so.9", "libcudnn_graph.so.9", "libcudnn_ops.so.9", "libnvrtc.so.13"}
        os.mkdir(toolkit)
        found = subprocess.run(["ldd", os.path.join(BIN, "tercio")], capture_output=True, text=True, check=True).stdout
        for name in names | {"libcudnn_ops.so", "libcurand.so.10"}:
            shutil.copy(re.search(r"libxxhash\.so\.\d+ => (\S+)", found).group(1), os.path.join(toolkit, name))
        loads = self.path("loads")
        shutil.copy(os.path.realpath("/usr/bin/python3"), loads)
        with open(loads, "ab") as file:
            file.write(b"\0libcudnn.so.9\0")
        for program, expected in ((loads, names), ("/usr/bin/python3", set())):
            with tarfile.open(self.pack("loads.tar.gz", "--toolkit", toolkit, programs=(program,))) as opened:
                packed = {os.path.basename(name) for name in opened.getnames()}
            self.assertEqual({name for name in packed if name.startswith(("libcu", "libnv"))}, expected)

    def test_another_kind_of_archive_is_refused(self):
        done = subprocess.run([sys.executable, PACKAGE, "--output", self.path("x.zip"), "--top", "tercio"],
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (1, f"error: package.py: --output {self.path('x.zip')}: .tar.gz or .tar.xz\n"))


if __name__ == "__main__":
    python_cases.main()
