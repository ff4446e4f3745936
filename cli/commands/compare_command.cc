// compare: runs the variants of an experiment one after the other, and shows them side by side.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/client.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_source.h"
#include "cli/commands/private_run.h"
#include "cli/commands/run_book.h"
#include "cli/compare/method.h"
#include "cli/compare/method_json.h"
#include "cli/compare/page.h"
#include "cli/compare/results.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/private_pair.h"
#include "cli/text.h"
#include "common/daemon/daemon.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "config/experiment_file.h"
#include "config/notices.h"
#include "plan/names.h"
#include "plan/plan_builder.h"
#include "plan/planner/planner.h"

namespace tercio::cli {
namespace {

using compare::Method;
using compare::MethodState;

// A file of results has a line of JSON for each step; anything larger is some other file.
constexpr size_t kMostBaselineBytes = size_t{256} << 20;

// The baselines of the experiment, labelled with their names there.
absl::StatusOr<std::vector<Method>> ReadBaselines(const config::Experiment& experiment) {
  std::vector<Method> all;
  for (const config::Baseline& baseline : experiment.baselines) {
    TERCIO_ASSIGN_OR_RETURN(const std::string text,
                            ReadInput(baseline.results, kMostBaselineBytes));
    TERCIO_ASSIGN_OR_RETURN(std::vector<Method> methods,
                            compare::ParseMethods(text, baseline.results));
    for (Method& method : methods) {
      // A file may hold several, such as one process and several.
      method.name = methods.size() == 1 || method.name.empty()
                        ? baseline.name
                        : absl::StrCat(baseline.name, ": ", method.name);
      all.push_back(std::move(method));
    }
  }
  return all;
}

// Errors that are those of one job, so that the others can still run.
bool IsFaultOfJob(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsResourceExhausted(status);
}

// One call of `tercio compare`.
class Comparison {
 public:
  Comparison(const CompareOptions& options, config::Experiment experiment,
             std::vector<Method> baselines)
      : options_(options),
        experiment_(std::move(experiment)),
        baselines_(std::move(baselines)),
        methods_(experiment_.variants.size()),
        jobs_(experiment_.variants.size()) {}

  absl::StatusOr<int> Run();

 private:
  bool OnCluster() const { return !options_.cluster.empty(); }
  std::string PathOf(const std::string& name) const {
    // A directory may be given with a slash at its end.
    return (std::filesystem::path(options_.directory) / name).string();
  }
  const config::Variant& VariantOf(const PlannedRun& run) const {
    return experiment_.variants[run.variant];
  }

  absl::Status Open();
  absl::Status CheckVariants();
  absl::Status FindExisting();
  absl::Status FindExistingAt(Client& client);
  absl::Status PrepareData();
  absl::Status RunMissing();
  absl::Status RunOne(const PlannedRun& run);
  absl::Status RunAt(Client& client, PrivatePair* pair, const PlannedRun& run);
  absl::StatusOr<std::string> Begin(Client& client, const PlannedRun& run);
  std::string TitleOf(const PlannedRun& run) const;
  void Keep(const PlannedRun& run, Method method);
  void Keep(const PlannedRun& run, report::JobData job);
  compare::Results ResultsSoFar() const;
  absl::Status Write() const;
  void Print() const;
  int ExitCode() const;

