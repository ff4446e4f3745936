"""CUDA sources, each built twice: by nvcc against the toolkit, and by g++ against //emulation.

The first is `name`, and exists only where a toolkit was found (bazel/cuda_toolkit.bzl); the second, `name_emulated`, always
exists, and is what the tests run.
"""

load("@cuda//:defs.bzl", "CUDA_AVAILABLE", "CUDA_LIBRARIES", "CUDA_VERSION", "NVCC")
load("//bazel:cc.bzl", "WARNINGS", "tercio_cc_binary", "tercio_cc_library", "tercio_cc_test")

# Machine code for these architectures, and PTX of the last for later ones.
_ARCHITECTURES = ["80", "90"]

_NVCC_FLAGS = [
    "-std=c++20",
    "-O3",
    "--expt-relaxed-constexpr",
    # Products and sums are fused where the source says fmaf, and nowhere else: as on the host.
    "-fmad=false",
    # Profilers and compute-sanitizer name lines of the source; the code stays the same.
    "-lineinfo",
    "-Werror",
    "all-warnings",
    "-Xcompiler=" + ",".join(["-fPIC", "-ffp-contract=off"] + WARNINGS),
] + [
    "-gencode=arch=compute_{0},code=sm_{0}".format(architecture)
    for architecture in _ARCHITECTURES
] + ["-gencode=arch=compute_{0},code=compute_{0}".format(_ARCHITECTURES[-1])]

# The same source gives the same object, in whatever folder and process: nvcc names what is internal by a checksum of the source's full
# path and a random number, and its temporary files, whose names stay in the object, by its process number.
def _same_every_time(source, object):
    return [
        "-frandom-seed=" + source.path,
        "-Xcudafe=--orig_src_path_name=" + source.path,
        "--keep",
        "--keep-dir=" + object.dirname,
    ]

def _include_flags(context):
    flags = ["-I."] + ["-I" + d for d in context.quote_includes.to_list() if d != "."]
    for folder in context.includes.to_list():
        flags.append("-I" + folder)
    for folder in context.system_includes.to_list():
        if not folder.startswith("external/cuda/") and "/external/cuda/" not in folder:
            flags += ["-isystem", folder]
    return flags

def _nvcc_objects_impl(ctx):
    context = cc_common.merge_cc_infos(cc_infos = [d[CcInfo] for d in ctx.attr.deps]).compilation_context
    defines = ["-D" + d for d in context.defines.to_list()]
    objects = []
    for source in ctx.files.srcs:
        object = ctx.actions.declare_file("_nvcc/{}/{}.pic.o".format(ctx.label.name, source.basename))
        objects.append(object)
        ctx.actions.run(
            executable = NVCC,
            arguments = _NVCC_FLAGS + _same_every_time(source, object) + ctx.attr.copts + _include_flags(context) + defines +
                        ["-c", source.path, "-o", object.path],
            inputs = depset([source] + ctx.files.textual, transitive = [context.headers]),
            outputs = [object],
            mnemonic = "Nvcc",
            progress_message = "Compiling %s with nvcc" % source.short_path,
            # Another toolkit is another action.
            env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "TERCIO_CUDA_VERSION": CUDA_VERSION},
        )
    return [DefaultInfo(files = depset(objects))]

_nvcc_objects = rule(
    implementation = _nvcc_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "textual": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
    },
)

# The table of figures (tests/kernels/figures.py) is about these, whatever the objects are for.
_FIGURE_ARCHITECTURES = ["80", "90", "100"]

def _nvcc_figures_impl(ctx):
    context = cc_common.merge_cc_infos(cc_infos = [d[CcInfo] for d in ctx.attr.deps]).compilation_context
    figures = []
    for source in ctx.files.srcs:
        out = ctx.actions.declare_file("_figures/{}.ptxas".format(source.basename))
        figures.append(out)
        ctx.actions.run_shell(
            # The assembler's figures are all that nvcc prints.
            command = 'out=$1; shift; "$@" 2> "$out" || { cat "$out" >&2; exit 1; }',
            arguments = [out.path, NVCC] + [f for f in _NVCC_FLAGS if not f.startswith("-gencode")] + [
                "-gencode=arch=compute_{0},code=sm_{0}".format(architecture)
                for architecture in _FIGURE_ARCHITECTURES
            ] + _include_flags(context) + ["-Xptxas=-v", "-c", source.path, "-o", "/dev/null"],
            inputs = depset([source] + ctx.files.textual, transitive = [context.headers]),
            outputs = [out],
            mnemonic = "NvccFigures",
            progress_message = "Figures of %s" % source.short_path,
            env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "TERCIO_CUDA_VERSION": CUDA_VERSION},
        )
    version = ctx.actions.declare_file("_figures/{}.version".format(ctx.label.name))
    ctx.actions.write(version, CUDA_VERSION + "\n")
    return [DefaultInfo(files = depset(figures + [version]), runfiles = ctx.runfiles(files = figures + [version]))]

# What the assembler says of each kernel of the sources: FILE.cu.ptxas, and the toolkit's version.
_nvcc_figures = rule(
    implementation = _nvcc_figures_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "textual": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
    },
)

def _emulated_label(label):
    """The emulated twin of a tercio_cuda_library: //a/b is //a/b:b."""
    if ":" not in label:
        label = label + ":" + label.split("/")[-1]
    return label + "_emulated"

def _emulated_sources(name, cu_sources):
    """A C++ file for each .cu file: Bazel would not know what to do with the latter."""
    generated = []
    for source in cu_sources:
        out = "_emulated/{}/{}.cc".format(name, source)
        native.genrule(
            name = "{}_{}_emulated_source".format(name, source.replace("/", "_").replace(".", "_")),
            outs = [out],
            cmd = "echo '#include \"{}/{}\"  // IWYU pragma: keep' > $@".format(native.package_name(), source),
            visibility = ["//visibility:private"],
        )
        generated.append(out)
    return generated

