"""The CUDA toolkit of this machine as one repository, `@cuda`, which is there without a toolkit, too.

It is looked for under CUDA_HOME, then /usr/local/cuda: a folder with bin/nvcc, include/ and lib64/ or lib/, with cuBLASLt, cuDNN
and NCCL among them.
`@cuda//:defs.bzl` says what was found: CUDA_AVAILABLE, CUDA_HOME, CUDA_LIBRARIES (a folder), CUDA_VERSION, NVCC, CUDA_STATUS (one
line for people).
Targets, only where it was found: `@cuda//:cudart`, `:cublas_lt`, `:cudnn`, `:nccl` (headers, and how to link), and `:nvtx` (headers, if it has them).
"""

# Bazel target -> what the linker is given. All have the toolkit's headers. cuDNN is loaded at run time, where it is
# (kernels/cuda/cudnn/library.h): programs only learn where the toolkit has it.
_LIBRARIES = {
    "cudart": ["-lcudart"],
    "cublas_lt": ["-lcublasLt"],
    "cudnn": [],
    "nccl": ["-lnccl"],
}

_BUILD = """package(default_visibility = ["//visibility:public"])

# The host's part: what nvcc reads besides, it finds by itself.
cc_library(
    name = "headers",
    hdrs = glob(
        ["include/*.h", "include/*.hpp", "include/crt/**", "include/nv/**", "include/nccl_device/**"],
        exclude = ["include/cupti*", "include/nvperf*", "include/cuda_egl*", "include/cudaEGL*"],
    ),
    includes = ["include"],
)

# Apart from the others, which everything is built with. Header-only, and not in every toolkit.
cc_library(
    name = "nvtx",
    hdrs = glob(["include/nvtx3/**"], allow_empty = True),
    includes = ["include"],
)
"""

_LIBRARY = """
cc_library(
    name = {name},
    linkopts = {linkopts},
    deps = [":headers"],
)
"""

_DEFS = """CUDA_AVAILABLE = {available}
CUDA_HOME = {home}
CUDA_LIBRARIES = {libraries}
CUDA_VERSION = {version}
NVCC = {nvcc}
CUDA_STATUS = {status}
"""

def _find_home(ctx):
    candidates = [ctx.os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    for home in candidates:
        if home and ctx.path(home).get_child("bin").get_child("nvcc").exists:
            return home
    return None

def _nvcc_version(ctx, nvcc):
    result = ctx.execute([nvcc, "--version"])
    if result.return_code != 0:
        fail("{} --version: {}\nFix the toolkit, or set CUDA_HOME to another.".format(nvcc, result.stderr))
    for word in result.stdout.replace(",", " ").replace("\n", " ").split(" "):
        if word.startswith("V") and word[1:2].isdigit():
            return word[1:]
    fail("cannot find the version in the output of {} --version: {}".format(nvcc, result.stdout))

def _write_defs(ctx, home, libraries, version, status):
    ctx.file("defs.bzl", _DEFS.format(
        available = home != None,
        home = repr(home or ""),
        libraries = repr(libraries),
        version = repr(version),
        nvcc = repr(home + "/bin/nvcc" if home else ""),
        status = repr(status),
    ))
    ctx.file("status.txt", status + "\n")

def _cuda_toolkit_impl(ctx):
    home = _find_home(ctx)
    if home == None:
        _write_defs(ctx, None, "", "", "CUDA: not built: no toolkit under CUDA_HOME or /usr/local/cuda")
        ctx.file("BUILD.bazel", "")
        return
    for header in ["cublasLt.h", "cudnn.h", "nccl.h"]:
        if not ctx.path(home + "/include/" + header).exists:
            status = "CUDA: not built: {} has no include/{}; deploy/install_cuda.sh installs a complete set".format(home, header)
            _write_defs(ctx, None, "", "", status)
            ctx.file("BUILD.bazel", "")
            return
    version = _nvcc_version(ctx, home + "/bin/nvcc")
    lib = home + "/lib64" if ctx.path(home + "/lib64").exists else home + "/lib"
    _write_defs(ctx, home, lib, version, "CUDA: built with nvcc {} of {}".format(".".join(version.split(".")[:2]), home))
    ctx.symlink(home + "/include", "include")
    build = [_BUILD]
    for name in sorted(_LIBRARIES):
        linkopts = ["-L" + lib] + _LIBRARIES[name]
        build.append(_LIBRARY.format(name = repr(name), linkopts = repr(linkopts)))
    ctx.file("BUILD.bazel", "".join(build))

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    environ = ["CUDA_HOME"],
    local = True,
    doc = "Makes @cuda from the toolkit of this machine, or records that there is none.",
)