  CompareOptions options_;
  const config::Experiment experiment_;
  const std::vector<Method> baselines_;
  std::unique_ptr<FileLock> lock_;
  std::optional<RunBook> book_;
  std::unique_ptr<Client> cluster_;                 // null on this machine
  std::vector<PlannedRun> planned_;                 // that are not done
  std::map<std::string, v1::JobState> states_;      // of recorded jobs that have not succeeded
  std::map<size_t, v1::JobSpec> prepared_;          // by variant, with the vocabulary
  std::vector<std::vector<Method>> methods_;        // runs that have ended, by variant
  std::vector<std::vector<report::JobData>> jobs_;  // by variant
  int stopped_by_ = 0;                              // signal
};

absl::Status Comparison::Open() {
  if (options_.job_state.empty()) options_.job_state = PathOf("state");
  TERCIO_RETURN_IF_ERROR(AsConflict(MakeDirectories(options_.directory)));
  absl::StatusOr<std::unique_ptr<FileLock>> lock =
      FileLock::Acquire(PathOf(".runs.lock"), WhenHeld::kFail);
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(absl::StrCat("another tercio compare runs in ",
                                                      options_.directory,
                                                      "; wait for it or give another "
                                                      "--output"));
  }
  TERCIO_RETURN_IF_ERROR(AsConflict(lock.status()));
  lock_ = *std::move(lock);
  TERCIO_ASSIGN_OR_RETURN(book_, RunBook::Open(PathOf("runs.json")));
  if (!OnCluster()) return absl::OkStatus();
  GlobalOptions reach = options_;
  reach.coordinator = options_.cluster;
  reach.state_dir.clear();
  TERCIO_ASSIGN_OR_RETURN(cluster_, Client::Connect(reach));
  return absl::OkStatus();
}

// A variant that can never run is a mistake in the file, unlike one that lacks memory here.
absl::Status Comparison::CheckVariants() {
  std::set<std::string> notices;
  for (const config::Variant& variant : experiment_.variants) {
    const absl::Status status = plan::AdmitJob(variant.job, plan::kUnknownMemoryBytes);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(options_.experiment_file, ": variant '", variant.name,
                                       "': ", std::string(status.message())));
    }
    for (const std::string& notice : config::KeysWithoutEffect(variant.job)) {
      if (notices.insert(notice).second) {
        PrintNotices({absl::StrCat("variant '", variant.name, "': ", notice)});
      }
    }
  }
  return absl::OkStatus();
}

void Comparison::Keep(const PlannedRun& run, Method method) {
  methods_[run.variant].push_back(std::move(method));
}

void Comparison::Keep(const PlannedRun& run, report::JobData job) {
  job.label = VariantOf(run).name;
  Keep(run, compare::MethodOfJob(job.label, job));
  jobs_[run.variant].push_back(std::move(job));
}

absl::Status Comparison::FindExistingAt(Client& client) {
  std::vector<PlannedRun> missing;
  for (PlannedRun& run : planned_) {
    if (!run.job.empty()) {
      const absl::StatusOr<v1::JobStatus> status = client.Get(run.job);
      if (absl::IsNotFound(status.status())) {
        // It was deleted, or is of another coordinator.
        states_[run.job] = v1::JOB_STATE_UNSPECIFIED;
      } else {
        TERCIO_RETURN_IF_ERROR(status.status());
        states_[run.job] = status->state();
        if (status->state() == v1::JOB_STATE_SUCCEEDED) {
          std::fprintf(stderr, "%s: already there (%s)\n", ForTerminal(TitleOf(run)).c_str(),
                       run.job.c_str());
          TERCIO_ASSIGN_OR_RETURN(report::JobData job, GatherJob(client, run.job));
          Keep(run, std::move(job));
          continue;
        }
      }
    }
    missing.push_back(std::move(run));
  }
  planned_ = std::move(missing);
  return absl::OkStatus();
}

absl::Status Comparison::FindExisting() {
  std::vector<std::string> digests;
  for (const config::Variant& variant : experiment_.variants) {
    digests.push_back(DigestOfJob(variant.job));
  }
  planned_ = PlanRuns(digests, options_.repeat, book_->runs());
  if (OnCluster()) return FindExistingAt(*cluster_);
  // The jobs of earlier calls were in another directory, or there were none.
  if (HoldsNoJobs(options_.job_state)) return absl::OkStatus();
  // It answers from the store, and ends before a pair takes the lock.
  GlobalOptions reach = options_;
  reach.state_dir = options_.job_state;
  TERCIO_ASSIGN_OR_RETURN(const auto reader, Client::Connect(reach));
  return FindExistingAt(*reader);
}

// Before the first variant: data is common to all of them, and a fault of it is none of one.
absl::Status Comparison::PrepareData() {
  if (OnCluster()) return absl::OkStatus();
  const MayEnd words("interrupted while the data was prepared; what has run is kept\n");
  for (const PlannedRun& run : planned_) {
    if (prepared_.contains(run.variant)) continue;
    TERCIO_ASSIGN_OR_RETURN(PreparedJob prepared,
                            PrepareHere(VariantOf(run).job, options_.job_state));
    prepared_[run.variant] = std::move(prepared.spec);
  }
  return absl::OkStatus();
}

