"""Checks of the sources that no compiler makes: formatting, lengths, and who may include whom.

    python3 tests/tidy/check_sources.py [--root DIR] [--results FILE]

Every fault is printed with file and line. With --results, one JSON line per check is appended to FILE
for tests/summary.py. Ends with 1 when there is a fault.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cpp_rules  # noqa: E402
import units  # noqa: E402

FILE_LINES = 800
FUNCTION_LINES = 70

# Folder -> the first parts of project paths that its files may include (tests beside the code may
# include anything). The longest matching folder counts. Arrows only point downwards.
INCLUDES = {
    "common/": ["common/"],
    # Getting certificates, for programs of both sides: these messages are not those of one service.
    "common/security/": ["common/", "proto/"],
    "kernels/": ["kernels/", "common/check.h"],
    # Kernels know CUDA's headers only, whichever flavour of them the build puts on the path.
    "kernels/cuda/": ["kernels/cuda/", "kernels/block_format.h", "kernels/exact_sum.h", "kernels/ops.h", "kernels/random.h",
                      "kernels/values.h", "common/check.h"],
    "kernels/cuda/testing/": ["kernels/cuda/", "kernels/cpu/", "emulation/control.h"],
    "emulation/": ["emulation/", "common/check.h"],
    # What a model is, before any plan: the sites of dropout are a part of that.
    "model/": ["model/", "common/check.h", "proto/", "kernels/random.h"],
    # The memory map asks the kernels' contract how much scratch an operation needs.
    "plan/": ["plan/", "model/", "common/check.h", "common/status_macros.h", "proto/", "kernels/base_format.h", "kernels/block_format.h", "kernels/exact_sum.h",
              "kernels/ops.h", "kernels/cpu/attention_scratch.h", "kernels/cuda/attention_choice.h", "kernels/cuda/scratch.h"],
    "plan/planner/": ["plan/", "model/architecture.h", "common/check.h", "common/status_macros.h", "proto/"],
    # Times of a model follow from its units.
    "plan/planner/cost/": ["plan/", "model/", "common/check.h", "common/nearest.h", "common/status_macros.h", "proto/"],
    # Runs and steps are played with the planner's times; no model is asked again.
    "plan/simulator/": ["plan/simulator/", "plan/planner/cost/", "plan/schedule.h", "common/check.h", "proto/"],
    # The schema of a foreign file, and no message of ours.
    "tokenizer/": ["tokenizer/", "common/", "proto/tercio/sentencepiece/"],
    "data/": ["data/", "tokenizer/", "common/", "model/", "plan/", "proto/", "kernels/random.h"],
    "checkpoint/": ["checkpoint/", "tokenizer/export/", "common/", "model/", "plan/", "proto/", "kernels/quantized_base.h"],
    # `model.from` takes its sizes from a directory; reading its weights stays with the trainers, as do chats.
    "config/": ["config/", "checkpoint/model_description.h", "checkpoint/huggingface/peft_adapter.h", "checkpoint/logits/header.h", "data/chat/template_names.h",
                "common/", "model/", "plan/", "proto/"],
    "coordinator/core/": ["coordinator/core/", "plan/", "common/check.h", "common/status_macros.h",
                          "proto/"],
    "coordinator/": ["coordinator/", "checkpoint/", "common/", "config/", "plan/", "proto/"],
    # No file of a job is read here: of the data, the cache and what is agreed with its reader.
    "worker/agent/": ["worker/agent/", "data/data_cache.h", "data/preparation_protocol.h", "worker/progress/",
                      "common/", "plan/", "proto/", "config/"],
    "worker/agent/core/": ["worker/agent/core/", "plan/", "common/check.h",
                           "common/status_macros.h", "proto/"],
    "worker/device/": ["worker/device/", "kernels/", "common/"],
    "worker/progress/": ["worker/progress/", "common/"],
    "worker/collective/": ["worker/collective/", "worker/device/", "worker/progress/", "common/",
                           "plan/reduction_scratch.h", "plan/sum_tree.h"],
    "worker/blocks/": ["worker/blocks/", "worker/engine/arena.h", "worker/collective/", "worker/progress/", "worker/device/",
                       "kernels/", "model/", "plan/", "common/", "proto/"],
    "worker/engine/": ["worker/engine/", "worker/blocks/", "worker/collective/", "worker/progress/", "worker/device/", "kernels/", "model/", "plan/",
                       "data/sample_source.h", "common/", "proto/"],
    "worker/inference/": ["worker/", "checkpoint/", "data/", "tokenizer/", "kernels/", "model/", "plan/", "common/", "proto/"],
    "worker/trainer/": ["worker/", "checkpoint/", "data/", "tokenizer/", "kernels/", "plan/", "common/", "proto/"],
    # Texts in, texts out: of the model only what generates.
    "serve/": ["serve/", "worker/inference/", "data/chat/", "tokenizer/", "common/"],
    "cli/plot/": ["cli/plot/", "common/utf8.h"],
    "cli/report/": ["cli/report/", "cli/plot/", "config/", "plan/epochs.h", "plan/names.h", "plan/numerics.h", "plan/objective_figures.h",
                    "plan/quality.h", "plan/stage_layers.h", "plan/state_shards.h", "proto/"],
    # A method of an experiment is a run's report, beside what the planner makes of its plan.
    "cli/compare/": ["cli/compare/", "cli/report/", "cli/plot/", "cli/evaluation_json.h", "cli/format.h", "config/",
                     "common/version.h", "plan/", "proto/"],
    "cli/": ["cli/", "config/", "checkpoint/", "common/", "data/", "model/", "plan/", "proto/", "serve/", "tokenizer/", "worker/inference/"],
    "tests/": [""],
}

# Folder -> the namespace of its files, of which they may open inner ones. The longest matching folder counts.
NAMESPACES = {
    "common/": "tercio", "config/": "tercio::config",
    "kernels/": "tercio::kernels", "kernels/cuda/": "tercio::kernels::cuda", "kernels/reference/": "tercio::kernels::reference",
    "emulation/": "tercio::emulation", "model/": "tercio::model", "plan/": "tercio::plan", "tokenizer/": "tercio::tokenizer", "data/": "tercio::data",
    "checkpoint/": "tercio::checkpoint", "coordinator/": "tercio::coordinator", "worker/agent/": "tercio::agent",
    "worker/device/": "tercio::device", "worker/progress/": "tercio::progress", "worker/collective/": "tercio::collective",
    "worker/blocks/": "tercio::blocks", "worker/engine/": "tercio::engine", "worker/inference/": "tercio::inference", "worker/trainer/": "tercio::trainer",
    "serve/": "tercio::serve", "cli/": "tercio::cli", "cli/plot/": "tercio::plot", "cli/report/": "tercio::report", "cli/compare/": "tercio::compare",
    "tests/": "tercio",
}
NAMESPACE = re.compile(r"^namespace (tercio[\w:]*) \{")

PROJECT_FOLDERS = {folder.split("/")[0] for folder in INCLUDES} | {"proto"}

# The deciding parts: values in, values out.
PURE = ["model/", "plan/", "cli/plot/", "cli/report/", "cli/compare/", "coordinator/core/", "plan/planner/", "worker/agent/core/"]
OUTSIDE_WORLD = re.compile(
    r'^#include [<"](thread|mutex|shared_mutex|condition_variable|future|fstream|filesystem|chrono|ctime|'
    r"time\.h|unistd\.h|pthread\.h|fcntl\.h|signal\.h|random|sys/.*|grpcpp/.*|grpc/.*|sqlite3\.h|gloo/.*|"
    r"absl/time/clock\.h|absl/synchronization/.*|"
    r'common/(clock|file|log|mutex|temp_dir)\.h|.*\.grpc\.pb\.h)[>"]')

# Messages of the services stop at the edges: only these folders see generated RPC code.
RPC_EDGES = ["coordinator/service/", "coordinator/", "worker/agent/", "worker/trainer/", "cli/", "common/",
             "tests/"]

# What comments and documents do not say, and what they say instead. A comment is a sentence with a subject, or a noun phrase.
BANNED_WORDS = [
    (re.compile(r"^(Of|Who|Whom|Whose|So many|So often|Another number)\b"), "begin with the thing that is described"),
    (re.compile(r"\banew\b"), "again, restart, start over"),
    (re.compile(r"\bgoe?s? on with\b"), "continue with, resume"),
    (re.compile(r"\bfor want of\b", re.IGNORECASE), "because ... ran out, out of memory"),
    (re.compile(r"\bcomes again\b"), "recurs, returns"),
    (re.compile(r"\btakes nothing\b"), "is full, cannot be written"),
]
COMMENT = re.compile(r"^\s*(?://|#) (.*)$")
# Documents that a program writes: what they say stands in its sources.
GENERATED = ["docs/metrics.md"]
# Quoted words of a document are a program's: `code`, "output".
QUOTED = re.compile(r'``.*?``|`[^`]*`|"[^"]*"')
# Where a sentence of a document begins: behind the mark of a list, a heading or a quotation, in a cell, after a full stop.
SENTENCE = re.compile(r"(?:^|(?<=[.!?|]))[\s>|#*_-]*(?:\d+\. )?[*_]*")

# The text of a comment on a line, also behind code, by the kind of file; and the paths in it.
COMMENT_TEXTS = [
    ((".h", ".cc", ".cu", ".cuh", ".proto"), re.compile(r"(?:^|\s)//(.*)$")),
    ((".py", ".sh", ".bzl", ".bazel"), re.compile(r"(?:^|\s)#(.*)$")),
]
NAMED_FILE = re.compile(r"(?<![\w./*{}$-])(\w[\w-]*/[\w./-]*?\.(?:h|cc|cu|cuh|proto|py|sh|md|bzl|bazel|json|ya?ml|svg))(?![\w/*{-])")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
PRIVATE_PATH = re.compile(r"(?<![\w.$])/(home|root|Users)/\w")


ARCHITECTURE_COMPARED = re.compile(r"[!=]= *v1::ARCHITECTURE_|v1::ARCHITECTURE_\w+ *[!=]=|case v1::ARCHITECTURE_")
ARCHITECTURE_FOLDERS = ("model/architectures/", "checkpoint/huggingface/")

WALL_CLOCK = re.compile(r"absl::Now\(\)|system_clock|\bgettimeofday\b|CLOCK_REALTIME")
WALL_CLOCK_FILES = {
    "cli/client.cc": "the times of certificates",
    "common/security/enrolment.cc": "gRPC's deadline of a call",
    "common/security/tls_identity.cc": "the times of certificates",
    "coordinator/access/access.cc": "the times of certificates",
    "coordinator/access/access_test.cc": "the times of certificates",
    "coordinator/access/tls_identity_test.cc": "the times of certificates",
    "coordinator/access/audit_log.cc": "the time that people read on a line of the audit log",
    "coordinator/access/enroll_service.cc": "the times of tokens and certificates; gRPC's deadline of its shutdown",
    "coordinator/access/access_commands.cc": "the times of tokens and certificates",
    "worker/agent/link/membership.cc": "the times of certificates",
    "worker/trainer/upload_stream.cc": "gRPC's deadline of a call",
    "coordinator/service/lease_clock.cc": "where the coordinator's time begins",
    "coordinator/service/node_service.cc": "gRPC's deadline of a call, made a duration",
    "common/log.cc": "the time that people read on a log line",
    "coordinator/server.cc": "gRPC's deadline of its shutdown",
    "worker/agent/agent_metrics.cc": "times on the page for Prometheus",
    "worker/agent/runs/rank_logs.cc": "the time that people read on a log line",
    "worker/agent/snapshots/snapshot_server.cc": "gRPC's deadline of its shutdown",
    "worker/agent/runs/trainer_server.cc": "gRPC's deadlines of a call and of its shutdown",
    "worker/trainer/agent_link.cc": "gRPC's deadline of a call",
    "worker/trainer/snapshot_client.cc": "gRPC's deadline of a call",
    "worker/trainer/tensorboard.cc": "the time that people see beside a step",
    "worker/trainer/training_loop.cc": "the time that people read in a trace",
}

# Types that clang cannot check, and what to use instead. Tests may use any; the emulation is test equipment, which includes nothing of ours.
MUTEXES = [
    (re.compile(r"\bstd::(recursive_|timed_)?mutex\b"), "Mutex, TimedMutex or RecursiveMutex"),
    (re.compile(r"\bstd::(lock_guard|unique_lock|scoped_lock)\b"), "MutexLock"),
    (re.compile(r"\bstd::condition_variable(_any)?\b"), "ConditionVariable"),
    (re.compile(r"\bstd::(shared_mutex|shared_timed_mutex|recursive_timed_mutex|shared_lock)\b"), "Mutex, or a new class there"),
    (re.compile(r"\babsl::((Reader|Writer|Releasable)?Mutex(Lock)?|CondVar)\b"), "Mutex, MutexLock and ConditionVariable"),
]
MUTEX_FILES = ("common/mutex.h", "emulation/")


def tracked_files(root):
    """Files of the project: as git sees them, else (no git, or not a clone) by walking the tree."""
    try:
        listed = subprocess.run(
            ["git", "-C", root, "-c", f"safe.directory={root}", "ls-files", "-z", "--cached", "--others",
             "--exclude-standard"],
            capture_output=True, check=True).stdout.decode()
        return sorted({f for f in listed.split("\0") if f and os.path.isfile(os.path.join(root, f))})
    except (OSError, subprocess.CalledProcessError):
        found = []
        for folder, folders, files in os.walk(root):
            folders[:] = [d for d in folders if not d.startswith((".git", "bazel-", "bin", "__pycache__"))]
            found += [os.path.relpath(os.path.join(folder, f), root) for f in files]
        return sorted(found)


def is_cpp(path):
    return path.endswith((".h", ".cc", ".cu", ".cuh"))


def is_test(path):
    return path.startswith("tests/") or path.endswith(("_test.cc", "_test.cu", "_bench.cc"))


def check_format(root, sources):
    paths = [p for p in sources if is_cpp(p)]
    faults = []
    for begin in range(0, len(paths), 50):
        result = subprocess.run(["clang-format", "--dry-run", *paths[begin:begin + 50]], cwd=root,
                                capture_output=True, text=True)
        if result.returncode != 0 and not result.stderr:
            faults.append(f"clang-format ended with code {result.returncode}")
        seen = set()
        for line in result.stderr.splitlines():
            match = re.match(r"(\S+?):(\d+):\d+: (?:warning|error)", line)
            if match and match.group(1) not in seen:
                seen.add(match.group(1))
                faults.append(f"{match.group(1)}:{match.group(2)}: run clang-format -i {match.group(1)}")
    return faults


def check_lengths(sources):
    faults = []
    for path, lines in sources.items():
        if not is_cpp(path) and not path.endswith((".py", ".sh", ".bzl")):
            continue
        if len(lines) > FILE_LINES:
            faults.append(f"{path}: {len(lines)} lines, at most {FILE_LINES}")
        if is_cpp(path):
            faults += [f"{path}:{n}: a function of {length} lines, at most {FUNCTION_LINES}"
                       for n, length in functions_of(lines) if length > FUNCTION_LINES]
    return faults


def functions_of(lines):
    """(first line number, length) of each function. Relies on clang-format: a function's closing brace
    stands alone, at the indentation of the signature's first line, which is 0, or 2 inside a class."""
    no_function = re.compile(r"^\s*(namespace|class|struct|enum|union|extern|if|for|while|switch|do|else|"
                             r"return|case|default|public|private|protected|template|using|HWY_)\b|^\s*[/#}*]")
    in_class = False
    i = 0
    while i < len(lines):
        line = lines[i]
        if re.match(r"(class|struct)\b[^;]*$", line):
            in_class = True
        if line.startswith("}"):
            in_class = False
        indent = len(line) - len(line.lstrip())
        starts = indent == 0 or (indent == 2 and in_class)
        if not starts or "(" not in line or no_function.match(line):
            i += 1
            continue
        # The signature goes on over lines that are indented further, until one ends it.
        head = i
        while head < len(lines) - 1 and head - i < 15 and not lines[head].rstrip().endswith(("{", ";", "}")):
            head += 1
        if not lines[head].rstrip().endswith("{"):
            i = max(head, i) + 1
            continue
        close = " " * indent + "}"
        end = next((j for j in range(head + 1, len(lines)) if lines[j].rstrip() in (close, close + ";")), head)
        yield i + 1, end - i + 1
        i = end + 1


