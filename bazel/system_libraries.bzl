"""Libraries of the system (Debian packages) as one repository, `@system`.

Compile and link flags come from pkg-config where the package has a .pc file. Headers of the
system are found by the compiler on its own path, so no include directories are copied. `clang.bzl` has the version of clang.
"""

# Bazel target -> (pkg-config names, further link flags, further defines).
_LIBRARIES = {
    "absl": (["absl_status", "absl_statusor", "absl_strings", "absl_time", "absl_flat_hash_map", "absl_flat_hash_set", "absl_str_format", "absl_cord", "absl_span"], [], []),
    "absl_symbolize": (["absl_symbolize"], [], []),
    "benchmark": (["benchmark"], [], []),
    "cli11": (["CLI11"], [], []),
    "gloo": ([], ["-lgloo"], []),
    "grpc": (["grpc++"], ["-lgrpc++_reflection"], []),
    "gtest": (["gmock", "gtest"], [], []),
    "gtest_main": (["gmock", "gtest_main", "gtest"], [], []),
    # Instruction sets without FMA, on which Tercio does not run, would only take time to compile.
    "hwy": (["libhwy"], [], ["HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4)"]),
    "nlohmann_json": (["nlohmann_json"], [], []),
    "openssl_crypto": (["libcrypto"], [], []),
    "openssl_ssl": (["libssl", "libcrypto"], [], []),
    "prometheus_cpp_core": (["prometheus-cpp-core"], [], []),
    "protobuf": (["protobuf"], [], []),
    "sqlite3": (["sqlite3"], [], []),
    "xxhash": (["libxxhash"], [], []),
    "yaml_cpp": (["yaml-cpp"], [], []),
}

def _pkg_config(ctx, packages, flag):
    if not packages:
        return []
    result = ctx.execute(["pkg-config", flag] + packages)
    if result.return_code != 0:
        fail("pkg-config {} {}: {}\nRun deploy/install_dependencies.sh first.".format(
            flag,
            " ".join(packages),
            result.stderr,
        ))
    return [word for word in result.stdout.strip().split(" ") if word]

def _without_repeats(words):
    """Drops all but the last occurrence; pkg-config repeats static dependencies many times."""
    seen = {}
    result = []
    for word in reversed(words):
        if word.startswith("-l") and word in seen:
            continue
        seen[word] = True
        result.append(word)
    return reversed(result)

def _clang_version(ctx):
    """The first line of what clang says of itself; empty where there is none, for it is only needed to check."""
    if ctx.which("clang++") == None:
        return ""
    return ctx.execute(["clang++", "--version"]).stdout.split("\n")[0]

def _system_libraries_impl(ctx):
    build = ['package(default_visibility = ["//visibility:public"])', ""]
    for name in sorted(_LIBRARIES):
        packages, link_flags, defines = _LIBRARIES[name]
        compile_flags = _pkg_config(ctx, packages, "--cflags")
        all_defines = defines + [f[2:] for f in compile_flags if f.startswith("-D")]
        link = _without_repeats(link_flags + [
            f
            for f in _pkg_config(ctx, packages, "--libs")
            if f.startswith("-l") or f == "-pthread"
        ])
        build += [
            "cc_library(",
            "    name = {},".format(repr(name)),
            "    defines = {},".format(repr(all_defines)),
            "    linkopts = {},".format(repr(link)),
            ")",
            "",
        ]
    ctx.file("BUILD.bazel", "\n".join(build))
    ctx.file("clang.bzl", "CLANG_VERSION = {}\n".format(repr(_clang_version(ctx))))

system_libraries = repository_rule(
    implementation = _system_libraries_impl,
    local = True,
    doc = "Makes @system//:<library> targets from the packages installed on this machine.",
)
