"""Protocol buffers and gRPC with the system's protoc: `<name>_cc_proto` and `<name>_cc_grpc`."""

ProtoInfo = provider(fields = ["sources"])

def _protoc_impl(ctx):
    outs = []
    for src in ctx.files.srcs:
        stem = src.basename[:-len(".proto")]
        suffixes = [".grpc.pb.h", ".grpc.pb.cc"] if ctx.attr.grpc else [".pb.h", ".pb.cc"]
        outs += [ctx.actions.declare_file(stem + suffix) for suffix in suffixes]
    imports = [f for d in ctx.attr.deps for f in d[ProtoInfo].sources.to_list()]
    arguments = ["-I.", "-I/usr/include"]
    if ctx.attr.grpc:
        arguments += [
            "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin",
            "--grpc_out=" + ctx.bin_dir.path,
        ]
    else:
        arguments.append("--cpp_out=" + ctx.bin_dir.path)
    ctx.actions.run(
        executable = "/usr/bin/protoc",
        arguments = arguments + [f.path for f in ctx.files.srcs],
        inputs = ctx.files.srcs + imports,
        outputs = outs,
        mnemonic = "Protoc",
    )
    return [
        DefaultInfo(files = depset(outs)),
        ProtoInfo(sources = depset(ctx.files.srcs + imports)),
    ]

_protoc = rule(
    implementation = _protoc_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".proto"]),
        "deps": attr.label_list(providers = [ProtoInfo]),
        "grpc": attr.bool(),
    },
)

def _cc(name, generator, deps):
    native.cc_library(
        name = name,
        srcs = [generator],
        hdrs = [generator],
        copts = ["-w"],
        linkstatic = True,
        deps = deps,
    )

def tercio_proto_library(name, srcs, deps = [], grpc = False):
    """C++ of .proto files. deps are names given to other tercio_proto_library rules.

    Args:
      name: targets are <name>_cc_proto and, with grpc, <name>_cc_grpc (which exports the former).
      srcs: .proto files of this package.
      deps: e.g. [":job"].
      grpc: also generate the service code.
    """
    _protoc(name = name, srcs = srcs, deps = deps)
    _cc(
        name = name + "_cc_proto",
        generator = name,
        deps = [d + "_cc_proto" for d in deps] + ["@system//:protobuf"],
    )
    if grpc:
        _protoc(name = name + "_grpc", srcs = srcs, deps = deps, grpc = True)
        _cc(
            name = name + "_cc_grpc",
            generator = name + "_grpc",
            deps = [":" + name + "_cc_proto", "@system//:grpc"],
        )
