// Verbs that need neither a coordinator nor a model: plans, completion, version.
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/format.h"
#include "cli/local_cluster.h"
#include "cli/text.h"
#include "common/daemon.h"
#include "common/gpus.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "config/job_file.h"
#include "coordinator/planner/planner.h"
#include "plan/memory_map.h"

namespace tercio::cli {
namespace {

void PrintPlan(const v1::PlanReport& report) {
  std::vector<std::vector<std::string>> rows = {{"", "TENSOR", "PIPELINE", "DATA", "MICRO-BATCH",
                                                 "STEP", "TOKENS/S", "MEMORY", "BUBBLE", "NOTE"}};
  for (int i = 0; i < report.layouts_size(); ++i) {
    const v1::LayoutCandidate& candidate = report.layouts(i);
    const v1::Prediction& predicted = candidate.predicted();
    const bool valid = candidate.predicted_valid();
    rows.push_back(
        {i == report.chosen() ? "*" : "", absl::StrCat(candidate.layout().tensor()),
         absl::StrCat(candidate.layout().pipeline()), absl::StrCat(candidate.layout().data()),
         absl::StrCat(candidate.layout().micro_batch()),
         valid ? absl::StrFormat("%.3f s", predicted.step_seconds()) : "-",
         valid ? absl::StrFormat("%.0f", predicted.tokens_per_second()) : "-",
         valid ? absl::StrFormat("%.1f MiB",
                                 static_cast<double>(predicted.memory_bytes_peak()) / (1 << 20))
               : "-",
         valid ? absl::StrFormat("%.2f", predicted.bubble_ratio()) : "-", candidate.rejected()});
  }
  std::cout << Table(rows);
}

absl::StatusOr<int> PlanJob(const Options& options) {
  std::vector<std::string> changes = options.set;
  if (options.ranks > 0) changes.push_back(absl::StrCat("resources.ranks=", options.ranks));
  TERCIO_ASSIGN_OR_RETURN(v1::JobSpec spec, config::ParseJobFile(options.job_file, changes));
  if (spec.resources().device() == "auto") {
    TERCIO_ASSIGN_OR_RETURN(const Gpus gpus, FindGpus());
    config::ResolveDevice(&spec, !gpus.list.empty());
  }
  if (options.effective) {
    std::cout << config::EffectiveYaml(spec);
    return kExitOk;
  }
  if (!options.cluster.empty()) {
    return absl::InvalidArgumentError("--cluster is not supported by this version");
  }
  int ranks = std::max(1, spec.resources().ranks());
  if (!spec.parallelism().automatic()) {
    TERCIO_ASSIGN_OR_RETURN(const v1::Layout layout, [&] {
      v1::JobSpec known = spec;
      if (known.model().vocab_size() == 0) known.mutable_model()->set_vocab_size(256);
      return plan::LayoutOfJob(known);
    }());
    ranks = layout.tensor() * layout.pipeline() * layout.data();
  }
  TERCIO_ASSIGN_OR_RETURN(const coordinator::Cluster cluster, ClusterHere(spec, ranks));
  const v1::PlanReport report = coordinator::PlanLayouts(spec, cluster);
  if (options.format() != Output::kTable) {
    std::cout << PlanReportToJson(report).dump(2) << std::endl;
  } else {
    PrintPlan(report);
  }
  if (report.chosen() >= 0) return kExitOk;
  return Fail(absl::InvalidArgumentError(
      std::string(coordinator::ChooseLayout(spec, cluster).status().message())));
}

int CodeOf(const absl::StatusOr<int>& code) { return code.ok() ? *code : Fail(code.status()); }

}  // namespace

int Plan(const Options& options) { return CodeOf(PlanJob(options)); }

int Completion(const Options& options) {
  std::cout << CompletionScript(options.shell);
  return kExitOk;
}

std::string VersionLine() { return absl::StrCat("tercio ", kVersion, " commit ", kCommit); }

int Version(const Options& options) {
  if (options.format() != Output::kTable) {
    std::cout << Json({{"version", kVersion}, {"commit", kCommit}}).dump(2) << std::endl;
  } else {
    std::cout << VersionLine() << "\n";
  }
  return kExitOk;
}

}  // namespace tercio::cli
