// `tercio tune`: runs the layouts of a job that are predicted to be the fastest for some steps each
// on this machine, and writes the job with the fastest one. What has run is kept in the output
// directory, so that an interrupted call resumes where it was.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_source.h"
#include "cli/commands/local_cluster.h"
#include "cli/commands/private_run.h"
#include "cli/commands/run_book.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/private_pair.h"
#include "cli/report/numbers.h"
#include "cli/report/plan_parts.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "common/daemon/daemon.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "config/job_file.h"
#include "config/notices.h"
#include "plan/names.h"
#include "plan/plan_builder.h"
#include "plan/planner/planner.h"
#include "plan/planner/search.h"
#include "plan/planner/tuning.h"

namespace tercio::cli {
namespace {

std::string LayoutText(const v1::Layout& layout) {
  std::string text = absl::StrCat(layout.tensor(), "x", PipelineText(layout), "x", layout.data(),
                                  ", micro_batch ", layout.micro_batch());
  const std::string settings = SettingsText(layout);
  if (!settings.empty()) absl::StrAppend(&text, ", ", settings);
  return text;
}

Json MeasuredToJson(const plan::MeasuredStep& step) {
  return {{"step_seconds", step.seconds},
          {"compute", step.compute},
          {"wait", step.wait},
          {"optimizer", step.optimizer}};
}

// The measurements of earlier calls, by the digest of what ran.
class TrialBook {
 public:
  // A missing file is an empty book. FAILED_PRECONDITION: it is something else.
  static absl::StatusOr<TrialBook> Open(const std::string& path) {
    TrialBook book(path);
    if (!PathExists(path)) return book;
    TERCIO_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    const bool is_book = json.is_object() && json.contains("trials") && json["trials"].is_object();
    if (!is_book) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": not a file of tercio tune; give another --output"));
    }
    for (const auto& [digest, trial] : json["trials"].items()) {
      const auto number = [&trial = trial](const char* key) {
        return trial.is_object() && trial.contains(key) && trial[key].is_number()
                   ? trial[key].get<double>()
                   : 0;
      };
      plan::MeasuredStep step = {number("step_seconds"), number("compute"), number("wait"),
                                 number("optimizer")};
      if (step.seconds > 0) book.trials_[digest] = step;
    }
    return book;
  }

  std::optional<plan::MeasuredStep> Find(const std::string& digest) const {
    const auto found = trials_.find(digest);
    if (found == trials_.end()) return std::nullopt;
    return found->second;
  }

  absl::Status Record(const std::string& digest, const plan::MeasuredStep& step) {
    trials_[digest] = step;
    Json trials = Json::object();
    for (const auto& [each, measured] : trials_) trials[each] = MeasuredToJson(measured);
    return AsConflict(WriteFileDurably(path_, Json({{"trials", trials}}).dump(1) + "\n"));
  }

 private:
  explicit TrialBook(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::map<std::string, plan::MeasuredStep> trials_;
};

// One call.
class Tuning {
 public:
  Tuning(const TuneOptions& options, v1::JobSpec spec)
      : options_(options), spec_(std::move(spec)), began_(std::chrono::steady_clock::now()) {}

  absl::StatusOr<int> Run();

 private:
  std::string PathOf(const std::string& name) const {
    return (std::filesystem::path(options_.directory) / name).string();
  }
  double Elapsed() const {
    const auto passed = std::chrono::steady_clock::now() - began_;
    return std::chrono::duration<double>(passed).count();
  }

  absl::Status Open();
  absl::Status Try(plan::Trial* trial);
  absl::Status TryAll();
  v1::JobSpec JobOf(const plan::Trial& trial) const;
  absl::Status Write() const;
  void Print() const;

  const TuneOptions& options_;
  v1::JobSpec spec_;
  const std::chrono::steady_clock::time_point began_;
  std::unique_ptr<FileLock> lock_;
  std::optional<TrialBook> book_;
  std::vector<plan::Trial> trials_;
  int ran_ = 0;
  double longest_ = 0;  // seconds of a trial
  int stopped_by_ = 0;  // signal
};