def rule_for(path):
    folders = [f for f in INCLUDES if path.startswith(f)]
    return max(folders, key=len) if folders else None


def check_includes(sources):
    faults = []
    for path, lines in sources.items():
        if not is_cpp(path):
            continue
        folder = rule_for(path)
        if folder is None:
            faults.append(f"{path}: this folder has no rule in tests/tidy/check_sources.py")
            continue
        for number, line in enumerate(lines, 1):
            faults += include_faults(path, folder, number, line)
    return faults


def include_faults(path, folder, number, line):
    where = f"{path}:{number}: "
    faults = []
    match = re.match(r'#include "([^"]+)"', line)
    if match and not is_test(path):
        target = match.group(1)
        ours = target.split("/")[0] in PROJECT_FOLDERS
        if ours and not any(target.startswith(allowed) for allowed in INCLUDES[folder]):
            faults.append(f"{where}{folder} may not include {target}")
        if target.endswith(".grpc.pb.h") and not any(path.startswith(e) for e in RPC_EDGES):
            faults.append(f"{where}RPC code stops at the services, agents and programs")
        if target.startswith("tests/"):
            faults.append(f"{where}only tests include tests")
        if ours and "/testing/" in target and "/testing/" not in path:
            faults.append(f"{where}only tests include test equipment")
    if any(path.startswith(p) for p in PURE) and not is_test(path) and OUTSIDE_WORLD.match(line):
        faults.append(f"{where}a pure folder includes clocks, threads, files or RPC")
    if re.match(r'#include "\.\.?/', line):
        faults.append(f"{where}include by the path from the root")
    return faults


