#include "worker/agent/agent_metrics.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/time/clock.h"
#include "common/machine.h"
#include "common/metrics/metrics_server.h"
#include "common/metrics/process_metrics.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/version.h"
#include "worker/agent/core/agent_core.h"
#include "worker/agent/gpus/gpu_metrics.h"

namespace tercio::agent {
namespace {

// Most ranks whose series are kept; those that ended first are dropped first.
constexpr size_t kMostRanks = 1024;

struct RankSeries {
  RankLabels labels;
  // Counters, over all attempts on this node.
  double tokens = 0;
  double steps = 0;
  double sent_bytes = 0;
  double send_failures = 0;
  double log_lines_lost = 0;
  // Figures that the rank's process reports.
  v1::PhaseSeconds phases;
  double cpu_seconds = 0;
  v1::CommunicationBytes communication;
  v1::StateSeconds state;
  int64_t disk_read_bytes = 0;
  int64_t disk_written_bytes = 0;
  std::optional<v1::GpuFallbacks> gpu_fallbacks;  // of ranks on GPUs
  // Gauges, while the rank lives.
  std::optional<v1::TrainerStep> step;
  std::optional<v1::TrainerMemory> memory;
  std::optional<double> send_seconds;
  std::optional<std::pair<std::string, double>> loaded;  // source, seconds
  std::optional<absl::Time> ended;

  // They are totals of a process. A new one starts at zero,
  // which Prometheus takes for a restart of the counter.
  void Take(const v1::RankFigures& figures) {
    phases = figures.phases();
    cpu_seconds = figures.cpu_seconds();
    communication = figures.communication();
    state = figures.state();
    disk_read_bytes = figures.disk_read_bytes();
    disk_written_bytes = figures.disk_written_bytes();
    if (figures.has_gpu_fallbacks()) gpu_fallbacks = figures.gpu_fallbacks();
  }
};

// Writes the series of one rank.
class RankWriter {
 public:
  RankWriter(const RankSeries& series, MetricsPage* page)
      : series_(series),
        id_(series.labels.job_id),
        name_(series.labels.job_name),
        rank_(std::to_string(series.labels.rank)),
        page_(*page) {}

  void Write() {
    WriteCounters();
    // Counters linger, so that a last scrape sees their final
    // values; a gauge that lingers would show a rank at work.
    if (series_.ended.has_value()) return;
    const RankLabels& at = series_.labels;
    // The place of a rank is on one series, for queries to join, and not on all of them.
    page_.Set("tercio_rank_info",
              {std::to_string(at.data), std::to_string(at.device), id_, name_,
               std::to_string(at.pipeline), rank_, std::to_string(at.tensor)},
              1);
    if (series_.step.has_value()) WriteStep(*series_.step);
    if (series_.memory.has_value()) WriteMemory(*series_.memory);
    if (series_.send_seconds.has_value()) {
      Set("tercio_checkpoint_send_seconds", *series_.send_seconds);
    }
    if (series_.loaded.has_value()) {
      page_.Set("tercio_load_seconds", {id_, name_, rank_, series_.loaded->first},
                series_.loaded->second);
    }
  }

 private:
  void Set(MetricId metric, double value) { page_.Set(metric, {id_, name_, rank_}, value); }