absl::Status Tuning::Open() {
  TERCIO_RETURN_IF_ERROR(AsConflict(MakeDirectories(options_.directory)));
  absl::StatusOr<std::unique_ptr<FileLock>> lock =
      FileLock::Acquire(PathOf(".tune.lock"), WhenHeld::kFail);
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(absl::StrCat("another tercio tune runs in ",
                                                      options_.directory,
                                                      "; wait for it or give another --output"));
  }
  TERCIO_RETURN_IF_ERROR(AsConflict(lock.status()));
  lock_ = *std::move(lock);
  TERCIO_ASSIGN_OR_RETURN(book_, TrialBook::Open(PathOf("trials.json")));
  const MayEnd words("interrupted while the data was prepared; what has run is kept\n");
  TERCIO_ASSIGN_OR_RETURN(PreparedJob prepared, PrepareHere(spec_, PathOf("state")));
  spec_ = std::move(prepared.spec);
  const int ranks = std::max(1, spec_.resources().ranks());
  TERCIO_ASSIGN_OR_RETURN(const ClusterHere here, FindClusterHere(spec_, ranks));
  if (!here.measured.empty()) PrintNotices({here.measured});
  trials_ = plan::TrialsOf(spec_, here.cluster);
  if (trials_.empty()) return plan::ChooseLayout(spec_, here.cluster).status();
  for (plan::Trial& trial : trials_) trial.measured = book_->Find(DigestOfJob(JobOf(trial)));
  return absl::OkStatus();
}

// Some steps of the job, which leave nothing behind but their times.
v1::JobSpec Tuning::JobOf(const plan::Trial& trial) const {
  v1::JobSpec job = plan::WithLayout(spec_, trial.layout);
  job.set_name(absl::StrCat("tune ", LayoutText(trial.layout)));
  job.mutable_training()->set_steps(options_.steps);
  job.mutable_training()->clear_epochs();
  job.mutable_training()->clear_evaluate();
  job.mutable_data()->clear_validation_path();
  job.mutable_data()->clear_test_path();
  // The one after the last step is unavoidable.
  job.mutable_checkpoint()->set_every_steps(0);
  job.mutable_checkpoint()->clear_every_seconds();
  job.mutable_checkpoint()->clear_peer_copies();
  job.mutable_checkpoint()->clear_path();
  return job;
}

absl::Status Tuning::Try(plan::Trial* trial) {
  const double began = Elapsed();
  const v1::JobSpec job = JobOf(*trial);
  std::fprintf(stderr, "trial %d: %s\n", ++ran_, LayoutText(trial->layout).c_str());
  // The notice about figures was printed when the trials were listed.
  TERCIO_ASSIGN_OR_RETURN(const PrivateCluster cluster,
                          StartPrivateCluster(job, PathOf("state"), Announce::kNo));
  Client& client = *cluster.client;
  TERCIO_ASSIGN_OR_RETURN(const std::string id, client.Submit(job));
  FollowOptions follow;
  follow.show_progress = false;
  follow.ranks = true;
  TERCIO_ASSIGN_OR_RETURN(const PrivateEnd end,
                          FollowToEnd(cluster.pair.get(), client, id, follow));
  stopped_by_ = end.signal;
  if (stopped_by_ != 0) return absl::OkStatus();
  TERCIO_ASSIGN_OR_RETURN(const report::JobData data, GatherJob(client, id));
  const report::Numbers numbers = report::NumbersOf(data);
  if (end.status.state() != v1::JOB_STATE_SUCCEEDED || !numbers.step_seconds.has_value()) {
    trial->failed = true;
    std::fprintf(stderr, "error: %s: %s\n", LayoutText(trial->layout).c_str(),
                 ForTerminal(end.status.error()).c_str());
    return absl::OkStatus();
  }
  plan::MeasuredStep step;
  step.seconds = numbers.step_seconds->median;
  for (const report::PlanPart& part : report::PlanPartsOf(data, numbers)) {
    const std::string key = part.key;
    if (key == "compute") step.compute = part.measured.value_or(0);
    if (key == "wait") step.wait = part.measured.value_or(0);
    if (key == "optimizer") step.optimizer = part.measured.value_or(0);
  }
  trial->measured = step;
  longest_ = std::max(longest_, Elapsed() - began);
  TERCIO_RETURN_IF_ERROR(book_->Record(DigestOfJob(job), step));
  // Its checkpoint is of no use to anybody.
  grpc::ClientContext context;
  v1::DeleteRequest request;
  request.set_job(id);
  request.set_checkpoints(true);
  v1::DeleteResponse response;
  return CallStatus(client.stub().Delete(&context, request, &response), client);
}

