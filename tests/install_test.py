"""deploy/install_dependencies.sh names the package that could not be installed, whichever way that comes about. apt and
dpkg are scripts here: nothing is installed."""

import os
import stat
import subprocess
import sys
import tempfile
import unittest

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
        self.assertIn("have no libgloo-dev\n", err)

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


if __name__ == "__main__":
    python_cases.main()