def check_namespaces(sources):
    """Namespaces follow folders."""
    faults = []
    for path, lines in sources.items():
        folders = [folder for folder in NAMESPACES if path.startswith(folder)]
        if not is_cpp(path) or not folders:
            continue
        expected = NAMESPACES[max(folders, key=len)]
        for number, line in enumerate(lines, 1):
            found = NAMESPACE.match(line)
            if found and found.group(1) != expected and not found.group(1).startswith(expected + "::"):
                faults.append(f"{path}:{number}: namespace {found.group(1)}: files of this folder are in {expected}")
    return faults


def check_headers(sources):
    """Each header is included once, and says what it is before anything else."""
    faults = []
    for path, lines in sources.items():
        if not path.endswith((".h", ".cuh")):
            continue
        if not lines or not lines[0].startswith("//"):
            faults.append(f"{path}:1: a header begins with a comment that says what it is")
        if "#pragma once" not in lines and not path.endswith("-inl.h"):
            faults.append(f"{path}: #pragma once is missing")
    return faults


def check_words(sources):
    faults = []
    for path, lines in sources.items():
        if path.startswith("tests/tidy/"):
            continue
        for number, line in enumerate(lines, 1):
            if UNFINISHED.search(line):
                faults.append(f"{path}:{number}: unfinished work is not committed: {line.strip()}")
            if is_cpp(path) and PRIVATE_PATH.search(line):
                faults.append(f"{path}:{number}: a path of one machine: {line.strip()}")
            comment = None if path.endswith(".md") else COMMENT.match(line)
            if comment:
                faults += banned_words(f"{path}:{number}", comment.group(1))
        if path.endswith(".md") and path not in GENERATED:
            for number, line in prose_of(lines):
                for sentence in SENTENCE.split(line):
                    faults += banned_words(f"{path}:{number}", sentence)
    return faults


