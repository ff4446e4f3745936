#include "coordinator/service/coordinator_metrics.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/process_metrics.h"
#include "common/steady_time.h"
#include "common/version.h"
#include "coordinator/core/core.h"
#include "coordinator/service/views.h"
#include "nlohmann/json.hpp"
#include "plan/epochs.h"
#include "plan/names.h"
#include "plan/plan_builder.h"
#include "plan/quality.h"

namespace tercio::coordinator {
namespace {

// Newer ones than that many have series of their own.
constexpr size_t kMostJobs = 100;

// After a start, for agents that were there before.
constexpr absl::Duration kReturnPatience = absl::Minutes(1);

constexpr const char* kNodeStates[] = {"ready",    "lost",    "left",
                                       "draining", "drained", "quarantined"};

// JOB_STATE_RUNNING -> running
std::string NameOfState(int state) {
  // The prefix JOB_STATE_ has ten characters.
  return absl::AsciiStrToLower(v1::JobState_Name(static_cast<v1::JobState>(state)).substr(10));
}

double Double(int64_t value) { return static_cast<double>(value); }

class JobSeries {
 public:
  // `ahead`: of the wall clock before the coordinator's.
  JobSeries(const Coordinator::ShownJob& shown, double ahead, const JobTally& tally,
            MetricsPage* page)
      : view_(shown.view),
        job_(view_.record),
        last_progress_(shown.last_progress),
        ahead_(ahead),
        tally_(tally),
        id_(job_.id()),
        name_(job_.spec().name()),
        page_(*page) {}

  void Add() {
    AddState();
    AddProgress();
    AddPrediction();
    AddFaults();
    AddCheckpoints();
    AddTime();
  }

 private:
  // Both labels are on every series: the id is unique, the name is what people know.
  void Set(MetricId metric, double value) { page_.Set(metric, {id_, name_}, value); }
  // An event that has not happened has no time.
  void SetTime(MetricId metric, double time) {
    // A timestamp of 0 would look like an age of half a century.
    if (time > 0) Set(metric, time + ahead_);
  }

  void AddState() {
    const v1::JobState present = PublishedState(job_);
    // A series for each state, with 1 for the present one, as is usual for
    // enumerations: alerts then need no knowledge of numbers.
    for (int state = v1::JobState_MIN; state <= v1::JobState_MAX; ++state) {
      if (state == v1::JOB_STATE_UNSPECIFIED) continue;
      page_.Set("tercio_job_state", {id_, name_, NameOfState(state)}, present == state ? 1 : 0);
    }
    // Labels are always the same set, since a series that gains one would be another series.
    std::string data, pipeline, tensor, schedule;
    if (view_.plan != nullptr) {
      const v1::Layout& layout = view_.plan->layout();
      data = absl::StrCat(layout.data());
      pipeline = absl::StrCat(layout.pipeline());
      tensor = absl::StrCat(layout.tensor());
      schedule = plan::TextOf(layout.schedule());
    }
    const v1::JobSpec& spec = job_.spec();
    page_.Set("tercio_job_info",
              {data, plan::TextOf(spec.resources().device()), id_, name_, pipeline,
               plan::TextOf(spec.training().precision()), schedule, tensor},
              1);
    Set("tercio_job_attempt", job_.attempt());
    SetTime("tercio_job_submitted_timestamp_seconds", job_.submitted_at());
    SetTime("tercio_job_last_progress_timestamp_seconds", last_progress_);
    page_.Set("tercio_job_ranks", {id_, name_, "wanted"}, plan::RanksOfJob(spec));
    page_.Set("tercio_job_ranks", {id_, name_, "present"}, view_.placement->ranks());
    // The bytes are 0 outside of loading rather than absent, so that graphs return to zero.
    const RunHealthState::Loading loading =
        view_.loading.value_or(RunHealthState::Loading{0, 0, /*ended=*/true});
    page_.Set("tercio_job_loading_bytes", {id_, name_, "loaded"}, Double(loading.bytes));
    page_.Set("tercio_job_loading_bytes", {id_, name_, "wanted"}, Double(loading.total_bytes));
  }