  // Label values stand in the alphabetical order of their names (common/metrics/metrics_page.h).
  void WriteCounters() {
    Set("tercio_tokens_total", series_.tokens);
    Set("tercio_steps_total", series_.steps);
    Set("tercio_rank_cpu_seconds_total", series_.cpu_seconds);
    Set("tercio_log_lines_lost_total", series_.log_lines_lost);
    Set("tercio_checkpoint_sent_bytes_total", series_.sent_bytes);
    Set("tercio_checkpoint_send_failures_total", series_.send_failures);
    const v1::PhaseSeconds& phases = series_.phases;
    const std::pair<const char*, double> parts[] = {{"forward", phases.forward()},
                                                    {"backward", phases.backward()},
                                                    {"wait", phases.wait()},
                                                    {"optimizer", phases.optimizer()},
                                                    {"data", phases.data()},
                                                    {"checkpoint", phases.checkpoint()},
                                                    {"evaluation", phases.evaluation()},
                                                    {"other", phases.other()}};
    for (const auto& [phase, seconds] : parts) {
      page_.Set("tercio_phase_seconds_total", {id_, name_, phase, rank_}, seconds);
    }
    const v1::CommunicationBytes& sent = series_.communication;
    const std::pair<const char*, int64_t> groups[] = {{"tensor", sent.tensor()},
                                                      {"pipeline", sent.pipeline()},
                                                      {"data", sent.data()},
                                                      {"world", sent.world()}};
    for (const auto& [group, bytes] : groups) {
      page_.Set("tercio_communication_bytes_total", {group, id_, name_, rank_},
                static_cast<double>(bytes));
    }
    const std::pair<const char*, int64_t> state[] = {
        {"gathered", sent.gathered()},
        {"reduced", std::max<int64_t>(0, sent.data() - sent.gathered())},
        {"read", series_.disk_read_bytes},
        {"written", series_.disk_written_bytes}};
    for (const auto& [what, bytes] : state) {
      page_.Set("tercio_state_bytes_total", {id_, name_, rank_, what}, static_cast<double>(bytes));
    }
    WriteStateSeconds(series_.state);
    if (series_.gpu_fallbacks.has_value()) WriteFallbacks(*series_.gpu_fallbacks);
  }

  void WriteStateSeconds(const v1::StateSeconds& state) {
    const std::tuple<const char*, const char*, double> times[] = {
        {"gather", "taken", state.gather()},
        {"gather", "waited", state.gather_waited()},
        {"reduce", "taken", state.reduce()},
        {"reduce", "waited", state.reduce_waited()}};
    for (const auto& [what, part, seconds] : times) {
      page_.Set("tercio_state_seconds_total", {id_, name_, part, rank_, what}, seconds);
    }
  }
  void WriteFallbacks(const v1::GpuFallbacks& fallbacks) {
    const std::pair<const char*, int64_t> kinds[] = {
        {"gelu", fallbacks.gelu()},
        {"gelu_gradient", fallbacks.gelu_gradient()},
        {"bias_gradient", fallbacks.bias_gradient()},
        {"table_algorithm", fallbacks.table_algorithm()},
        {"product_algorithm", fallbacks.product_algorithm()},
        {"attention", fallbacks.attention()}};
    for (const auto& [what, count] : kinds) {
      page_.Set("tercio_gpu_fallbacks_total", {id_, name_, rank_, what},
                static_cast<double>(count));
    }
  }

  void WriteStep(const v1::TrainerStep& step) {
    Set("tercio_tokens_per_second", step.tokens_per_second());
    const v1::StepRecord& record = RecordOf(step);
    Set("tercio_step", static_cast<double>(record.step()));
    Set("tercio_step_seconds", record.step_seconds());
    Set("tercio_communication_seconds", step.communication_seconds());
    Set("tercio_loss", record.loss());
    Set("tercio_grad_norm", record.grad_norm());
    // The peak of some devices is not known.
    if (step.mfu() <= 0) return;
    // There are two conventions: all products of attention count, or only the causal half of them.
    page_.Set("tercio_mfu_ratio", {"full", id_, name_, rank_}, step.mfu());
    page_.Set("tercio_mfu_ratio", {"causal", id_, name_, rank_}, step.mfu_causal());
  }

  void WriteMemory(const v1::TrainerMemory& memory) {
    const std::pair<const char*, int64_t> kinds[] = {{"planned", memory.planned_bytes()},
                                                     {"used", memory.used_bytes()},
                                                     {"peak", memory.peak_bytes()},
                                                     {"resident", memory.resident_bytes()}};
    for (const auto& [kind, bytes] : kinds) {
      page_.Set("tercio_memory_bytes", {id_, name_, kind, rank_}, static_cast<double>(bytes));
    }
  }

