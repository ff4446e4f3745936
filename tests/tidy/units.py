"""Names of the sources that bazel/cc.bzl compiles as one unit.

A name in an anonymous namespace hides the same name of an enclosing namespace in every source of the unit that follows: that source then
computes with the other's constant, and the compiler is silent. Two definitions of one name it finds itself.
"""

import collections
import os
import re

LIBRARY = re.compile(r"^tercio_cc_(?:library|binary)\(\n(.*?)\n\)", re.S | re.M)
SOURCES = re.compile(r"^    srcs = (\[.*?\])", re.S | re.M)
TYPE = re.compile(r"(?:struct|class|enum class|enum|using) (\w+)")
VALUE = re.compile(r"(?:[\w:<>,*& \[\]()]*?)[ *&](\w+)(?:\(| = |\[|\{|;)")
NOT_A_DEFINITION = re.compile(r"\s|//|[}#]|template|namespace|$")


def units(sources):
    """Lists of the .cc files that are compiled together."""
    for path, lines in sources.items():
        if os.path.basename(path) != "BUILD.bazel":
            continue
        for library in LIBRARY.findall("\n".join(lines)):
            listed = SOURCES.search(library)
            if not listed or "one_unit = False" in library:
                continue
            files = [label[2:].replace(":", "/") if label.startswith("//") else os.path.join(os.path.dirname(path), label)
                     for label in re.findall(r'"([^"]+\.cc)"', listed.group(1))]
            if len(files) > 1:
                yield [f for f in files if f in sources]


def names_of(lines):
    """(namespace, name, anonymous) of what the lines define outside functions and classes."""
    namespace, anonymous = "", False
    for line in lines:
        opened = re.match(r"namespace ([\w:]*) ?\{", line)
        if opened:
            anonymous = not opened.group(1)
            namespace = opened.group(1) or namespace
        elif re.match(r"\}  // namespace$", line):
            anonymous = False
        elif not NOT_A_DEFINITION.match(line):
            match = TYPE.match(line) or VALUE.match(line)
            if match:
                yield namespace, match.group(1), anonymous


def is_around(outer, inner):
    return inner == outer or inner.startswith(outer + "::")


def check_units(sources):
    """No anonymous name of a unit hides what one of its other sources takes from a header."""
    declared = collections.defaultdict(list)
    for path, lines in sources.items():
        if path.endswith(".h"):
            for namespace, name, _ in names_of(lines):
                declared[name].append((namespace, path))
    faults = []
    for unit in units(sources):
        words = {path: set(re.findall(r"\w+", "\n".join(sources[path]))) for path in unit}
        included = {path: {m.group(1) for m in map(re.compile(r'#include "(.*)"').match, sources[path]) if m} for path in unit}
        for path in unit:
            for namespace, name, anonymous in names_of(sources[path]):
                headers = [header for outer, header in declared.get(name, []) if is_around(outer, namespace)] if anonymous else []
                faults += [f"{path}: {name} hides that of {header} in {user}, which is compiled with it: rename it"
                           for user in unit if user != path and name in words[user] for header in headers if header in included[user]]
    return faults