  void AddProgress() {
    Set("tercio_job_step", Double(job_.step()));
    // A job of epochs has none before its data is prepared.
    if (plan::KnowsSteps(job_.spec().training())) {
      Set("tercio_job_target_steps", Double(job_.spec().training().steps()));
    }
    Set("tercio_job_tokens", Double(job_.tokens()));
    // A job that has not made a step has no loss; 0 would be a wrong one.
    if (job_.has_tokens_per_second()) {
      Set("tercio_job_tokens_per_second", job_.tokens_per_second());
    }
    if (job_.has_mfu()) Set("tercio_job_mfu_ratio", job_.mfu());
    if (job_.has_loss()) Set("tercio_job_loss", job_.loss());
    if (job_.has_validation_loss()) Set("tercio_job_validation_loss", job_.validation_loss());
    if (job_.figures().has_margin()) {
      Set("tercio_job_reward_margin", job_.figures().margin());
    }
    if (job_.figures().has_accuracy()) {
      Set("tercio_job_reward_accuracy_ratio", job_.figures().accuracy());
    }
    if (job_.has_test()) Set("tercio_job_test_loss", job_.test().loss());
    AddScores("tercio_job_validation_score", job_.validation());
    AddScores("tercio_job_test_score", job_.test());
    if (job_.has_best()) Set("tercio_job_best_step", Double(job_.best().step()));
    if (tally_.learning_rate.has_value()) {
      Set("tercio_job_learning_rate", *tally_.learning_rate);
    }
    if (tally_.gradient_norm.has_value()) {
      Set("tercio_job_gradient_norm", *tally_.gradient_norm);
    }
    if (tally_.loss_scale.has_value()) Set("tercio_job_loss_scale", *tally_.loss_scale);
    page_.Set("tercio_job_step_duration_seconds", {id_, name_}, tally_.steps);
    Set("tercio_job_skipped_steps_total", Double(tally_.skipped));
    Set("tercio_job_spikes_total", Double(tally_.spikes));
  }

  // Only classifiers have any.
  void AddScores(MetricId metric, const v1::Evaluation& evaluation) {
    if (!plan::IsConfusion(evaluation.confusion())) return;
    for (const v1::QualityMetric score : {v1::QUALITY_METRIC_ACCURACY, v1::QUALITY_METRIC_PRECISION,
                                          v1::QUALITY_METRIC_RECALL, v1::QUALITY_METRIC_F1}) {
      page_.Set(metric, {id_, name_, plan::TextOf(score)}, plan::ValueOf(score, evaluation));
    }
  }

  void AddPrediction() {
    if (view_.plan == nullptr || !view_.plan->has_predicted()) return;
    const v1::Prediction& predicted = view_.plan->predicted();
    Set("tercio_job_predicted_step_seconds", predicted.step_seconds());
    Set("tercio_job_predicted_mfu_ratio", predicted.mfu());
    Set("tercio_job_predicted_bubble_ratio", predicted.bubble_ratio());
    Set("tercio_job_predicted_memory_bytes", Double(predicted.memory_bytes_peak()));
  }

  void AddFaults() {
    // All causes are present from the start: a counter that appears with 1 shows no increase.
    for (int cause = 0; cause < kFaultCauses; ++cause) {
      page_.Set("tercio_job_restarts_total", {NameOf(static_cast<FaultCause>(cause)), id_, name_},
                Double(tally_.restarts[static_cast<size_t>(cause)]));
    }
    const int budget = job_.spec().fault_tolerance().max_restarts();
    Set("tercio_job_restarts_left", std::max(0, budget - job_.restarts_used()));
    Set("tercio_job_hangs_total", Double(tally_.hangs));
    // Stragglers of an attempt that has ended slow nothing down.
    const bool running = job_.phase() == v1::JOB_PHASE_RUNNING;
    Set("tercio_job_stragglers", running ? static_cast<double>(tally_.slow.size()) : 0);
  }

  void AddCheckpoints() {
    Set("tercio_checkpoint_step", Double(job_.checkpoint_step()));
    // Checkpoints are in the order of their commits, so the last good one is the newest.
    int64_t verified = 0;
    int64_t damaged = 0;
    for (const v1::CheckpointRecord& known : job_.checkpoints()) {
      if (!known.problem().empty()) {
        ++damaged;
      } else if (known.verified_at() > 0) {
        verified = known.step();
      }
    }
    Set("tercio_checkpoint_verified_step", Double(verified));
    Set("tercio_checkpoint_damaged", Double(damaged));
    Set("tercio_checkpoint_unreadable", job_.unreadable_since() > 0 ? 1 : 0);
    Set("tercio_checkpoint_bytes", Double(job_.checkpoint_bytes()));
    Set("tercio_checkpoint_every_steps", Double(job_.spec().checkpoint().every_steps()));
    SetTime("tercio_checkpoint_last_success_timestamp_seconds", job_.checkpoint_at());
    page_.Set("tercio_checkpoint_duration_seconds", {id_, name_}, tally_.saves);
    for (int failure = 0; failure < kSaveFailures; ++failure) {
      page_.Set("tercio_checkpoint_failures_total",
                {id_, name_, NameOf(static_cast<SaveFailure>(failure))},
                Double(tally_.save_failures[static_cast<size_t>(failure)]));
    }
  }

