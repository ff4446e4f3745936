"""The lock discipline of common/mutex.h, checked by clang while gcc builds.

The aspect visits our C++ targets along their dependencies. clang parses the unit of each target that depends
on //common:mutex itself with -Wthread-safety: nothing is compiled twice. Outcomes are cached like any other action.
"""

load("@system//:clang.bzl", "CLANG_VERSION")

# tests/tidy/thread_safety_test.py checks with the same flags.
CLANG_FLAGS = ["-std=c++20", "-fsyntax-only", "-Wno-everything", "-Wthread-safety", "-Werror=thread-safety"]

_MUTEX = Label("//common:mutex")

_ThreadSafetyInfo = provider(fields = {"stamps": "one for each source of the target and its dependencies"})

# $1: the stamp; $2: the source; the rest: flags.
_CHECK = """
stamp="$1" source="$2"
shift 2
if ! command -v clang++ > /dev/null; then
  echo "not checked: clang is not installed (deploy/install_dependencies.sh --tests)" > "$stamp"
else
  clang++ "$@" "$source" && echo "checked" > "$stamp"
fi
"""

def _include_flags(ctx, context):
    flags = ["-iquote", ".", "-iquote", ctx.bin_dir.path]
    for folder in context.quote_includes.to_list():
        flags += ["-iquote", folder]
    for folder in context.includes.to_list():
        flags += ["-I", folder]
    for folder in context.system_includes.to_list():
        flags += ["-isystem", folder]
    return flags

def _check(ctx, target):
    infos = [d[CcInfo] for d in ctx.rule.attr.deps if CcInfo in d]
    if CcInfo in target:
        infos.append(target[CcInfo])
    context = cc_common.merge_cc_infos(cc_infos = infos).compilation_context
    flags = CLANG_FLAGS + [f for f in ctx.rule.attr.copts if f.startswith("-D")]
    flags += ["-D" + d for d in context.defines.to_list()] + _include_flags(ctx, context)
    own_headers = [f for f in ctx.rule.files.srcs if f.extension != "cc"]
    stamps = []
    for source in ctx.rule.files.srcs:
        if source.extension != "cc":
            continue
        stamp = ctx.actions.declare_file("_thread_safety/{}/{}.txt".format(target.label.name, source.short_path.replace("/", "_")))
        ctx.actions.run_shell(
            command = _CHECK,
            arguments = [stamp.path, source.path] + flags,
            inputs = depset([source] + own_headers, transitive = [context.headers]),
            outputs = [stamp],
            mnemonic = "ThreadSafety",
            progress_message = "Checking the locks of %s" % source.short_path,
            # Another clang is another action.
            env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "TERCIO_CLANG_VERSION": CLANG_VERSION},
        )
        stamps.append(stamp)
    return stamps

def _thread_safety_aspect_impl(target, ctx):
    dependencies = [d[_ThreadSafetyInfo] for d in getattr(ctx.rule.attr, "deps", []) if _ThreadSafetyInfo in d]
    # What is guarded is private: only targets with mutexes of their own can get it wrong.
    has_mutexes = any([d.label == _MUTEX for d in getattr(ctx.rule.attr, "deps", [])])
    ours = ctx.rule.kind in ("cc_library", "cc_binary") and not target.label.workspace_root
    stamps = _check(ctx, target) if ours and has_mutexes else []
    return [_ThreadSafetyInfo(stamps = depset(stamps, transitive = [d.stamps for d in dependencies]))]

_thread_safety_aspect = aspect(
    implementation = _thread_safety_aspect_impl,
    attr_aspects = ["deps"],
)

def _thread_safety_check_impl(ctx):
    return [DefaultInfo(files = depset(transitive = [t[_ThreadSafetyInfo].stamps for t in ctx.attr.targets]))]

# Cannot be built where a lock is missing in `targets` or in what they depend on. Without clang nothing is checked, and the stamps say so.
thread_safety_check = rule(
    implementation = _thread_safety_check_impl,
    attrs = {"targets": attr.label_list(aspects = [_thread_safety_aspect])},
)
