"""Makes the tarball of //deploy:tarball: programs, the shared libraries that they need, and files, below one folder.

    package.py --output FILE.tar.gz|FILE.tar.xz --top FOLDER [--toolkit DIR] [--slim] [--status FILE] [--version-file version.cc]
               --into FOLDER FILE... [--into FOLDER FILE...]

Programs lose their debug information, but keep their symbols (stacks of a hang name functions), and a `_portable` at the end of
their names. lib/ gets what `ldd` says they need, but for glibc and NVIDIA's driver, which belong to the machine, and with --slim but
for the libraries of the toolkit in DIR; VERSION names what was left out. lib/compat/ gets NVIDIA's libraries for older drivers
(cuda-compat) where the toolkit's machine has them. The same input gives the same bytes.
"""

import argparse
import glob
import gzip
import lzma
import os
import re
import subprocess
import sys
import tarfile
import tempfile

# Whatever a machine has: its own C library must fit its kernel and name services, its driver's libraries its driver.
GLIBC = re.compile(r"(ld-linux-x86-64|lib(c|m|mvec|pthread|dl|rt|resolv|util|anl|nsl|BrokenLocale))\.so\.\d+")
DRIVER = re.compile(r"lib(cuda|nvidia-[a-z-]+|nvcuvid)\.so(\.\d+)*")

# Libraries that programs load when they run, which ldd does not know, with the patterns of those that these load in turn, from their
# own folder. Taken where a program holds the name, or needs the library.
LOADED = {
    "libcudnn.so.9": ["libcudnn_*.so.9", "libnvrtc.so.[0-9]*", "libnvrtc-builtins.so.[0-9]*"],
}
XZ = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 << 20}]  # the same kernels are in several programs


def fail(message):
    sys.exit(f"error: package.py: {message}")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def members(path):
    """(path, name) of a file, or of all files in a folder, by their places in it."""
    if not os.path.isdir(path):
        return [(path, os.path.basename(path))]
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sorted((file, os.path.relpath(file, path)) for file in files)


def is_program(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


class Libraries:
    """What programs need: name -> path, found by the loader itself."""

    def __init__(self, toolkit):
        self.toolkit = toolkit
        self.paths = {}

    def add_needed_by(self, path):
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
        if self.toolkit:
            environment["LD_LIBRARY_PATH"] = self.toolkit
        result = subprocess.run(["ldd", path], capture_output=True, text=True, check=False, env=environment)
        if result.returncode != 0:
            fail(f"ldd {path}: {result.stderr.strip()}")
        for line in result.stdout.splitlines():
            name, arrow, found = line.strip().partition(" => ")
            if not arrow or GLIBC.fullmatch(name) or DRIVER.fullmatch(name):
                continue
            if found.startswith("not found"):
                fail(f"{os.path.basename(path)} needs {name}, which is not installed on this machine")
            self.paths[name] = found.rsplit(" (", 1)[0]

    def add_loaded_by(self, programs):
        """Only the toolkit has such libraries; what it lacks is not there for the machine that builds, either."""
        for name, patterns in LOADED.items():
            path = os.path.join(self.toolkit, name)
            if not os.path.exists(path) or not (name in self.paths or any(name.encode() in read(p) for p in programs)):
                continue
            found = sorted({p for pattern in patterns for p in glob.glob(os.path.join(self.toolkit, pattern))
                            if ".alt." not in p})
            for part in [path, *found]:
                self.paths[os.path.basename(part)] = part
                self.add_needed_by(part)

    def compat(self):
        """name -> path of NVIDIA's package for forward compatibility, where it is installed beside the toolkit."""
        folder = os.path.join(os.path.dirname(self.toolkit), "compat") if self.toolkit else ""
        found = sorted(glob.glob(os.path.join(folder, "lib*.so.[0-9]"))) if folder else []
        return {os.path.basename(path): path for path in found}

    def take_those_of_the_toolkit(self):
        """Removes them; returns their names."""
        names = sorted(name for name, path in self.paths.items()
                       if self.toolkit and os.path.dirname(path) == self.toolkit)
        for name in names:
            del self.paths[name]
        return names


def stripped(source, folder):
    target = os.path.join(folder, f"{len(os.listdir(folder))}")
    result = subprocess.run(["strip", "--strip-debug", "-o", target, source], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        fail(f"strip {source}: {result.stderr.strip()}")
    return target


def needed_glibc(paths):
    """The newest version of glibc that symbols of these files ask for."""
    minors = [int(m) for path in paths for m in re.findall(rb"\0GLIBC_2\.(\d+)(?=\0)", read(path))]
    return f"2.{max(minors)}"


def status_of(path):
    """Bazel's status file (deploy/workspace_status.sh): key and value in each line."""
    if not path:
        return {}
    lines = read(path).decode().splitlines()
    return dict(line.split(" ", 1) for line in lines if " " in line)


def version_text(options, status, libraries, left_out, programs):
    number = re.search(r'kVersion = "([^"]+)"', read(options.version_file).decode()).group(1) if options.version_file else "unknown"
    lines = [f"tercio {number}", f"commit {status.get('STABLE_TERCIO_COMMIT', 'unknown')}",
             f"needs x86-64 with AVX2, glibc {needed_glibc([*programs, *libraries.paths.values()])} or later"]
    if left_out:
        lines.append("NVIDIA's libraries are not included, programs for GPUs look for: " + " ".join(left_out))
    return "\n".join(lines) + "\n"


def packages_of(paths):
    """path -> the Debian package that it is of."""
    candidates = {path: (path, "/usr" + path, os.path.realpath(path)) for path in paths}
    asked = subprocess.run(["dpkg-query", "-S", *(c for several in candidates.values() for c in several)], capture_output=True,
                           text=True, check=False)
    owners = {}
    for line in asked.stdout.splitlines():
        owner, _, path = line.partition(": ")
        owners[path] = owner.split(",")[0].split(":")[0]
    packages = {path: next((owners[c] for c in several if c in owners), "") for path, several in candidates.items()}
    for path, package in packages.items():
        if not os.path.exists(f"/usr/share/doc/{package}/copyright"):
            fail(f"no Debian package says under which license {path} is; build on Debian 12")
    return packages


def versions_of(packages):
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *packages], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in shown.stdout.splitlines())