# g++ does not know nvcc's pragmas (unroll). Kernels ask for fused multiply-adds by name: with the instruction, which every processor with
# AVX2 has, each is one instead of a call of the library.
_EMULATED_COPTS = ["-Wno-unknown-pragmas", "-mfma"]

def tercio_cuda_library(
        name,
        srcs = [],
        hdrs = [],
        deps = [],
        cuda_deps = [],
        libraries = ["cudart"],
        visibility = None,
        **kwargs):
    """`name` (nvcc, where there is a toolkit), `name_emulated` (g++), and `name_figures` (what the assembler says of the kernels).

    Args:
      name: of the real library.
      srcs: .cu and .cc files, and headers of no other library.
      hdrs: .h and .cuh files.
      deps: libraries that are the same in both.
      cuda_deps: other tercio_cuda_library targets.
      libraries: of the toolkit: cudart, cublas_lt, cudnn, nccl, nvtx.
      visibility: of both.
      **kwargs: of both cc_library rules.
    """
    cu_sources = [s for s in srcs if s.endswith(".cu")]
    host_sources = [s for s in srcs if not s.endswith(".cu")]
    headers = hdrs + [s for s in host_sources if s.endswith(".h") or s.endswith(".cuh")]
    tercio_cc_library(
        name = name + "_emulated",
        one_unit = False,
        srcs = host_sources + _emulated_sources(name, cu_sources),
        hdrs = hdrs,
        copts = _EMULATED_COPTS,
        textual_hdrs = cu_sources,
        deps = deps + [_emulated_label(d) for d in cuda_deps] + ["//emulation:" + l for l in libraries],
        visibility = visibility,
        **kwargs
    )
    if not CUDA_AVAILABLE:
        return
    real_deps = deps + cuda_deps + ["@cuda//:" + l for l in libraries]
    objects = []
    if cu_sources:
        _nvcc_objects(
            name = name + "_nvcc",
            srcs = cu_sources,
            textual = headers,
            deps = real_deps,
            visibility = ["//visibility:private"],
        )
        objects = [":" + name + "_nvcc"]
        _nvcc_figures(
            name = name + "_figures",
            srcs = cu_sources,
            tags = ["manual"],
            textual = headers,
            deps = real_deps,
            visibility = ["//tests/kernels:__pkg__"],
        )
    tercio_cc_library(
        name = name,
        one_unit = False,
        srcs = host_sources + objects,
        hdrs = hdrs,
        deps = real_deps,
        visibility = visibility,
        **kwargs
    )

# Where this machine's toolkit is; a program of the tarball must not know.
_TOOLKIT = ["-Wl,-rpath," + CUDA_LIBRARIES]

def tercio_cuda_binary(name, **kwargs):
    """A program that needs the toolkit's libraries, where there is a toolkit; `name_portable` is the same for //deploy:tarball."""
    if not CUDA_AVAILABLE:
        return
    tercio_cc_binary(name = name, linkopts = _TOOLKIT, **kwargs)
    tercio_cc_binary(name = name + "_portable", tags = ["manual"], **kwargs)

def tercio_toolkit_test(name, **kwargs):
    """A GoogleTest of what the toolkit's libraries do without a GPU, where there is a toolkit."""
    if CUDA_AVAILABLE:
        tercio_cc_test(name = name, linkopts = _TOOLKIT, **kwargs)

def tercio_emulated_test(name, srcs, deps = [], cuda_deps = [], on_device = False, **kwargs):
    """A GoogleTest of CUDA code under the emulation; its sources are .cc files, or .cu files with kernels of their own.

    Args:
      name: of the test.
      srcs: .cc and .cu files.
      deps: plain libraries.
      cuda_deps: tercio_cuda_library targets.
      on_device: also make `name_on_device`, the same test against the toolkit, tagged gpu: it is
        built where there is a toolkit, and tests/run.sh runs it where there is a GPU; and `name_portable`,
        which is that for //deploy:tarball. For .cc files.
      **kwargs: of the cc_test rules.
    """
    cu_sources = [s for s in srcs if s.endswith(".cu")]
    host_sources = [s for s in srcs if not s.endswith(".cu")]
    support = []
    if cu_sources:
        native.filegroup(name = name + "_cu", srcs = cu_sources, visibility = ["//visibility:private"])
        tercio_cc_library(
            name = name + "_sources",
            textual_hdrs = cu_sources,
            visibility = ["//visibility:private"],
        )
        support = [":" + name + "_sources"]
    tercio_cc_test(
        name = name,
        srcs = host_sources + _emulated_sources(name, cu_sources),
        copts = _EMULATED_COPTS,
        deps = deps + support + [_emulated_label(d) for d in cuda_deps] + [
            "//emulation:cudart",
        ],
        **kwargs
    )
    if on_device and CUDA_AVAILABLE:
        if cu_sources:
            fail("on_device: the kernels of a test belong into a tercio_cuda_library")
        tercio_cc_test(
            name = name + "_on_device",
            srcs = srcs,
            deps = deps + cuda_deps + ["@cuda//:cudart"],
            linkopts = _TOOLKIT,
            tags = ["gpu", "local", "exclusive"],
            **kwargs
        )
        tercio_cc_binary(
            name = name + "_portable",
            testonly = True,
            srcs = srcs,
            tags = ["manual"],
            visibility = ["//deploy:__pkg__"],
            deps = deps + cuda_deps + ["@cuda//:cudart", "@system//:gtest_main"],
        )