// "2/4 data 2", with --repeat also "run 2 of 3".
std::string Comparison::TitleOf(const PlannedRun& run) const {
  std::string title =
      absl::StrCat(run.variant + 1, "/", experiment_.variants.size(), " ", VariantOf(run).name);
  if (options_.repeat > 1) {
    absl::StrAppend(&title, ", run ", run.repetition + 1, " of ", options_.repeat);
  }
  return title;
}

// The id of the job that runs the variant: a new one, or one that was stopped or left behind.
absl::StatusOr<std::string> Comparison::Begin(Client& client, const PlannedRun& run) {
  const auto found = states_.find(run.job);
  const v1::JobState state = found == states_.end() ? v1::JOB_STATE_UNSPECIFIED : found->second;
  if (state == v1::JOB_STATE_CANCELLED) {
    v1::ResumeRequest request;
    request.set_job(run.job);
    const absl::StatusOr<std::string> id = SendResume(client, request);
    if (id.ok() || !IsFaultOfJob(id.status())) return id;
    PrintNotices({absl::StrCat(TitleOf(run), ": ", run.job, " cannot be resumed and starts over: ",
                               std::string(id.status().message()))});
  } else if (state != v1::JOB_STATE_UNSPECIFIED && !IsTerminal(state)) {
    // A job whose command was killed has not ended: it continues by itself.
    return run.job;
  }
  TERCIO_ASSIGN_OR_RETURN(const std::string id, client.Submit(VariantOf(run).job));
  TERCIO_RETURN_IF_ERROR(book_->Record({run.digest, id, VariantOf(run).name}, run.job));
  return id;
}

absl::Status Comparison::RunAt(Client& client, PrivatePair* pair, const PlannedRun& run) {
  const absl::StatusOr<std::string> id = Begin(client, run);
  if (!id.ok() && IsFaultOfJob(id.status())) {
    Keep(run, compare::MethodWithoutJob(VariantOf(run).name, MethodState::kFailed,
                                        std::string(id.status().message())));
    return absl::OkStatus();
  }
  TERCIO_RETURN_IF_ERROR(id.status());
  FollowOptions follow;
  follow.title = TitleOf(run);
  TERCIO_ASSIGN_OR_RETURN(const PrivateEnd end, FollowToEnd(pair, client, *id, follow));
  stopped_by_ = end.signal;
  TERCIO_ASSIGN_OR_RETURN(report::JobData job, GatherJob(client, *id));
  Keep(run, std::move(job));
  return absl::OkStatus();
}

absl::Status Comparison::RunOne(const PlannedRun& run) {
  if (OnCluster()) return RunAt(*cluster_, nullptr, run);
  const v1::JobSpec& spec = prepared_.at(run.variant);
  if (const absl::Status fits = CheckMemoryHere(spec); !fits.ok()) {
    if (!IsFaultOfJob(fits)) return fits;
    Keep(run, compare::MethodWithoutJob(VariantOf(run).name, MethodState::kFailed,
                                        std::string(fits.message())));
    return absl::OkStatus();
  }
  TERCIO_ASSIGN_OR_RETURN(const PrivateCluster own,
                          StartPrivateCluster(spec, options_.job_state, Announce::kNo));
  return RunAt(*own.client, own.pair.get(), run);
}

absl::Status Comparison::RunMissing() {
  for (const PlannedRun& run : planned_) {
    {
      // Signals that came while no job was there to be stopped.
      const MayEnd words("interrupted between two runs; what has run is kept\n");
    }
    std::fprintf(stderr, "%s\n", ForTerminal(TitleOf(run)).c_str());
    TERCIO_RETURN_IF_ERROR(RunOne(run));
    const Method& method = methods_[run.variant].back();
    if (method.state != MethodState::kSucceeded && stopped_by_ == 0) {
      std::fprintf(stderr, "error: %s: %s: %s\n", ForTerminal(TitleOf(run)).c_str(),
                   compare::TextOf(method.state).c_str(), ForTerminal(method.error).c_str());
    }
    // The page can be looked at while the others run.
    TERCIO_RETURN_IF_ERROR(Write());
    if (stopped_by_ != 0) return absl::OkStatus();
  }
  return absl::OkStatus();
}

