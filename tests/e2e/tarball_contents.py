"""What //deploy:tarball_slim holds, read from deploy/BUILD.bazel: place in the archive -> file of the repository."""

import ast
import glob
import os

from harness import ROOT


def _label_files(label, groups):
    """The files behind a label of deploy/BUILD.bazel, but for programs, which are built."""
    if label in groups:
        return groups[label]
    if label.startswith("//"):
        package, _, name = label[2:].partition(":")
        path = os.path.join(package, name)
        if label == "//:documents":
            return [os.path.join(ROOT, "CHANGELOG.md"), *glob.glob(os.path.join(ROOT, "docs", "*.md"))]
        if label == "//tests/gpu:scripts":
            return glob.glob(os.path.join(ROOT, "tests", "gpu", "*.py"))
    else:
        path = os.path.join("deploy", label)
    return [os.path.join(ROOT, path)]


def read():
    with open(os.path.join(ROOT, "deploy", "BUILD.bazel"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    groups = {}
    for folder in ("base", "monitoring", "overlays/cpu-demo", "overlays/gpu"):
        name = ":kubernetes_" + folder.split("/")[-1].replace("-", "_")
        groups[name] = glob.glob(os.path.join(ROOT, "deploy", "kubernetes", folder, "*.yaml"))
    found = next(node.value for node in tree.body
                 if isinstance(node, ast.Assign) and node.targets[0].id == "_CONTENTS")
    environment = {"CUDA_AVAILABLE": False, "_DEVICE_TESTS": []}
    contents = eval(compile(ast.Expression(found), "deploy/BUILD.bazel", "eval"), environment)  # pylint: disable=eval-used
    places = {}
    for folder, labels in contents.items():
        for label in labels:
            for path in _label_files(label, groups):
                places[os.path.join(folder, os.path.basename(path))] = path
    return places