  const RankSeries& series_;
  const std::string& id_;
  const std::string& name_;
  const std::string rank_;
  MetricsPage& page_;
};

}  // namespace

struct AgentMetrics::State {
  AgentMetricsOptions options;
  Mutex mutex;
  // By job and rank.
  std::map<std::pair<std::string, int>, RankSeries> ranks TERCIO_GUARDED_BY(mutex);
  int64_t good_exits TERCIO_GUARDED_BY(mutex) = 0;
  int64_t bad_exits TERCIO_GUARDED_BY(mutex) = 0;
  int trainers TERCIO_GUARDED_BY(mutex) = 0;
  int64_t snapshot_bytes TERCIO_GUARDED_BY(mutex) = 0;
  // Not the lock of the ranks: sources may wait for a disk, which must not keep ranks waiting.
  Mutex sources_mutex;
  AgentSources sources TERCIO_GUARDED_BY(sources_mutex);
  std::unique_ptr<MetricsServer> server;  // last: it reads the rest until it is gone

  // The series of a rank that reports something, so it lives.
  RankSeries& Of(const RankLabels& labels) TERCIO_REQUIRES(mutex) {
    // Attempts have no series of their own, or each restart would add as many as there are ranks.
    RankSeries& series = ranks[{labels.job_id, labels.rank}];
    series.labels = labels;
    // The same rank of a later attempt continues the series.
    series.ended = std::nullopt;
    if (ranks.size() > kMostRanks) DropOne({labels.job_id, labels.rank});
    return series;
  }

  void DropOne(const std::pair<std::string, int>& kept) TERCIO_REQUIRES(mutex) {
    auto dropped = ranks.end();
    for (auto entry = ranks.begin(); entry != ranks.end(); ++entry) {
      if (entry->first == kept) continue;
      // Ranks that live are dropped when nothing else is left.
      const auto ended = entry->second.ended.value_or(absl::InfiniteFuture());
      if (dropped == ranks.end() ||
          ended < dropped->second.ended.value_or(absl::InfiniteFuture())) {
        dropped = entry;
      }
    }
    ranks.erase(dropped);
  }

  void DropEnded() TERCIO_REQUIRES(mutex) {
    const absl::Time now = SteadyNow();
    // A node would otherwise collect the series of every job that it ever ran.
    std::erase_if(ranks, [&](const auto& entry) {
      const std::optional<absl::Time>& ended = entry.second.ended;
      return ended.has_value() && now - *ended > options.linger;
    });
  }

  void AddSources(MetricsPage* page) {
    MutexLock lock(sources_mutex);
    if (sources.connected) page->Set("tercio_coordinator_connected", sources.connected() ? 1 : 0);
    if (sources.spool_bytes) {
      page->Set("tercio_agent_spool_bytes", static_cast<double>(sources.spool_bytes()));
    }
    // Nodes without GPUs do not have these series.
    if (sources.gpus) {
      AddGpuMetrics(sources.gpus(), sources.gpu_driver,
                    absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()), page);
    }
  }

  std::string Page(const MetricsServer::Figures& figures) {
    MetricsPage page(MetricExporter::kAgent);
    decltype(ranks) shown;  // the lock is held only while copying
    {
      MutexLock lock(mutex);
      DropEnded();
      shown = ranks;
      page.Set("tercio_trainers", trainers);
      page.Set("tercio_trainer_exits_total", {"normal"}, static_cast<double>(good_exits));
      page.Set("tercio_trainer_exits_total", {"fault"}, static_cast<double>(bad_exits));
      page.Set("tercio_agent_snapshot_bytes", static_cast<double>(snapshot_bytes));
    }
    for (const auto& [key, series] : shown) RankWriter(series, &page).Write();
    AddSources(&page);
    // A full disk keeps messages for the coordinator from being stored, so alerts look at it.
    struct statvfs disk = {};
    if (!options.state_dir.empty() && statvfs(options.state_dir.c_str(), &disk) == 0) {
      page.Set("tercio_agent_state_free_bytes",
               static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize));
    }
    page.Set("tercio_agent_memory_bytes", static_cast<double>(MachineMemoryBytes()));
    page.Set("tercio_agent_memory_available_bytes", static_cast<double>(AvailableMemoryBytes()));
    AddServerMetrics(figures, &page);
    AddProcessMetrics(kVersion, kCommit, &page);
    AddCertificateMetrics(options.certificate, options.authority, &page);
    return page.Text();
  }
};

