"""What //deploy:tarball_slim holds, read from deploy/BUILD.bazel: place in the archive -> file of the repository."""

import ast
import glob
import os

from harness import ROOT


GENERATED = (":man",)  # by rules; programs are, too, but lie in ./bin
GLOBS = {
    "//:documents": ["CHANGELOG.md", "SECURITY.md", "docs/*.md"],
    "//:decisions": ["docs/decisions/*.md"],
    "//:license": ["LICENSE"],
    "//:images": ["docs/images/*.svg"],
    "//dashboards:files": ["dashboards/*.json", "dashboards/*.py"],
    "//tests/gpu:scripts": ["tests/gpu/*.py"],
}


def _files(root, patterns):
    return [path for pattern in patterns for path in sorted(glob.glob(os.path.join(root, pattern)))]


def _label_files(root, label):
    """The files behind a label of deploy/BUILD.bazel, but for those that rules make."""
    if label in GENERATED:
        return []
    if label in GLOBS:
        return _files(root, GLOBS[label])
    package, _, name = label.lstrip("/").partition(":") if label.startswith("//") else ("deploy", "", label)
    return [os.path.join(root, package, name)]


def read(root=ROOT):
    """`root` holds the files; the rules are always those of the repository."""
    with open(os.path.join(ROOT, "deploy", "BUILD.bazel"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    environment = {"CUDA_AVAILABLE": False, "_DEVICE_TESTS": []}
    values = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}
    contents, folders = (eval(compile(ast.Expression(values[name]), "deploy/BUILD.bazel", "eval"), environment)  # pylint: disable=eval-used
                         for name in ("_CONTENTS", "_FOLDERS"))
    places = {}
    for folder, labels in contents.items():
        for label in labels:
            for path in _label_files(root, label):
                places[os.path.normpath(os.path.join(folder, os.path.basename(path)))] = path
    for folder, kinds in folders.items():
        for path in _files(root, [os.path.join("deploy", folder, kind) for kind in kinds]):
            places[os.path.relpath(path, root)] = path
    return places
