#include "cli/commands/plan_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tercio::cli {
namespace {

using Mode = PlanMode;

const std::vector<Mode>& EveryMode() {
  static const auto* modes = new std::vector<Mode>{Mode::kLayouts,   Mode::kTensors, Mode::kProgram,
                                                   Mode::kEffective, Mode::kCluster, Mode::kJob};
  return *modes;
}

std::vector<Mode> EveryModeBut(const std::vector<Mode>& excluded) {
  std::vector<Mode> modes;
  for (const Mode mode : EveryMode()) {
    if (std::find(excluded.begin(), excluded.end(), mode) == excluded.end()) modes.push_back(mode);
  }
  return modes;
}

bool Has(const std::vector<Mode>& modes, Mode mode) {
  return std::find(modes.begin(), modes.end(), mode) != modes.end();
}

bool AsksFor(Mode mode, const PlanOptions& options) {
  switch (mode) {
    case Mode::kLayouts:
      return false;
    case Mode::kTensors:
      return options.explain_tensors;
    case Mode::kProgram:
      return options.program;
    case Mode::kEffective:
      return options.effective;
    case Mode::kCluster:
      return !options.cluster.empty();
    case Mode::kJob:
      return !options.job.empty();
  }
  return false;
}

// Its rows about a coordinator: with values of the environment they were not given.
void AddReach(std::vector<PlanOption>* all) {
  const std::vector<Mode> job = {Mode::kJob};
  const auto add = [&](const char* name, bool (*given)(const PlanOptions&)) {
    all->push_back({name, given, job});
  };
  add("--coordinator",
      [](const PlanOptions& o) { return o.coordinator != CoordinatorFromEnvironment(); });
  add("--tls-cert",
      [](const PlanOptions& o) { return o.tls.certificate != TlsFromEnvironment().certificate; });
  add("--tls-key", [](const PlanOptions& o) { return o.tls.key != TlsFromEnvironment().key; });
  add("--tls-ca",
      [](const PlanOptions& o) { return o.tls.authority != TlsFromEnvironment().authority; });
  add("--state-dir", [](const PlanOptions& o) { return !o.state_dir.empty(); });
}

void AddForClusters(std::vector<PlanOption>* all) {
  const std::vector<Mode> cluster = {Mode::kCluster};
  const auto add = [&](const char* name, bool (*given)(const PlanOptions&),
                       const char* needs = "") {
    all->push_back({name, given, cluster, needs});
  };
  add("--what-if", [](const PlanOptions& o) { return !o.what_if.empty(); });
  add("--explain", [](const PlanOptions& o) { return !o.explain.empty(); });
  add("--compare", [](const PlanOptions& o) { return !o.compare.empty(); });
  add("--tokens", [](const PlanOptions& o) { return o.tokens > 0; });
  add("--scale", [](const PlanOptions& o) { return !o.scale.empty(); });
  add(
      "--weak", [](const PlanOptions& o) { return o.weak; }, "--scale N,N,...");
  add("--largest", [](const PlanOptions& o) { return o.largest; });
  add("--simulate", [](const PlanOptions& o) { return !o.simulate.empty(); });
  add(
      "--seed", [](const PlanOptions& o) { return o.seed >= 0; }, "--simulate DURATION");
  add("--svg", [](const PlanOptions& o) { return !o.svg.empty(); });
  add("--timeline", [](const PlanOptions& o) { return !o.timeline.empty(); });
}

std::vector<PlanOption> MakeAll() {
  std::vector<PlanOption> all;
  // The job file is YAML in any case.
  all.push_back({"--output", [](const PlanOptions& o) { return !o.output.empty(); },
                 EveryModeBut({Mode::kEffective})});
  AddReach(&all);
  all.push_back({"job_file", [](const PlanOptions& o) { return !o.job_file.empty(); },
                 EveryModeBut({Mode::kJob})});
  all.push_back(
      {"--set", [](const PlanOptions& o) { return !o.set.empty(); }, EveryModeBut({Mode::kJob})});
  all.push_back({"--job", [](const PlanOptions& o) { return !o.job.empty(); }, {Mode::kJob}});
  // The file says how many GPUs a cluster has.
  all.push_back({"--ranks", [](const PlanOptions& o) { return o.ranks > 0; },
                 EveryModeBut({Mode::kJob, Mode::kCluster})});
  all.push_back(
      {"--cluster", [](const PlanOptions& o) { return !o.cluster.empty(); }, {Mode::kCluster}});
  AddForClusters(&all);
  all.push_back(
      {"--effective", [](const PlanOptions& o) { return o.effective; }, {Mode::kEffective}});
  all.push_back({"--explain-tensors",
                 [](const PlanOptions& o) { return o.explain_tensors; },
                 {Mode::kTensors}});
  all.push_back({"--program", [](const PlanOptions& o) { return o.program; }, {Mode::kProgram}});
  return all;
}

// REQUIRES: the option is given, and has no effect in `mode`.
absl::Status NoEffect(const PlanOption& option, Mode mode) {
  if (mode != Mode::kLayouts) {
    return absl::InvalidArgumentError(absl::StrCat(option.name, " has no effect with ",
                                                   OptionOf(mode), "; leave one of the two out"));
  }
  std::vector<std::string> ways;
  for (const Mode each : option.modes) ways.push_back(OptionOf(each));
  return absl::InvalidArgumentError(absl::StrCat(option.name, " has no effect without ",
                                                 absl::StrJoin(ways, " or "), "; add it, or leave ",
                                                 option.name, " out"));
}

}  // namespace

std::string OptionOf(PlanMode mode) {
  switch (mode) {
    case Mode::kLayouts:
      return "";
    case Mode::kTensors:
      return "--explain-tensors";
    case Mode::kProgram:
      return "--program";
    case Mode::kEffective:
      return "--effective";
    case Mode::kCluster:
      return "--cluster CLUSTER.yaml";
    case Mode::kJob:
      return "--job JOB";
  }
  return "";
}

const std::vector<PlanOption>& AllPlanOptions() {
  static const auto* all = new std::vector<PlanOption>(MakeAll());
  return *all;
}

absl::Status CheckPlanOptions(const PlanOptions& options) {
  if (options.job_file.empty() == options.job.empty()) {
    return absl::InvalidArgumentError(
        "plan needs a job file, or --job with a job that has run; give one of them");
  }
  Mode mode = Mode::kLayouts;
  for (const Mode each : EveryMode()) {
    if (AsksFor(each, options)) mode = each;
  }
  for (const PlanOption& option : AllPlanOptions()) {
    if (!option.given(options)) continue;
    if (!Has(option.modes, mode)) return NoEffect(option, mode);
    const std::string needed = option.needs;
    for (const PlanOption& other : AllPlanOptions()) {
      // "--scale N,N,..." begins with the name.
      if (!needed.starts_with(absl::StrCat(other.name, " ")) || other.given(options)) continue;
      return absl::InvalidArgumentError(absl::StrCat(option.name, " has no effect without ", needed,
                                                     "; add it, or leave ", option.name, " out"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tercio::cli