def banned_words(where, text):
    found = [(pattern.search(text), instead) for pattern, instead in BANNED_WORDS]
    return [f"{where}: \"{match.group(0)}\": {instead}" for match, instead in found if match]


def prose_of(lines):
    """(number, text) of a document's lines, without blocks of code and without what is quoted."""
    fenced = False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, QUOTED.sub("''", line)


def check_clocks(sources):
    """Nothing waits, expires or is ordered by the wall clock, which operators and NTP set."""
    faults = []
    for path, lines in sources.items():
        if not is_cpp(path) or is_test(path) or not path.startswith(("coordinator/", "worker/")):
            continue
        for number, line in enumerate(lines, 1):
            if WALL_CLOCK.search(line) and path not in WALL_CLOCK_FILES:
                faults.append(f"{path}:{number}: the wall clock; use SteadyNow() (common/steady_time.h), or name "
                              f"the file and its reason in WALL_CLOCK_FILES: {line.strip()}")
    return faults


def check_architectures(sources):
    """What an architecture means stands in its two files; nothing else asks which one a model has."""
    faults = []
    for path, lines in sources.items():
        if not is_cpp(path) or is_test(path) or path.startswith(ARCHITECTURE_FOLDERS):
            continue
        for number, line in enumerate(lines, 1):
            if ARCHITECTURE_COMPARED.search(line):
                faults.append(f"{path}:{number}: compares an architecture; ask model::ArchitectureOf or model::FactsOf for what "
                              f"matters about it: {line.strip()}")
    return faults


