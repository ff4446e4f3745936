"""Each check finds the fault that it is for, and leaves good sources alone."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(1, os.path.join(sys.path[0], ".."))
import check_sources  # noqa: E402
import cpp_rules  # noqa: E402
import python_cases  # noqa: E402
import units  # noqa: E402

OPS = """
struct Dropout {
  float probability = 0;
  uint64_t seed = 0;
};
struct ResidualArgs {
  Values out;
  int64_t rows, columns;
  Dropout dropout;
};
// Nobody takes these.
struct Split {
  int64_t rows, blocks;
};
class Ops {
  virtual void Residual(const ResidualArgs& args) = 0;
  virtual void ResidualTwice(const ResidualArgs& first,
                             const ResidualArgs& second) = 0;
  virtual void Copy(Values to, ConstValues from, int64_t count) = 0;
};
Split SplitRows(int64_t rows);
""".splitlines()


def function_of(lines):
    return ["int Sum() {"] + ["  Add();"] * (lines - 2) + ["}"]


class CheckSourcesTest(unittest.TestCase):

    def test_a_function_of_70_lines_is_good_and_one_of_71_is_not(self):
        self.assertEqual(check_sources.check_lengths({"plan/a.cc": function_of(70)}), [])
        self.assertEqual(len(check_sources.check_lengths({"plan/a.cc": function_of(71)})), 1)

    def test_a_long_kernel_is_found(self):
        kernel = ["template <typename T>", "__global__ void __launch_bounds__(kThreads)",
                  "    SumKernel(const T* a, double* parts) {"] + ["  Add();"] * 68 + ["}"]
        self.assertEqual(check_sources.check_lengths({"kernels/cuda/a.cu": kernel}),
                         ["kernels/cuda/a.cu:2: a function of 71 lines, at most 70"])

    def test_a_long_method_is_found_behind_a_signature_of_two_lines(self):
        lines = ["class A {", "  int Sum(int a,", "          int b) {"] + ["    Add();"] * 70 + ["  }", "};"]
        self.assertEqual(check_sources.check_lengths({"plan/a.h": lines}),
                         ["plan/a.h:2: a function of 73 lines, at most 70"])

    def test_a_file_of_801_lines_is_found(self):
        self.assertEqual(check_sources.check_lengths({"plan/a.cc": ["int a;"] * 800}), [])
        self.assertEqual(len(check_sources.check_lengths({"plan/a.cc": ["int a;"] * 801})), 1)

    def test_an_architecture_is_compared_in_its_own_files_only(self):
        for line in ("if (model.architecture() == v1::ARCHITECTURE_BERT) {", "    case v1::ARCHITECTURE_LLAMA:",
                     "bool b = v1::ARCHITECTURE_OPT != model.architecture();"):
            self.assertEqual(len(check_sources.check_architectures({"worker/engine/a.cc": [line]})), 1, line)
            for allowed in ("model/architectures/a.cc", "checkpoint/huggingface/forms/a.cc", "plan/a_test.cc"):
                self.assertEqual(check_sources.check_architectures({allowed: [line]}), [], allowed)
        self.assertEqual(check_sources.check_architectures({"plan/a.cc": ["model.set_architecture(v1::ARCHITECTURE_GPT2);"]}), [])

    def test_a_pure_folder_includes_no_clock_thread_file_or_rpc(self):
        for header in ("<thread>", "<chrono>", "<fstream>", '"grpcpp/grpcpp.h"', '"common/clock.h"',
                       '"absl/time/clock.h"', '"sqlite3.h"', '"proto/tercio/v1/job_service.grpc.pb.h"'):
            for folder in check_sources.PURE:
                faults = check_sources.check_includes({folder + "a.cc": [f"#include {header}"]})
                self.assertTrue(faults, f"{folder} {header}")

    def test_a_pure_folder_includes_plain_values(self):
        self.assertEqual(check_sources.check_includes({"coordinator/core/step.cc": [
            '#include "coordinator/core/step.h"', "#include <vector>", '#include "absl/time/time.h"',
            '#include "proto/tercio/v1/plan.pb.h"']}), [])

    def test_arrows_point_downwards(self):
        bad = {"kernels/a.cc": "plan/lanes.h", "common/a.cc": "tokenizer/tokenizer.h",
               "worker/engine/a.cc": "worker/trainer/trainer.h", "cli/a.cc": "coordinator/core/step.h",
               "coordinator/a.cc": "kernels/ops.h", "kernels/cuda/a.cu": "emulation/control.h",
               "emulation/a.h": "kernels/cuda/elementwise.h", "plan/a.cc": "tests/parity/thread_ranks.h"}
        for path, target in bad.items():
            self.assertTrue(check_sources.check_includes({path: [f'#include "{target}"']}), path)

    def test_the_wall_clock_is_for_people(self):
        for line in ("  const absl::Time end = absl::Now() + wait;", "std::chrono::system_clock::now()"):
            self.assertEqual(len(check_sources.check_clocks({"worker/agent/link/spool.cc": [line]})), 1, line)
            self.assertEqual(check_sources.check_clocks({"worker/agent/spool_test.cc": [line]}), [])
            self.assertEqual(check_sources.check_clocks({"worker/agent/runs/rank_logs.cc": [line]}), [])
        self.assertEqual(check_sources.check_clocks({"worker/agent/link/spool.cc": ["end = SteadyNow() + wait;"]}), [])

    def test_mutexes_are_those_that_clang_checks(self):
        for line, instead in (("  std::mutex mutex_;", "Mutex"), ("  std::recursive_mutex mutex_;", "RecursiveMutex"),
                              ("std::lock_guard<std::mutex> lock(mutex_);", "MutexLock"), ("std::unique_lock lock(mutex_);", "MutexLock"),
                              ("  std::condition_variable changed_;", "ConditionVariable"), ("  std::shared_mutex mutex_;", "Mutex"),
                              ("  absl::MutexLock lock(&mutex_);", "MutexLock")):
            faults = check_sources.check_mutexes({"worker/agent/a.cc": [line]})
            self.assertTrue(faults and all("(common/mutex.h)" in fault for fault in faults), line)
            self.assertTrue(any(instead in fault for fault in faults), line)
            for path in ("common/mutex.h", "worker/agent/a_test.cc", "tests/parity/a.cc", "emulation/a.h"):
                self.assertEqual(check_sources.check_mutexes({path: [line]}), [])
        self.assertEqual(check_sources.check_mutexes({"worker/agent/a.cc": ["  Mutex mutex_;", "MutexLock lock(mutex_);"]}), [])

    def test_a_name_that_hides_one_of_a_header_in_its_unit_is_found(self):
        build = ["tercio_cc_library(", '    name = "a",', '    srcs = ["a.cc", "b.cc"],', ")"]
        header = ["namespace tercio::plan {", "inline constexpr uint8_t kMark = 32;  // a bit", "int Sum(int a,", "}  // namespace tercio::plan"]
        user = ['#include "plan/mark.h"', "namespace tercio::plan {", "bool IsMark(int bits) { return Sum(bits & kMark, 0); }"]
        for hiding in ("constexpr char kMark = 'a';", "int Sum(int a, int b) {"):
            lines = ["namespace tercio::plan {", "namespace {", hiding, "}  // namespace", "}  // namespace tercio::plan"]
            sources = {"plan/BUILD.bazel": build, "plan/mark.h": header, "plan/a.cc": lines, "plan/b.cc": user}
            faults = units.check_units(sources)
            self.assertEqual(len(faults), 1, hiding)
            self.assertRegex(faults[0], r"^plan/a.cc: \w+ hides that of plan/mark.h in plan/b.cc, ")
            alone = build[:3] + ["    one_unit = False,"] + build[3:]
            self.assertEqual(units.check_units({**sources, "plan/BUILD.bazel": alone}), [])
            self.assertEqual(units.check_units({**sources, "plan/b.cc": user[1:]}), [])  # without the header
            self.assertEqual(units.check_units({**sources, "plan/mark.h": ["namespace tercio::data {"] + header[1:]}), [])

    def kernel_faults(self, text, path="worker/engine/a.cc"):
        return cpp_rules.check_kernel_arguments({"kernels/ops.h": OPS, path: text.splitlines()}, check_sources.is_cpp)

    def test_arguments_of_kernels_are_named(self):
        for text in ("ops_.Residual({out, rows, columns});", "ops->Residual({out});", "device.ops().Residual(\n{out, rows, columns}\n);",
                     "kernels::ResidualCpu(a);\nResidual({Values(a, 1), rows}, pool);", "ops.ResidualTwice(first, {out, rows});",
                     "ops.ResidualTwice({.out = out}, {out, rows});", "const kernels::ResidualArgs args{out, rows, columns};",
                     "ResidualArgs args = {out, rows, columns};", "Run(ResidualArgs{out, rows});", "const Dropout dropout{0.5f, 7};",
                     "ResidualArgs Args(int64_t rows) const {\n  return {out, rows};\n}", "ResidualArgs A::Args(int64_t rows) {\n  return {out, rows};\n}",
                     "const auto make = [&](Values out) -> ResidualArgs {\n  return {out, rows};\n};",
                     "Expect(\"}\", [&] { ops.Residual({/* out */ out, rows}); });",
                     "static void Twice(int times, ResidualArgs args);\nTwice(2, {out, rows});", "void Twice(const kernels::ResidualArgs& args) {}\nTwice({out, rows});"):
            faults = self.kernel_faults(text)
            self.assertEqual(len(faults), 1, text)
            self.assertRegex(faults[0], r"^worker/engine/a.cc:\d+: (Residual|ResidualTwice|ResidualArgs|Twice|Dropout): name its members: ")
        self.assertEqual(self.kernel_faults("\n\nops.Residual(\n    {out, rows});"), [
            "worker/engine/a.cc:4: Residual: name its members: {.rows = rows, ...}"])

    def test_other_braces_keep_their_form(self):
        for text in ("ops_.Residual({.out = out, .rows = rows});", "ops_.Residual(\n    {// The sum.\n     .out = out});", "ResidualArgs args{};", "ops.Residual(args);",
                     "ops.Residual({.out = {out, format}, .rows = rows, .dropout = {}});", "ops.Copy({out, format}, from, count);", "reference::Residual({a, b}, c);",
                     "// ops.Residual({out, rows});", 'Log("ops.Residual({out, rows})");', "Split SplitRows(int64_t rows) {\n  return {rows, 1};\n}",
                     "ResidualArgs Args(int64_t rows) {\n  return {.out = out, .rows = rows};\n}\nSplit Other() { return {1, 2}; }",
                     "ResidualArgs Args(int64_t rows);\nSplit Other() { return {1, 2}; }", "const auto make = [&]() -> ResidualArgs { return {.out = out}; };",
                     "struct ResidualArgs {\n  Values out;\n};"):
            self.assertEqual(self.kernel_faults(text), [], text)
        self.assertEqual(self.kernel_faults("ops.Residual({out, rows});", "cli/a.cc"), [])
        self.assertEqual(cpp_rules.check_kernel_arguments({"worker/a.cc": ["ops.Residual({out, rows});"]}, check_sources.is_cpp), [])

    def test_a_switch_over_an_enum_of_ours_has_no_default(self):
        for case in ("Kind::kFoo", "plan::Kind::kFoo", "v1::AgentMessage::kHeartbeat"):
            lines = ["switch (kind) {", f"  case {case}:", "    return 1;", "  default:", "    return 2;", "}"]
            self.assertEqual(cpp_rules.check_switches({"plan/a.cc": lines}, check_sources.is_cpp),
                             ["plan/a.cc:4: name the other cases of this enum instead of default"])
        nested = ["switch (number) {", "  case 1:", "    switch (kind) {", "      case Kind::kFoo:", "        break;", "      default:", "        break;", "    }",
                  "  default:", "    break;", "}"]
        self.assertEqual(cpp_rules.check_switches({"plan/a.cc": nested}, check_sources.is_cpp),
                         ["plan/a.cc:6: name the other cases of this enum instead of default"])

    def test_a_switch_over_foreign_values_has_one(self):
        for case in ("1", "'a'", "EINVAL", "kExitUsage", "cudaErrorInvalidValue", "absl::StatusCode::kOk", "grpc::StatusCode::UNAVAILABLE", "v1::JOB_PHASE_QUEUED"):
            lines = ["switch (kind) {", f"  case {case}:", "    return 1;", "  default:", "    return 2;", "}"]
            self.assertEqual(cpp_rules.check_switches({"plan/a.cc": lines}, check_sources.is_cpp), [], case)
        good = ["switch (kind) {", "  case Kind::kFoo:", "    // default: none", '    return "default:";', "}", "Kind kind() = default;"]
        self.assertEqual(cpp_rules.check_switches({"plan/a.cc": good}, check_sources.is_cpp), [])

    def test_members_that_documents_name_exist(self):
        sources = {"plan/a.h": ["class Plan { void Make(); };"], "A.md": ["`Plan::Make` and `Plan::Make(int)`, also plan::Bake"]}
        self.assertEqual(check_sources.check_document_members(sources), [])
        sources["A.md"] = ["then `Plan::Bake`", "and `Planner::Make`"]
        self.assertEqual(check_sources.check_document_members(sources), ["A.md:1: Plan::Bake: Bake is not in the sources",
                                                                        "A.md:2: Planner::Make: Planner is not in the sources"])

    def test_namespaces_follow_folders(self):
        for path, namespace in (("worker/engine/a.h", "tercio::engine"), ("kernels/cuda/a.h", "tercio::kernels::cuda"), ("kernels/cpu/a.cc", "tercio::kernels"),
                                ("plan/planner/a.h", "tercio::plan"), ("common/gpus/a.h", "tercio::nvml"), ("tests/parity/a.h", "tercio::testing")):
            self.assertEqual(check_sources.check_namespaces({path: [f"namespace {namespace} {{"]}), [], path)
        for path, namespace in (("worker/engine/a.h", "tercio"), ("worker/engine/a.h", "tercio::engineer"), ("tokenizer/a.cc", "tercio::data"),
                                ("kernels/cuda/a.h", "tercio::kernels"), ("cli/plot/a.cc", "tercio::cli")):
            self.assertEqual(len(check_sources.check_namespaces({path: [f"namespace {namespace} {{"]})), 1, path)

    def test_a_new_folder_needs_a_rule(self):
        self.assertEqual(len(check_sources.check_includes({"elsewhere/a.cc": []})), 1)

    def test_a_build_file_parses_and_is_not_public(self):
        good = ["package(default_visibility = [", '    "//cli:__subpackages__",', "])"]
        self.assertEqual(check_sources.check_build_files({"plan/BUILD.bazel": good}), [])
        indented = ["a = 1", "    b = 2"]
        self.assertEqual(len(check_sources.check_build_files({"plan/BUILD.bazel": indented})), 1)
        public = ['package(default_visibility = ["//visibility:public"])']
        self.assertEqual(len(check_sources.check_build_files({"plan/BUILD.bazel": public})), 1)

    def test_a_header_says_what_it_is_and_is_included_once(self):
        self.assertEqual(check_sources.check_headers({"plan/a.h": ["// Lanes.", "#pragma once"]}), [])
        for name in ("plan/a.h", "kernels/cuda/a.cuh"):
            self.assertEqual(len(check_sources.check_headers({name: ["int a;"]})), 2)

    def test_unfinished_work_is_found(self):
        self.assertEqual(len(check_sources.check_words({"plan/a.cc": ["// TO" + "DO: more"]})), 1)
        self.assertEqual(len(check_sources.check_words({"plan/a.cc": ['Open("/ho' + 'me/me/a")']})), 1)
        self.assertEqual(check_sources.check_words({"plan/a.cc": ["// To do more is easy."]}), [])

    def test_comments_that_begin_in_the_middle_are_found_with_what_to_say_instead(self):
        for line in ("// Of the job.", "  # Whom it is for.", "// So many are kept.", "// It is made anew.", "// Killed for want of memory."):
            faults = check_sources.check_words({"plan/a.cc": [line]})
            self.assertEqual(len(faults), 1, line)
            self.assertRegex(faults[0], r'^plan/a.cc:1: ".+": \w')
        self.assertEqual(check_sources.check_words({"plan/a.cc": ["// Offsets of the job.", 'text("Of the job");']}), [])

    def test_documents_avoid_the_same_words_but_in_code_and_quotations(self):
        for line in ("Of the job.", "- **Whom we trust.** All.", "It is there. Who asks gets it.", "| a | So many are kept |", "1. It is made anew.",
                     "the disk takes nothing"):
            faults = check_sources.check_words({"docs/a.md": [line]})
            self.assertEqual(len(faults), 1, line)
            self.assertRegex(faults[0], r'^docs/a.md:1: ".+": \w')
        good = ["```", "Of the job.", "```", "    Who asks", "it reports `takes nothing` and \"comes again\"", "Offsets of the job. The one of which", "It is one",
                "of many"]
        self.assertEqual(check_sources.check_words({"docs/a.md": good}), [])

    def test_a_comment_names_only_files_that_exist(self):
        there = {"tests/tidy/check_sources.py": [], "plan/lanes.h": [], "proto/tercio/v1/job.proto": []}
        folder = tempfile.TemporaryDirectory(prefix="tercio-tidy-")
        self.addCleanup(folder.cleanup)
        root = folder.name
        for path in there:
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8"):
                pass
        for path, line in (("plan/a.h", "// As plan/absent.h has it."), ("plan/a.cc", "int a;  // see tests/tidy/absent.py"), ("plan/a.cu", "//   plan/absent.cu:"),
                           ("proto/tercio/v1/a.proto", "  int32 a = 1;  // (plan/absent.h)"), ("tests/a.py", "a = 1  # plan/" + "absent.cc"),
                           ("tests/a.py", '"""Checks plan/absent.cc."""'), ("tests/a.sh", "# tests/absent.sh --long"), ("plan/BUILD.bazel", "# plan/absent.bzl")):
            faults = check_sources.check_named_files(root, {**there, path: [line]})
            self.assertEqual(len(faults), 1, line)
            self.assertRegex(faults[0], rf"^{path}:1: \S+/absent\.\w+ does not exist$")
        good = ["// plan/lanes.h, tests/tidy/check_sources.py. See proto/tercio/v1/job.pb.h, proto/tercio/v1/job.grpc.pb.h",
                "// of https://host/plan/absent.h, others/absent.h, plan/*_absent.cc, plan/{a,b}.cc", 'Open("plan/absent.h");']
        self.assertEqual(check_sources.check_named_files(root, {**there, "plan/a.cc": good}), [])
        self.assertEqual(check_sources.check_named_files(root, {**there, "docs/a.md": ["// plan/absent.h"]}), [])  # check_documents

    def test_a_document_names_only_what_exists(self):
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
        sources = {"tests/tidy/check_sources.py": [], "a.md": ["see `tests/tidy/check_sources.py`"]}
        self.assertEqual(check_sources.check_documents(root, sources), [])
        sources["a.md"] = ["see `tests/tidy/absent.py` and [it](tests/absent.md)"]
        self.assertEqual(len(check_sources.check_documents(root, sources)), 2)


if __name__ == "__main__":
    python_cases.main()