absl::Status Tuning::TryAll() {
  while (const std::optional<size_t> next = plan::NextTrial(trials_)) {
    // The budget is kept as well as the trials before allow.
    if (ran_ > 0 && Elapsed() + longest_ > options_.budget) {
      std::fprintf(stderr, "the budget is used up; to continue, give the same command again\n");
      break;
    }
    {
      // Signals that came while no job was there to be stopped.
      const MayEnd words("interrupted between two trials; what has run is kept\n");
    }
    TERCIO_RETURN_IF_ERROR(Try(&trials_[*next]));
    if (stopped_by_ != 0) return absl::OkStatus();
    TERCIO_RETURN_IF_ERROR(Write());
  }
  return absl::OkStatus();
}

absl::Status Tuning::Write() const {
  const std::optional<size_t> best = plan::BestTrial(trials_);
  if (!best.has_value()) return absl::OkStatus();
  const v1::JobSpec job = plan::WithLayout(spec_, trials_[*best].layout);
  return AsConflict(WriteFileDurably(PathOf("job.yaml"), config::EffectiveYaml(job)));
}

void Tuning::Print() const {
  const std::optional<size_t> best = plan::BestTrial(trials_);
  const plan::Correction correction = plan::CorrectionOf(trials_);
  std::vector<std::vector<std::string>> rows = {
      {"", "LAYOUT", "PREDICTED", "CORRECTED", "MEASURED"}};
  Json list = Json::array();
  for (size_t i = 0; i < trials_.size(); ++i) {
    const plan::Trial& trial = trials_[i];
    if (!trial.measured.has_value()) continue;
    const double predicted = plan::CorrectedSeconds(trial.predicted, plan::Correction());
    const double corrected = plan::CorrectedSeconds(trial.predicted, correction);
    rows.push_back({best == i ? "*" : "", LayoutText(trial.layout),
                    absl::StrFormat("%.4f s", predicted), absl::StrFormat("%.4f s", corrected),
                    absl::StrFormat("%.4f s", trial.measured->seconds)});
    Json json = LayoutToJson(trial.layout);
    json["predicted_seconds"] = predicted;
    json["corrected_seconds"] = corrected;
    json["measured"] = MeasuredToJson(*trial.measured);
    list.push_back(std::move(json));
  }
  const std::string job = best.has_value() ? PathOf("job.yaml") : "";
  if (options_.format() == Output::kTable) {
    std::cout << Table(rows)
              << absl::StrFormat(
                     "predictions times %.2f for computing, %.2f for waiting, %.2f for "
                     "the optimizer\n",
                     correction.compute, correction.wait, correction.optimizer);
    if (best.has_value()) std::cout << "job " << job << "\n";
    return;
  }
  PrintJson({{"job_file", best.has_value() ? Json(job) : Json()},
             {"layout", best.has_value() ? LayoutToJson(trials_[*best].layout) : Json()},
             {"candidates", trials_.size()},
             {"trials", list},
             {"correction",
              {{"compute", correction.compute},
               {"wait", correction.wait},
               {"optimizer", correction.optimizer}}}},
            options_.format());
}

absl::StatusOr<int> Tuning::Run() {
  TERCIO_RETURN_IF_ERROR(Open());
  TERCIO_RETURN_IF_ERROR(TryAll());
  Print();
  if (stopped_by_ == SIGINT) return kExitInterrupted;
  if (stopped_by_ == SIGTERM) return kExitTerminated;
  TERCIO_RETURN_IF_ERROR(Write());
  return plan::BestTrial(trials_).has_value() ? kExitOk : kExitJobFailed;
}

absl::StatusOr<int> TuneJob(const TuneOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(v1::JobSpec spec, config::ParseJobFile(options.job_file, options.set));
  if (!spec.parallelism().automatic()) {
    return absl::InvalidArgumentError(
        "tune chooses the layout, but the job names one; give --set parallelism=auto");
  }
  TERCIO_RETURN_IF_ERROR(ChooseDevice(&spec));
  TERCIO_RETURN_IF_ERROR(plan::AdmitJob(spec, plan::kUnknownMemoryBytes));
  PrintNotices(config::KeysWithoutEffect(spec));
  BlockStopSignals();  // before threads are started
  return Tuning(options, std::move(spec)).Run();
}

}  // namespace

int Tune(const TuneOptions& options) {
  const absl::StatusOr<int> code = TuneJob(options);
  return code.ok() ? *code : Fail(code.status());
}

}  // namespace tercio::cli
