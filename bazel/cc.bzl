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

def tercio_cc_library(name, copts = [], **kwargs):
    native.cc_library(name = name, copts = WARNINGS + copts, **kwargs)

def tercio_cc_binary(name, copts = [], linkopts = [], **kwargs):
    native.cc_binary(name = name, copts = WARNINGS + copts, linkopts = _PORTABLE + linkopts + ["-pthread"], **kwargs)

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