compare::Results Comparison::ResultsSoFar() const {
  std::vector<Method> variants;
  for (size_t i = 0; i < experiment_.variants.size(); ++i) {
    variants.push_back(methods_[i].empty() ? compare::MethodWithoutJob(experiment_.variants[i].name,
                                                                       MethodState::kNotRun, "")
                                           : compare::Together(methods_[i]));
  }
  return compare::ResultsOf(experiment_, variants, baselines_);
}

absl::Status Comparison::Write() const {
  const compare::Results results = ResultsSoFar();
  std::vector<report::JobData> jobs;
  for (const std::vector<report::JobData>& of_variant : jobs_) {
    if (!of_variant.empty()) jobs.push_back(of_variant.front());
  }
  const auto write = [this](const std::string& name, const std::string& text) {
    return AsConflict(WriteFileDurably(PathOf(name), text));
  };
  TERCIO_RETURN_IF_ERROR(write("results.json", compare::ResultsText(results)));
  TERCIO_RETURN_IF_ERROR(write("results.csv", compare::ResultsToCsv(results)));
  std::set<std::string> drawn;
  for (const compare::NamedFigure& figure : compare::FiguresOf(results, plot::SvgPlace::kOwnFile)) {
    TERCIO_RETURN_IF_ERROR(write(figure.name + ".svg", figure.svg));
    drawn.insert(figure.name);
  }
  // A figure of an earlier call, about which nothing is known any more, would pass for one of
  // these.
  for (const std::string& name : compare::FigureNames()) {
    if (!drawn.contains(name) && PathExists(PathOf(name + ".svg"))) {
      TERCIO_RETURN_IF_ERROR(AsConflict(RemoveTree(PathOf(name + ".svg"))));
    }
  }
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  return write("index.html", compare::ComparePage(results, jobs, kVersion, now));
}

void Comparison::Print() const {
  const compare::Results results = ResultsSoFar();
  if (options_.format() == Output::kTable) {
    std::cout << Table(compare::ResultRows(results)) << "page " << PathOf("index.html") << "\n";
    return;
  }
  Json methods = Json::array();
  for (const Method& method : results.methods) {
    Json json = compare::MethodToJson(method);
    json.erase("history");
    methods.push_back(std::move(json));
  }
  PrintJson({{"directory", options_.directory},
             {"page", PathOf("index.html")},
             {"experiment", experiment_.name},
             {"methods", methods}},
            options_.format());
}

int Comparison::ExitCode() const {
  if (stopped_by_ == SIGINT) return kExitInterrupted;
  if (stopped_by_ == SIGTERM) return kExitTerminated;
  for (const std::vector<Method>& runs : methods_) {
    if (runs.empty() || compare::Together(runs).state != MethodState::kSucceeded) {
      return kExitJobFailed;
    }
  }
  return kExitOk;
}

absl::StatusOr<int> Comparison::Run() {
  TERCIO_RETURN_IF_ERROR(CheckVariants());
  TERCIO_RETURN_IF_ERROR(Open());
  TERCIO_RETURN_IF_ERROR(FindExisting());
  TERCIO_RETURN_IF_ERROR(PrepareData());
  // Also when nothing has to run: baselines and costs may have changed.
  TERCIO_RETURN_IF_ERROR(Write());
  TERCIO_RETURN_IF_ERROR(RunMissing());
  Print();
  if (stopped_by_ != 0) {
    std::fprintf(stderr, "to resume: give the same command again\n");
  }
  return ExitCode();
}

absl::StatusOr<int> CompareVariants(const CompareOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(
      config::Experiment experiment,
      config::ParseExperimentFile(options.experiment_file,
                                  options.allow_different ? config::DifferentTraining::kAllow
                                                          : config::DifferentTraining::kRefuse));
  TERCIO_ASSIGN_OR_RETURN(std::vector<Method> baselines, ReadBaselines(experiment));
  // On a cluster `auto` is decided by its coordinator.
  for (config::Variant& variant : experiment.variants) {
    if (options.cluster.empty()) TERCIO_RETURN_IF_ERROR(ChooseDevice(&variant.job));
  }
  BlockStopSignals();  // before threads are started
  return Comparison(options, std::move(experiment), std::move(baselines)).Run();
}

}  // namespace

int Compare(const CompareOptions& options) {
  const absl::StatusOr<int> code = CompareVariants(options);
  return code.ok() ? *code : Fail(code.status());
}

}  // namespace tercio::cli
