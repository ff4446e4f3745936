"""The committed figures of kernels are what this toolkit's assembler says, no kernel spills, and the tables of docs/kernels.md follow from
them."""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import figures  # noqa: E402
import occupancy  # noqa: E402
import python_cases  # noqa: E402
import roofline  # noqa: E402

RENEW = "renew it with python3 tests/kernels/figures.py"
REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN6tercio7kernels4cuda12_GLOBAL__N_14PeakILb1EfEEvPKf' for 'sm_90'
ptxas info    : Function properties for _ZN6tercio7kernels4cuda12_GLOBAL__N_14PeakILb1EfEEvPKf
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 128 bytes smem
ptxas info    : Compiling entry function '_ZN6tercio7kernels4cuda12_GLOBAL__N_15OtherEPKf' for 'sm_100'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""


class Reports(unittest.TestCase):

    def test_each_kernel_is_a_row(self):
        self.assertEqual(figures.parse(REPORT, "a.cu"), [["a.cu", "Peak<true, float>", 90, 40, 8, 12, 128], ["a.cu", "Other", 100, 12, 0, 0, 0]])


class Committed(unittest.TestCase):

    def setUp(self):
        self.release, self.rows = figures.read_table()

    def test_no_kernel_spills(self):
        self.assertEqual([row for row in self.rows if row[4] or row[5]], [])

    def test_each_architecture_has_every_kernel(self):
        kernels = {}
        for row in self.rows:
            kernels.setdefault(row[2], set()).add((row[0], row[1]))
        self.assertEqual(sorted(kernels), [80, 90, 100])
        self.assertEqual(kernels[80], kernels[90])
        self.assertEqual(kernels[80], kernels[100])
        self.assertEqual(len(self.rows), 3 * len(kernels[80]), "two kernels have one name")

    def test_the_assembler_says_the_same(self):
        folder = figures.built_folder()
        release = figures.version(folder)
        if release is None:
            self.skipTest("no CUDA toolkit was found")
        if release != self.release:
            self.skipTest(f"the figures are those of nvcc {self.release}, and this is {release}")
        actual = figures.measured(folder)
        self.assertEqual([row for row in actual if row not in self.rows], [], RENEW)
        self.assertEqual([row for row in self.rows if row not in actual], [], RENEW)

    def test_the_document_has_the_computed_tables(self):
        with open(figures.DOCUMENT, encoding="utf-8") as file:
            self.assertEqual(figures.part_of_document(file.read()), figures.computed_part(self.rows), RENEW)


class Occupancy(unittest.TestCase):

    def test_it_is_that_of_cuda_occupancy_h(self):
        # (threads, registers, shared bytes): what cudaOccMaxActiveBlocksPerMultiprocessor of CUDA 13.0 says for 9.0.
        for case, blocks in {(32, 16, 0): 32, (96, 121, 100): 5, (128, 63, 128): 8, (256, 32, 0): 8, (256, 79, 0): 3, (256, 56, 100912): 2,
                             (672, 94, 0): 0, (1024, 64, 0): 1, (1024, 67, 0): 0, (64, 40, 33333): 6}.items():
            self.assertEqual(occupancy.blocks_of_multiprocessor(*case), blocks, case)
        self.assertEqual(occupancy.occupancy(256, 64, 0), 0.5)


class Roofline(unittest.TestCase):

    def test_totals_are_those_of_gpt2(self):
        works = {work.name: work for work in roofline.works()}
        self.assertAlmostEqual(roofline.PARAMETERS / 1e6, 124.45, places=2)
        products = sum(work.flops for name, work in works.items() if "products" in name or "gradients of" in name and work.tensor)
        # Six for each weight that multiplies and token.
        self.assertAlmostEqual(products / (6 * roofline.N * (12 * 12 * 768 * 768 + roofline.PADDED * 768)), 1, places=6)
        self.assertEqual(works["cross-entropy, with gradients"].bytes, 2 * 2 * 65536 * 50272)

    def test_the_slower_one_of_memory_and_units_counts(self):
        self.assertAlmostEqual(roofline.Work("", 1, 3.35e12, 67e12 * 2).seconds, 2)
        self.assertAlmostEqual(roofline.Work("", 1, 3.35e12, 67e12 * 2, True).seconds, 1)


if __name__ == "__main__":
    python_cases.main()
