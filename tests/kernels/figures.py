"""What the toolkit's assembler says of every kernel: registers, spills, shared memory (figures.tsv), and the tables of docs/kernels.md that
follow from them. Renew both after a change of a kernel, on a machine with the toolkit:

    python3 tests/kernels/figures.py
"""

import os
import re
import subprocess
import sys

import roofline

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = os.path.join(ROOT, "tests", "kernels", "figures.tsv")
DOCUMENT = os.path.join(ROOT, "docs", "kernels.md")
LIBRARIES = ("elementwise", "operations", "rows")
_COLUMNS = ("file", "kernel", "architecture", "registers", "spill_stores", "spill_loads", "shared_bytes")
_BEGIN, _END = "<!-- computed by tests/kernels/figures.py -->\n", "<!-- end of what is computed -->\n"


def built_folder(root=ROOT):
    return os.path.join(root, "bazel-bin", "kernels", "cuda", "_figures")


def version(folder):
    """The toolkit's release, or None where there was none."""
    path = os.path.join(folder, LIBRARIES[0] + "_figures.version")
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def short_names(mangled):
    """Names without parameters and namespaces, one for each."""
    plain = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout.splitlines()
    names = []
    for name in plain:
        name = re.sub(r"\(anonymous namespace\)::|tercio::kernels::cuda::|^void ", "", name)
        # Parameters begin at the first parenthesis that is no cast of a template's argument.
        depth = 0
        for at, letter in enumerate(name):
            depth += (letter == "<") - (letter == ">")
            if letter == "(" and depth == 0:
                name = name[:at]
                break
        names.append(re.sub(r"\((?:bool|int)\)", "", name))
    return names


def parse(text, file):
    """Rows of one source's report."""
    rows = []
    for entry in re.split(r"ptxas info\s+: Compiling entry function ", text)[1:]:
        mangled, architecture = re.match(r"'(\S+)' for 'sm_(\d+)'", entry).groups()
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", entry)
        shared = re.search(r"(\d+) bytes smem", entry)
        rows.append([file, mangled, int(architecture), int(re.search(r"Used (\d+) registers", entry)[1]), int(spills[1]), int(spills[2]),
                     int(shared[1]) if shared else 0])
    for row, name in zip(rows, short_names([row[1] for row in rows])):
        row[1] = name
    return rows


def measured(folder):
    rows = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".ptxas"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                rows += parse(file.read(), name[:-len(".ptxas")])
    return sorted(rows)


def read_table(path=TABLE):
    """(release, rows)"""
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    return lines[0].split()[-1], [[int(v) if i > 1 else v for i, v in enumerate(line.split("\t"))] for line in lines[2:]]


def write_table(release, rows, path=TABLE):
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"# nvcc {release}\n" + "\t".join(_COLUMNS) + "\n")
        for row in rows:
            file.write("\t".join(str(value) for value in row) + "\n")


def computed_part(rows):
    return _BEGIN + "\n" + roofline.tables(rows) + "\n" + _END


def part_of_document(text):
    return text[text.index(_BEGIN):text.index(_END) + len(_END)]


def main():
    subprocess.run(["bazel", "build", "--noshow_progress"] + [f"//kernels/cuda:{name}_figures" for name in LIBRARIES], cwd=ROOT, check=True)
    release = version(built_folder())
    rows = measured(built_folder())
    write_table(release, rows)
    with open(DOCUMENT, encoding="utf-8") as file:
        text = file.read()
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(text.replace(part_of_document(text), computed_part(rows)))
    spilling = [row for row in rows if row[4] or row[5]]
    for row in spilling:
        print("spills:", *row, file=sys.stderr)
    print(f"nvcc {release}: {len(rows)} kernels")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