def check_mutexes(sources):
    """Mutexes are those whose discipline clang checks (bazel/thread_safety.bzl)."""
    faults = []
    for path, lines in sources.items():
        if not is_cpp(path) or is_test(path) or path.startswith(MUTEX_FILES):
            continue
        for number, line in enumerate(lines, 1):
            for pattern, instead in MUTEXES:
                found = pattern.search(line)
                if found:
                    faults.append(f"{path}:{number}: {found.group(0)}: use {instead} (common/mutex.h)")
    return faults


def check_build_files(sources):
    """BUILD files parse (as Python, whose subset they are), and nothing is visible to everyone by default."""
    faults = []
    for path, lines in sources.items():
        if os.path.basename(path) != "BUILD.bazel":
            continue
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            faults.append(f"{path}:{error.lineno}: {error.msg} (never run clang-format on BUILD files)")
        if "/" in path and any("default_visibility" in line and "public" in line for line in lines):
            faults.append(f"{path}: name who may depend on this folder")
    return faults


def check_documents(root, sources):
    """Every file that a document names (a link, or a path in backticks) exists."""
    folders = {p.split("/")[0] for p in sources if "/" in p}
    files = set(sources)
    faults = []
    for path, lines in sources.items():
        if not path.endswith(".md"):
            continue
        for number, line in enumerate(lines, 1):
            for target in re.findall(r"`([\w][\w./-]*/[\w./-]*)`", line):
                target = target.rstrip("/")
                if target.split("/")[0] in folders and not os.path.exists(os.path.join(root, target)) \
                        and not any(f.startswith(target + ".") for f in files):
                    faults.append(f"{path}:{number}: {target} does not exist")
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", line):
                if not os.path.exists(os.path.join(root, os.path.dirname(path), target)):
                    faults.append(f"{path}:{number}: {target} does not exist")
    return faults