  // The series of a job sum to its age.
  void AddTime() {
    // The parts are those of the ledger, so that no moment is counted twice.
    const v1::Goodput goodput = GoodputOf(job_, view_.now);
    const std::pair<const char*, double> parts[] = {
        {"productive", goodput.productive()},
        {"degraded", goodput.degraded()},
        {"queued", goodput.queued()},
        {"starting", goodput.starting()},
        {"checkpoint_stall", goodput.checkpoint_stall()},
        {"lost_work", goodput.lost_work()},
        {"restarting", goodput.restarting()},
        {"stopped", goodput.stopped()}};
    for (const auto& [kind, seconds] : parts) {
      page_.Set("tercio_job_time_seconds", {id_, name_, kind}, seconds);
    }
  }

  const Coordinator::JobView& view_;
  const v1::JobRecord& job_;
  const double last_progress_;
  const double ahead_;
  const JobTally& tally_;
  const std::string& id_;
  const std::string& name_;
  MetricsPage& page_;
};

void AddJobs(const Coordinator& coordinator, double linger, double ahead, MetricsPage* page) {
  // The coordinator chooses which jobs are shown and counts the others.
  const Coordinator::Jobs jobs = coordinator.JobsToShow(linger, kMostJobs);
  for (int state = v1::JobState_MIN; state <= v1::JobState_MAX; ++state) {
    if (state == v1::JOB_STATE_UNSPECIFIED) continue;
    const auto found = jobs.by_state.find(static_cast<v1::JobState>(state));
    page->Set("tercio_jobs", {NameOfState(state)},
              found == jobs.by_state.end() ? 0 : found->second);
  }
  page->Set("tercio_jobs_waiting", jobs.waiting);
  page->Set("tercio_jobs_not_shown", jobs.not_shown);
  for (const Coordinator::ShownJob& job : jobs.shown) {
    JobSeries(job, ahead, coordinator.tally().Of(job.view.record.id()), page).Add();
  }
}

// Whether the node has connected since the coordinator started. Of one that is only in the store
// just the name is known.
bool HasCome(const Coordinator::NodeView& node) { return node.state.hello.devices() > 0; }

void AddNodes(const Coordinator& coordinator, double ahead, MetricsPage* page) {
  int connected = 0;
  int devices = 0;
  int free = 0;
  int faulty = 0;
  std::map<std::string, int> states;
  for (const Coordinator::NodeView& node : coordinator.Nodes()) {
    const bool here = node.state.connected;
    const std::string& name = node.state.record.name();
    // Nothing of a node that is away can be used, whatever it offered before.
    connected += here ? 1 : 0;
    devices += here ? node.state.hello.devices() : 0;
    faulty += here ? node.state.record.device_faults_size() : 0;
    free += node.free;
    ++states[node.name];
    for (const char* state : kNodeStates) {
      page->Set("tercio_node_state", {name, state}, node.name == state ? 1 : 0);
    }
    page->Set("tercio_agent_connected", {name}, here ? 1 : 0);
    page->Set("tercio_agent_devices", {name}, here ? node.state.hello.devices() : 0);
    page->Set("tercio_agent_devices_free", {name}, node.free);
    if (HasCome(node)) {
      page->Set("tercio_agent_last_heartbeat_timestamp_seconds", {name},
                node.state.last_heard + ahead);
    }
  }
  for (const char* state : kNodeStates) {
    page->Set("tercio_nodes_by_state", {state}, states[state]);
  }
  page->Set("tercio_nodes", connected);
  page->Set("tercio_devices", devices);
  page->Set("tercio_devices_free", free);
  page->Set("tercio_devices_faulty", faulty);
}

void AddService(const Coordinator& coordinator, const StreamHub& streams, MetricsPage* page) {
  // One call returns figures that belong together.
  const StreamHub::Figures figures = streams.figures();
  page->Set("tercio_streams", Double(figures.open));
  page->Set("tercio_streams_refused_total", Double(figures.refused));
  page->Set("tercio_streams_cut_off_total", Double(figures.cut_off));
  const Tally& tally = coordinator.tally();
  page->Set("tercio_events_queued", Double(static_cast<int64_t>(coordinator.queued())));
  page->Set("tercio_batch_events", tally.batches());
  page->Set("tercio_store_commit_duration_seconds", tally.commits());
  page->Set("tercio_store_commit_failures_total", Double(tally.failed_commits()));
  page->Set("tercio_fenced_messages_total", Double(tally.fenced()));
  for (const auto& [kind, count] : tally.events()) {
    page->Set("tercio_events_total", {kind}, Double(count));
  }
}

void AddAccess(const AuditLog* audit, MetricsPage* page) {
  for (size_t i = 0; i < kRefusalNames.size(); ++i) {
    page->Set("tercio_access_refused_total", {kRefusalNames[i]},
              Double(audit == nullptr ? 0 : audit->refused(i)));
  }
  page->Set("tercio_audit_lines_lost_total", Double(audit == nullptr ? 0 : audit->lost()));
}

// Blocks as long as the file system does, which delays this page alone.
void AddDisk(const std::string& state_dir, MetricsPage* page) {
  // Checkpoints may be on a volume of their own; before the first one the directory is missing.
  struct statvfs store = {};
  if (statvfs((state_dir + "/checkpoints").c_str(), &store) == 0 ||
      statvfs(state_dir.c_str(), &store) == 0) {
    const double block = static_cast<double>(store.f_frsize);
    page->Set("tercio_checkpoint_store_size_bytes", static_cast<double>(store.f_blocks) * block);
    // The blocks for root are left out: the coordinator cannot write there.
    page->Set("tercio_checkpoint_store_free_bytes", static_cast<double>(store.f_bavail) * block);
    page->Set("tercio_checkpoint_store_inodes", static_cast<double>(store.f_files));
    page->Set("tercio_checkpoint_store_free_inodes", static_cast<double>(store.f_favail));
  }
  struct stat database = {};
  if (stat((state_dir + "/state.sqlite").c_str(), &database) == 0) {
    page->Set("tercio_store_bytes", static_cast<double>(database.st_size));
  }
}

}  // namespace

std::string CoordinatorPage(const Coordinator& coordinator, const StreamHub& streams,
                            const RpcMetrics& calls, const CoordinatorMetricsOptions& options,
                            const MetricsServer::Figures& server) {
  MetricsPage page(MetricExporter::kCoordinator);
  // Queries compute time() - metric, which is the age only where both use the same clock; the
  // coordinator's does not follow when the wall clock is set. Whole seconds: times must not change
  // from page to page.
  const double ahead = std::round(coordinator.WallAhead());
  AddJobs(coordinator, options.linger_seconds, ahead, &page);
  AddNodes(coordinator, ahead, &page);
  AddService(coordinator, streams, &page);
  AddAccess(options.audit, &page);
  calls.AddTo(&page);
  AddDisk(options.state_dir, &page);
  AddServerMetrics(server, &page);
  AddProcessMetrics(kVersion, kCommit, &page);
  AddCertificateMetrics(options.certificate, options.authority, &page);
  return page.Text();
}

std::optional<std::string> TargetsPage(const Coordinator& coordinator, absl::Duration up) {
  nlohmann::json targets = nlohmann::json::array();
  for (const Coordinator::NodeView& node : coordinator.Nodes()) {
    const v1::AgentHello& hello = node.state.hello;
    const bool left = node.state.lost && node.state.record.leaving();
    // An incomplete list would make Prometheus forget the targets; none lets it keep them.
    if (!HasCome(node) && !left && up < kReturnPatience) return std::nullopt;
    // A drained node is not missing.
    const bool gone = node.state.lost && (left || node.state.record.drained());
    if (gone || hello.metrics_address().empty()) continue;
    targets.push_back(
        {{"targets", {hello.metrics_address()}}, {"labels", {{"node", hello.node()}}}});
  }
  return targets.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::StatusOr<std::unique_ptr<MetricsServer>> ServeCoordinatorMetrics(
    const std::string& address, const Coordinator& coordinator, const StreamHub& streams,
    const RpcMetrics& calls, CoordinatorMetricsOptions options) {
  MetricsServer::Pages pages;
  pages["/metrics"] = {kMetricsType, [&coordinator, &streams, &calls, options = std::move(options)](
                                         const MetricsServer::Figures& server) {
                         return CoordinatorPage(coordinator, streams, calls, options, server);
                       }};
  pages["/sd"] = {"application/json",
                  [&coordinator, start = SteadyNow()](const MetricsServer::Figures&) {
                    return TargetsPage(coordinator, SteadyNow() - start);
                  }};
  return MetricsServer::Listen(address, std::move(pages));
}

}  // namespace tercio::coordinator
