"""Each fuzz target on its seeds and on a few hundred changed ones: tests/fuzz/fuzz.sh is the long form."""

import os
import random
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import python_cases  # noqa: E402

BUILT = os.path.join(ROOT, "bazel-bin", "tests", "fuzz")
CHANGES = 200  # changed copies of each seed


class Seeds(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="tercio-seeds-")
        cls.addClassCleanup(cls.folder.cleanup)
        subprocess.run([sys.executable, os.path.join(HERE, "make_seeds.py"), cls.folder.name], check=True)

    def replay(self, target, changes=CHANGES, seeds=None):
        folder = os.path.join(self.folder.name, target)
        seeds = seeds or sorted(os.path.join(folder, name) for name in os.listdir(folder))
        seed = random.randrange(1 << 32)
        print(f"{target}: seed {seed}")
        return subprocess.run([os.path.join(BUILT, target + "_replay"), str(seed), str(changes), *seeds], capture_output=True, text=True,
                              errors="replace", timeout=120, check=False)

    def holds(self, target):
        done = self.replay(target)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])

    def test_safetensors(self):
        self.holds("safetensors")

    def test_torch_file(self):
        self.holds("torch_file")

    def test_indexed_dataset(self):
        self.holds("indexed_dataset")

    def test_tokenizer(self):
        self.holds("tokenizer")

    def test_job_file(self):
        self.holds("job_file")

    def test_megatron(self):
        self.holds("megatron")

    def test_labelled_texts(self):
        self.holds("labelled_texts")

    def test_an_input_that_cannot_be_read_is_a_failure(self):
        done = self.replay("job_file", seeds=[os.path.join(self.folder.name, "missing")])
        self.assertEqual(done.returncode, 1)
        self.assertIn("missing cannot be read", done.stderr)


if __name__ == "__main__":
    python_cases.main()
