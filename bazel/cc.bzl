"""Tercio's C++ rules: the native ones with our warnings, as errors, for our own files."""

WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wshadow",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-Wno-sign-compare",
    "-Wno-missing-field-initializers",
]

# Programs find the libraries of the tarball that contains them (deploy/package.py), and so do the libraries of libraries and what is loaded
# at run time: DT_RPATH counts for these, too, DT_RUNPATH would not. In the build tree there is no such folder.
_PORTABLE = ["-Wl,--disable-new-dtags", "-Wl,-rpath,$$ORIGIN/../lib"]

# Types of an anonymous namespace are members of classes that g++ takes for a header's: the unit is one file to it, the #line
# directives say that it is many.
_UNIT_COPTS = ["-Wno-subobject-linkage"]

def _unit(name, sources):
    """One file with the text of `sources`, in which each line keeps its own file and number."""
    native.genrule(
        name = name + "_unit",
        srcs = sources,
        outs = [name + "_unit.cc"],
        cmd = "for source in $(SRCS); do echo \"#line 1 \\\"$$source\\\"\"; cat $$source; echo; done > $@",
        visibility = ["//visibility:private"],
    )
    return name + "_unit.cc"

def _in_one_unit(name, srcs, copts):
    """Sources and options with the .cc files joined, where there are several."""
    sources = [s for s in srcs if s.endswith(".cc")]
    if len(sources) < 2:
        return srcs, copts
    return [s for s in srcs if not s.endswith(".cc")] + [_unit(name, sources)], _UNIT_COPTS + copts

def tercio_cc_library(name, srcs = [], copts = [], one_unit = True, **kwargs):
    """A library whose .cc files are compiled as one translation unit.

    The headers of gRPC and Protobuf take longer to parse than our code takes to compile; a unit parses them once for all of its
    sources (docs/decisions/0039-a-library-is-one-translation-unit.md).

    Args:
      name: of the library.
      srcs: .cc files and private headers.
      copts: for the .cc files.
      one_unit: False where sources cannot share a unit: Highway includes a file into itself once for each target, and kernels of
        different .cu files may have one name.
      **kwargs: of the cc_library rule.
    """
    if one_unit:
        srcs, copts = _in_one_unit(name, srcs, copts)
    native.cc_library(name = name, srcs = srcs, copts = WARNINGS + copts, **kwargs)

def tercio_cc_binary(name, srcs = [], copts = [], linkopts = [], **kwargs):
    """A program whose own .cc files are compiled as one translation unit, as those of a library are."""
    srcs, copts = _in_one_unit(name, srcs, copts)
    native.cc_binary(
        name = name,
        srcs = srcs,
        copts = WARNINGS + copts,
        linkopts = _PORTABLE + linkopts + ["-pthread"],
        **kwargs
    )

def tercio_cc_test(name, copts = [], deps = [], linkopts = [], main = True, **kwargs):
    """A GoogleTest. main = False for a test that brings its own main function."""
    native.cc_test(
        name = name,
        copts = WARNINGS + copts,
        linkopts = linkopts + ["-pthread"],
        deps = deps + ["@system//:gtest_main" if main else "@system//:gtest"],
        linkstatic = True,
        **kwargs
    )
