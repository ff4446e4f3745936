"""deploy/install_dependencies.sh names the package that could not be installed, whichever way that comes about. apt and
dpkg are scripts here: nothing is installed. deploy/install_cuda.sh makes a toolkit of wheels, which a script in pip's place
gives. .ci/run gives the tests a clean environment."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
import zipfile

TESTS = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(TESTS, "..", "deploy", "install_dependencies.sh")
sys.path.insert(0, TESTS)
import python_cases  # noqa: E402

# All packages are there but those named in $MISSING, until the file $INSTALLED is.
DPKG_QUERY = """#!/bin/bash
package="${@: -1}"
for missing in $MISSING; do
  if [[ "$package" == "$missing" && ! -e "$INSTALLED" ]]; then
    echo "dpkg-query: no packages found matching $package" >&2
    exit 1
  fi
done
echo -n installed
"""
APT_CACHE = """#!/bin/bash
if [[ " $UNKNOWN " == *" $2 "* ]]; then exit 100; fi
echo "Package: $2"
"""


class InstallTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tercio-install-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("dpkg-query", DPKG_QUERY)
        self.write("apt-cache", APT_CACHE)
        self.write("id", "#!/bin/bash\necho 0\n")
        # Neither writes the policy file, nor removes it.
        self.write("sh", "#!/bin/bash\n")
        self.write("rm", '#!/bin/bash\n[[ "$*" == *policy-rc.d* ]] || exec /bin/rm "$@"\n')

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

    def install(self, apt_get, missing="", unknown="", options=()):
        self.write("apt-get", "#!/bin/bash\n" + apt_get)
        environment = {"PATH": self.folder + ":/usr/bin:/bin", "MISSING": missing, "UNKNOWN": unknown,
                       "INSTALLED": os.path.join(self.folder, "installed"), "TMPDIR": self.folder}
        result = subprocess.run(["bash", SCRIPT, *options], env=environment, capture_output=True, text=True, check=False)
        return result.returncode, result.stderr

    def test_nothing_is_done_where_nothing_is_missing(self):
        self.assertEqual(self.install("echo called >&2; exit 1"), (0, ""))

    def test_what_is_missing_is_installed(self):
        code, err = self.install('[[ "$*" == *install* ]] && touch "$INSTALLED"; exit 0', missing="libgloo-dev libre2-dev")
        self.assertEqual((code, err), (0, "installing: libre2-dev libgloo-dev\n"))

    def test_a_package_that_no_list_has_is_named(self):
        code, err = self.install('[[ "$*" != *install* ]] || { echo "E: Unable to locate package" >&2; exit 100; }',
                                 missing="libgloo-dev libre2-dev", unknown="libgloo-dev")
        self.assertEqual(code, 1)
        self.assertIn("E: Unable to locate package", err)
        self.assertIn("do not have libgloo-dev\n", err)

    def test_a_failed_installation_names_the_packages(self):
        code, err = self.install('[[ "$*" != *install* ]] || { echo "E: broken" >&2; exit 100; }', missing="libgloo-dev")
        self.assertEqual(code, 1)
        self.assertIn("E: broken", err)
        self.assertIn("not installed: libgloo-dev\n", err)

    def test_lists_that_cannot_be_fetched_end_it(self):
        code, err = self.install("echo 'E: no network' >&2; exit 100", missing="libgloo-dev")
        self.assertEqual(code, 1)
        self.assertIn("E: no network", err)
        self.assertIn("apt-get update failed (above): not installed: libgloo-dev\n", err)

    def test_a_package_that_is_still_missing_is_named(self):
        code, err = self.install("exit 0", missing="prometheus", options=["--tests"])
        self.assertEqual(code, 1)
        self.assertIn("not installed: prometheus\n", err)



# In python's place: `-m pip download ... --dest DIR ...` copies the wheels, all else is python's.
FAKE_PYTHON = """#!/bin/bash
if [[ "$1 $2" != "-m pip" ]]; then exec /usr/bin/env -u PATH {python} "$@"; fi
if [[ "$3" == --version ]]; then exit 0; fi
while [[ "$1" != --dest ]]; do shift; done
cp "$WHEELS"/* "$2"
"""


class InstallCudaTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tercio-install-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.prefix = os.path.join(self.folder, "cuda")
        self.wheels = os.path.join(self.folder, "wheels")
        os.mkdir(self.wheels)
        self.wheel("nvcc", {"nvidia/cu13/bin/nvcc": (b"#!/bin/sh\necho release 13.0\n", 0o755),
                            "nvidia/cu13/nvvm/bin/cicc": (b"x", 0o755), "nvidia_nvcc.dist-info/METADATA": (b"m", 0o644)})
        self.wheel("nccl", {"nvidia/nccl/include/nccl.h": (b"h", 0o644), "nvidia/nccl/lib/libnccl.so.2": (b"l", 0o755),
                            "nvidia/nccl/lib/../../../evil": (b"e", 0o644)})
        path = os.path.join(self.folder, "python3")
        with open(path, "w", encoding="utf-8") as file:
            file.write(FAKE_PYTHON.replace("{python}", sys.executable))
        os.chmod(path, 0o755)

    def wheel(self, name, files):
        with zipfile.ZipFile(os.path.join(self.wheels, name + ".whl"), "w") as archive:
            for path, (content, mode) in files.items():
                entry = zipfile.ZipInfo(path)
                entry.external_attr = (stat.S_IFREG | mode) << 16
                archive.writestr(entry, content)

    def install(self, *options):
        environment = {"PATH": self.folder + ":/usr/bin:/bin", "WHEELS": self.wheels, "TMPDIR": self.folder,
                       "HOME": self.folder}
        script = os.path.join(TESTS, "..", "deploy", "install_cuda.sh")
        result = subprocess.run(["bash", script, *options], env=environment, capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def test_parts_of_wheels_become_one_toolkit(self):
        code, text = self.install("--force", "--prefix", self.prefix)
        self.assertEqual(code, 0, text)
        self.assertIn(f"CUDA_HOME={self.prefix}", text)
        self.assertTrue(os.access(os.path.join(self.prefix, "bin", "nvcc"), os.X_OK))
        self.assertEqual(os.readlink(os.path.join(self.prefix, "lib", "libnccl.so")), "libnccl.so.2")
        self.assertEqual(sorted(os.listdir(self.prefix)), ["bin", "include", "lib", "nvvm"])
        self.assertFalse(os.path.exists(os.path.join(self.folder, "evil")))
        # What is there is neither changed nor mixed with something else.
        code, text = self.install("--force", "--prefix", self.prefix)
        self.assertEqual(code, 1)
        self.assertIn("exists", text)

    def test_an_unknown_option_is_said(self):
        self.assertEqual(self.install("--what")[0], 2)


class ContinuousIntegration(unittest.TestCase):

    def test_the_tests_see_no_variable_of_the_machine(self):
        with tempfile.TemporaryDirectory(prefix="tercio-install-") as folder:
            for place in (".ci", "tests"):
                os.mkdir(os.path.join(folder, place))
            shutil.copy(os.path.join(TESTS, "..", ".ci", "run"), os.path.join(folder, ".ci"))
            script = os.path.join(folder, "tests", "run.sh")
            with open(script, "w", encoding="utf-8") as file:
                file.write('#!/bin/bash\necho "arguments=$*"\nenv\n')
            os.chmod(script, 0o755)
            given = {"PATH": "/odd:/usr/bin:/bin", "HOME": folder, "USER": "ann", "PYTHONDONTWRITEBYTECODE": "1", "CUDA_HOME": "/toolkit"}
            done = subprocess.run([os.path.join(folder, ".ci", "run"), "--long"], env=given, capture_output=True, text=True, check=True)
        seen = dict(line.split("=", 1) for line in done.stdout.splitlines())
        self.assertEqual(seen["arguments"], "--long")
        self.assertEqual({name: seen[name] for name in ("HOME", "USER", "CUDA_HOME")}, {"HOME": folder, "USER": "ann", "CUDA_HOME": "/toolkit"})
        self.assertNotIn("/odd", seen["PATH"])
        self.assertEqual(set(seen) - {"arguments", "PATH", "HOME", "USER", "LANG", "CI", "CUDA_HOME", "PWD", "SHLVL", "_"}, set())


if __name__ == "__main__":
    python_cases.main()