def check_document_members(sources):
    """Every member that a document names (`Class::Member`) is a name of the sources."""
    named = [(path, number, match.groups()) for path, lines in sources.items() if path.endswith(".md")
             for number, line in enumerate(lines, 1) for match in re.finditer(r"`([A-Z]\w+)::(\w+)", line)]
    known = {word for path, lines in sources.items() if is_cpp(path) or path.endswith(".proto") for line in lines
             for word in re.findall(r"[A-Za-z_]\w+", line)} if named else set()
    return [f"{path}:{number}: {'::'.join(names)}: {name} is not in the sources"
            for path, number, names in named for name in names if name not in known]


def comments_of(path, lines):
    """(number, text) of the comments in a source; the texts in front of a Python module, class or function are some, too."""
    pattern = next((pattern for endings, pattern in COMMENT_TEXTS if path.endswith(endings)), None)
    for number, line in enumerate(lines if pattern else [], 1):
        match = pattern.search(line)
        if match:
            yield number, match.group(1)
    if not path.endswith(".py"):
        return
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
            text = node.body[0]
            yield from ((n, lines[n - 1]) for n in range(text.lineno, text.end_lineno + 1))


def check_named_files(root, sources):
    """Every file that a comment names by its path from the root exists."""
    folders = {p.split("/")[0] for p in sources if "/" in p}
    faults = []
    for path, lines in sources.items():
        for number, text in comments_of(path, lines):
            for target in NAMED_FILE.findall(text):
                written = re.sub(r"(\.grpc)?\.pb\.h$", ".proto", target)  # made of it
                if target.split("/")[0] in folders and not os.path.exists(os.path.join(root, written)):
                    faults.append(f"{path}:{number}: {target} does not exist")
    return faults