def licenses(libraries, toolkit, compat):
    """(text of LICENSES, place -> file of each library's copyright)."""
    ours = {name: path for name, path in libraries.paths.items() if not toolkit or os.path.dirname(path) != toolkit}
    packages = packages_of(ours.values())
    versions = versions_of(sorted(set(packages.values())))
    rows = []
    for name in sorted(libraries.paths):
        if name in ours:
            package = packages[ours[name]]
            rows.append(f"{name}: Debian's {package} {versions[package]}, licenses/{package}")
        else:
            rows.append(f"{name}: NVIDIA, under the license agreements of its CUDA Toolkit, cuDNN and NCCL (docs.nvidia.com)")
    rows += [f"compat/{name}: NVIDIA, under the license agreement of its CUDA Toolkit (docs.nvidia.com)" for name in sorted(compat)]
    texts = {f"licenses/{package}": f"/usr/share/doc/{package}/copyright" for package in versions}
    text = "Tercio itself: the Apache License 2.0, LICENSE\n\nLibraries in lib/, where they come from, and their licenses:\n\n"
    return text + "\n".join(rows) + "\n", texts


def seconds_of(status):
    return int(status.get("STABLE_TERCIO_COMMIT_SECONDS", "0"))


def compressed(path):
    if path.endswith(".xz"):
        return lzma.LZMAFile(path, "wb", format=lzma.FORMAT_XZ, filters=XZ)
    return gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=open(path, "wb"), mtime=0)


def write(output, top, files, seconds):
    """files: place -> path. Folders are made by the places of files; owner, time and mode are nobody's of this machine."""
    with compressed(output) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for place, path in sorted(files.items()):
            entry = tarfile.TarInfo(f"{top}/{place}")
            entry.size = os.path.getsize(path)
            entry.mtime = seconds
            with open(path, "rb") as file:
                runs = file.read(4).startswith((b"\x7fELF", b"#!"))
                entry.mode = 0o755 if runs else 0o644
                file.seek(0)
                archive.addfile(entry, file)


def make(options):
    if not options.output.endswith((".tar.gz", ".tar.xz")):
        fail(f"--output {options.output}: .tar.gz or .tar.xz")
    status = status_of(options.status)
    with tempfile.TemporaryDirectory() as scratch:
        files, programs = {}, []
        libraries = Libraries(options.toolkit)
        for folder, *sources in options.into:
            for source, name in (pair for source in sources for pair in members(source)):
                place = os.path.normpath(os.path.join(folder, name.removesuffix("_portable")))
                if is_program(source):
                    libraries.add_needed_by(source)
                    programs.append(source)
                    source = stripped(source, scratch)
                if files.setdefault(place, source) != source:
                    fail(f"two files for {place}")
        libraries.add_loaded_by(programs)
        left_out = libraries.take_those_of_the_toolkit() if options.slim else []
        for name, path in libraries.paths.items():
            files[f"lib/{name}"] = path
        compat = {} if options.slim else libraries.compat()
        for name, path in compat.items():
            files[f"lib/compat/{name}"] = path

        def add_text(place, text):
            path = os.path.join(scratch, place)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            files[place] = path

        note, texts = licenses(libraries, options.toolkit, compat)
        files.update(texts)
        add_text("LICENSES", note)
        add_text("VERSION", version_text(options, status, libraries, left_out, programs))
        write(options.output, options.top, files, seconds_of(status))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--top", required=True)
    parser.add_argument("--toolkit", default="", help="the folder of NVIDIA's libraries")
    parser.add_argument("--slim", action="store_true")
    parser.add_argument("--status")
    parser.add_argument("--version-file", help="the source that defines kVersion")
    parser.add_argument("--into", nargs="+", action="append", default=[])
    make(parser.parse_args())


if __name__ == "__main__":
    main()
