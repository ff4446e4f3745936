"""The tarball of programs, libraries and tests (deploy/package.py)."""

load("@cuda//:defs.bzl", "CUDA_LIBRARIES")

def tercio_tarball(name, out, contents, slim = False):
    """One archive. It is rebuilt when its programs change, but not when Debian's or NVIDIA's libraries on this machine do.

    Args:
      name: of the target.
      out: file, .tar.gz or .tar.xz.
      contents: folder in the archive -> list of labels.
      slim: without NVIDIA's libraries.
    """
    into = ["--into {} {}".format(folder, " ".join(["$(locations {})".format(l) for l in contents[folder]])) for folder in contents]
    native.genrule(
        name = name,
        testonly = True,
        srcs = [label for folder in contents for label in contents[folder]] + ["//common:version.cc"],
        outs = [out],
        cmd = " ".join([
            "/usr/bin/python3 $(location :package.py) --output $@ --top tercio --version-file $(location //common:version.cc)",
            "--status bazel-out/stable-status.txt",
            "--toolkit '{}'".format(CUDA_LIBRARIES) if CUDA_LIBRARIES else "",
            "--slim" if slim else "",
        ] + into),
        stamp = True,
        # Large and quickly built, so it is kept out of the disk cache.
        tags = ["manual", "no-cache", "no-remote"],
        tools = [":package.py"],
    )