def read_sources(root):
    sources = {}
    for path in tracked_files(root):
        name = os.path.basename(path)
        if path.endswith((".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".md", ".proto", ".bzl", ".yaml")) or \
                name in ("BUILD.bazel", "WORKSPACE", ".bazelrc", "run"):
            with open(os.path.join(root, path), encoding="utf-8") as file:
                sources[path] = file.read().splitlines()
    return sources


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
    parser.add_argument("--results")
    options = parser.parse_args()
    root = os.path.realpath(options.root)
    sources = read_sources(root)
    checks = {
        "formatting": check_format(root, sources),
        "lengths of files and functions": check_lengths(sources),
        "includes": check_includes(sources),
        "BUILD files": check_build_files(sources),
        "namespaces": check_namespaces(sources),
        "headers": check_headers(sources),
        "words": check_words(sources),
        "clocks": check_clocks(sources),
        "architectures": check_architectures(sources),
        "mutexes": check_mutexes(sources),
        "names of units": units.check_units(sources),
        "arguments of kernels": cpp_rules.check_kernel_arguments(sources, is_cpp),
        "switches over enums": cpp_rules.check_switches(sources, is_cpp),
        "documents": check_documents(root, sources),
        "members that documents name": check_document_members(sources),
        "files that comments name": check_named_files(root, sources),
    }
    for name, faults in checks.items():
        for fault in faults:
            print(f"sources: {fault}", file=sys.stderr)
        if options.results:
            with open(options.results, "a", encoding="utf-8") as file:
                outcome = "failed" if faults else "passed"
                file.write(json.dumps({"name": f"sources: {name}", "outcome": outcome,
                                       "reason": f"{len(faults)} faults" if faults else ""}) + "\n")
    count = sum(len(faults) for faults in checks.values())
    print(f"sources: {len(sources)} files, {len(checks)} checks, {count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
