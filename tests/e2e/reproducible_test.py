"""Two builds of one commit give the same bytes: in folders of other names, with other output bases, and nothing from a cache.

TERCIO_REPRODUCIBLE names other targets than //deploy:tarball_slim, to look for what differs.
"""

import glob
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import python_cases  # noqa: E402
from harness import ROOT  # noqa: E402

TARGETS = os.environ.get("TERCIO_REPRODUCIBLE", "//deploy:tarball_slim").split()
HOURS = 3600


class Reproducible(unittest.TestCase):

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="tercio-reproducible.")
        self.addCleanup(self.remove)
        self.bases = []

    def remove(self):
        for tree, base in self.bases:
            subprocess.run(["bazel", f"--output_base={base}", "shutdown"], cwd=tree, capture_output=True, check=False)
            subprocess.run(["chmod", "-R", "u+w", base], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)

    def digests(self, name):
        """Builds HEAD in a folder of that name; (file, digest) of everything that the targets are."""
        tree, base = os.path.join(self.directory, name), os.path.join(self.directory, "base-of-" + name.replace("/", "-"))
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, tree], check=True)
        self.bases.append((tree, base))
        done = subprocess.run(["bazel", f"--output_base={base}", "build", "--noshow_progress", "--disk_cache=", *TARGETS], cwd=tree,
                              capture_output=True, text=True, timeout=4 * HOURS, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        found = {}
        for target in TARGETS:
            package, _, rule = target.lstrip("/").partition(":")
            folder = os.path.join(tree, "bazel-bin", package)
            files = glob.glob(os.path.join(folder, "*.tar.xz")) if rule.startswith("tarball") else [os.path.join(folder, rule)]
            for path in files:
                with open(path, "rb") as file:
                    content = file.read()
                found[os.path.join(package, os.path.basename(path))] = hashlib.sha256(content).hexdigest()
        return found

    def test_two_builds(self):
        first = self.digests("a")
        self.assertEqual(len(first), len(TARGETS))
        self.assertEqual(first, self.digests("another/and/longer/path"))


if __name__ == "__main__":
    python_cases.main()