AgentMetrics::AgentMetrics() : state_(std::make_unique<State>()) {}
AgentMetrics::~AgentMetrics() = default;

absl::StatusOr<std::unique_ptr<AgentMetrics>> AgentMetrics::Serve(const std::string& address,
                                                                  AgentMetricsOptions options) {
  std::unique_ptr<AgentMetrics> metrics(new AgentMetrics);
  // The server is a member of the state, so no call comes when that is gone.
  State* const state = metrics->state_.get();
  state->options = std::move(options);
  MetricsServer::Pages pages;
  pages["/metrics"] = {kMetricsType, [state](const MetricsServer::Figures& figures) {
                         return state->Page(figures);
                       }};
  TERCIO_ASSIGN_OR_RETURN(state->server, MetricsServer::Listen(address, std::move(pages)));
  metrics->address_ = state->server->address();
  return metrics;
}

std::string AgentMetrics::Page() const { return state_->Page({}); }

void AgentMetrics::Step(const RankLabels& labels, const v1::TrainerStep& step, int64_t steps,
                        int64_t tokens) {
  MutexLock lock(state_->mutex);
  RankSeries& series = state_->Of(labels);
  series.tokens += static_cast<double>(tokens);
  series.steps += static_cast<double>(steps);
  series.step = step;
  if (step.has_figures()) series.Take(step.figures());
}

void AgentMetrics::Figures(const RankLabels& labels, const v1::RankFigures& figures) {
  MutexLock lock(state_->mutex);
  state_->Of(labels).Take(figures);
}

void AgentMetrics::Memory(const RankLabels& labels, const v1::TrainerMemory& memory) {
  MutexLock lock(state_->mutex);
  state_->Of(labels).memory = memory;
}

void AgentMetrics::LogLinesLost(const RankLabels& labels, int64_t lines) {
  MutexLock lock(state_->mutex);
  state_->Of(labels).log_lines_lost += static_cast<double>(lines);
}

void AgentMetrics::Checkpoint(const RankLabels& labels, const v1::CheckpointProgress& progress) {
  MutexLock lock(state_->mutex);
  RankSeries& series = state_->Of(labels);
  series.sent_bytes += static_cast<double>(progress.bytes());
  series.send_seconds = progress.seconds();
  if (!progress.error().empty()) ++series.send_failures;
}

void AgentMetrics::Loaded(const RankLabels& labels, const std::string& source, double seconds) {
  MutexLock lock(state_->mutex);
  state_->Of(labels).loaded = {source, seconds};
}

void AgentMetrics::Exited(const RankLabels& labels, RankEnd end) {
  MutexLock lock(state_->mutex);
  ++(end == RankEnd::kFault ? state_->bad_exits : state_->good_exits);
  RankSeries& series = state_->Of(labels);
  series.step.reset();
  series.memory.reset();
  series.send_seconds.reset();
  series.loaded.reset();
  // This comes last, since Of takes a rank that is named for one that lives.
  series.ended = SteadyNow();
}

void AgentMetrics::SetRunning(int trainers) {
  MutexLock lock(state_->mutex);
  state_->trainers = trainers;
}

void AgentMetrics::SetSnapshotBytes(int64_t bytes) {
  MutexLock lock(state_->mutex);
  state_->snapshot_bytes = bytes;
}

// The lock is held while sources are called: when this returns, the old ones are not in use.
void AgentMetrics::Show(AgentSources sources) {
  MutexLock lock(state_->sources_mutex);
  state_->sources = std::move(sources);
}

}  // namespace tercio::agent
