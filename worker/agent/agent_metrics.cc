#include "worker/agent/agent_metrics.h"

#include <mutex>
#include <utility>

#include "common/metrics_server.h"
#include "common/status_macros.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"
#include "worker/agent/gpu_metrics.h"

namespace tercio {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Labels;

Labels ToLabels(const RankLabels& labels) {
  return {{"job_id", labels.job_id},
          {"job_name", labels.job_name},
          {"rank", std::to_string(labels.rank)}};
}

Labels With(Labels labels, const std::string& name, const std::string& value) {
  labels[name] = value;
  return labels;
}

Family<Gauge>& NewGauge(prometheus::Registry& registry, const char* name, const char* help) {
  return BuildGauge().Name(name).Help(help).Register(registry);
}

Family<Counter>& NewCounter(prometheus::Registry& registry, const char* name, const char* help) {
  return BuildCounter().Name(name).Help(help).Register(registry);
}

// What is counted as it happens, and the GPUs as they are.
class Page : public prometheus::Collectable {
 public:
  explicit Page(std::shared_ptr<prometheus::Registry> registry) : registry_(std::move(registry)) {}

  void ShowGpus(std::function<std::vector<GpuReading>()> read, const std::string& driver) {
    std::lock_guard<std::mutex> lock(mutex_);
    read_ = std::move(read);
    driver_ = driver;
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families = registry_->Collect();
    std::lock_guard<std::mutex> lock(mutex_);
    if (!read_) return families;
    for (prometheus::MetricFamily& family : GpuMetrics(read_(), driver_)) {
      families.push_back(std::move(family));
    }
    return families;
  }

 private:
  const std::shared_ptr<prometheus::Registry> registry_;
  mutable std::mutex mutex_;
  std::function<std::vector<GpuReading>()> read_;
  std::string driver_;
};

}  // namespace

struct AgentMetrics::Families {
  const std::shared_ptr<prometheus::Registry> owned = std::make_shared<prometheus::Registry>();
  prometheus::Registry& registry = *owned;
  Family<Counter>& tokens = NewCounter(registry, "tercio_tokens_total",
                                       "Tokens trained on by the job, counted by each rank.");
  Family<Counter>& steps = NewCounter(registry, "tercio_steps_total", "Optimizer steps of a rank.");
  Family<Counter>& skipped_steps =
      NewCounter(registry, "tercio_skipped_steps_total",
                 "Steps of the job whose loss or gradients were not finite, and so not used.");
  Family<Counter>& spikes =
      NewCounter(registry, "tercio_spikes_total",
                 "Steps of the job whose loss or gradient norm was far above those before.");
  Family<Gauge>& tokens_per_second =
      NewGauge(registry, "tercio_tokens_per_second", "Tokens a second of the whole job.");
  Family<Gauge>& mfu =
      NewGauge(registry, "tercio_mfu_ratio",
               "Model-FLOPs utilisation of the job, with attention counted full or causal; only on "
               "GPUs whose peak is known.");
  Family<Gauge>& step = NewGauge(registry, "tercio_step", "Last completed step.");
  Family<Gauge>& step_seconds =
      NewGauge(registry, "tercio_step_seconds", "Duration of the last step.");
  Family<Gauge>& communication_seconds =
      NewGauge(registry, "tercio_communication_seconds",
               "Time of the last step spent waiting for other ranks.");
  Family<Gauge>& loss = NewGauge(registry, "tercio_loss", "Loss of the last step.");
  Family<Gauge>& grad_norm =
      NewGauge(registry, "tercio_grad_norm", "Gradient norm of the last step, before clipping.");
  Family<Gauge>& memory =
      NewGauge(registry, "tercio_memory_bytes", "Memory of a rank: planned, used, peak, resident.");
  Family<Counter>& checkpoint_bytes = NewCounter(registry, "tercio_checkpoint_sent_bytes_total",
                                                 "Checkpoint bytes a rank has sent.");
  Family<Gauge>& checkpoint_seconds = NewGauge(registry, "tercio_checkpoint_send_seconds",
                                               "Duration of a rank's last checkpoint stream.");
  Family<Counter>& checkpoint_failures = NewCounter(registry, "tercio_checkpoint_failures_total",
                                                    "Checkpoint streams of a rank that failed.");
  Family<Counter>& exits =
      NewCounter(registry, "tercio_trainer_exits_total", "Trainers that have ended, by kind.");
  Family<Gauge>& load_seconds =
      NewGauge(registry, "tercio_load_seconds",
               "How long a rank took to load its state, from memory or disk.");
  Family<Counter>& log_lines_lost =
      NewCounter(registry, "tercio_log_lines_lost_total",
                 "Log lines of a rank that its disk did not take, or that were too many to send.");
  Gauge& snapshot_bytes = NewGauge(registry, "tercio_agent_snapshot_bytes",
                                   "Copies of snapshots of ranks in the agent's memory.")
                              .Add({});
  Gauge& running = NewGauge(registry, "tercio_trainers", "Trainers that run on this node.").Add({});
  const std::shared_ptr<Page> page = std::make_shared<Page>(owned);
  std::unique_ptr<MetricsServer> server;  // last: it reads the rest until it is gone
};

AgentMetrics::AgentMetrics() = default;
AgentMetrics::~AgentMetrics() = default;

absl::StatusOr<std::unique_ptr<AgentMetrics>> AgentMetrics::Serve(const std::string& address) {
  std::unique_ptr<AgentMetrics> metrics(new AgentMetrics);
  metrics->families_ = std::make_unique<Families>();
  TERCIO_ASSIGN_OR_RETURN(metrics->families_->server,
                          MetricsServer::Listen(address, metrics->families_->page));
  metrics->address_ = metrics->families_->server->address();
  return metrics;
}

void AgentMetrics::Step(const RankLabels& rank, const v1::TrainerStep& step, int64_t steps,
                        int64_t tokens) {
  const Labels labels = ToLabels(rank);
  families_->tokens.Add(labels).Increment(static_cast<double>(tokens));
  families_->steps.Add(labels).Increment(static_cast<double>(steps));
  families_->tokens_per_second.Add(labels).Set(step.tokens_per_second());
  if (step.mfu() > 0) {
    families_->mfu.Add(With(labels, "convention", "full")).Set(step.mfu());
    families_->mfu.Add(With(labels, "convention", "causal")).Set(step.mfu_causal());
  }
  families_->step.Add(labels).Set(static_cast<double>(step.step()));
  families_->step_seconds.Add(labels).Set(step.step_seconds());
  families_->communication_seconds.Add(labels).Set(step.communication_seconds());
  families_->loss.Add(labels).Set(step.loss());
  families_->grad_norm.Add(labels).Set(step.grad_norm());
  if (!step.has_record()) return;
  families_->skipped_steps.Add({{"job_id", rank.job_id}, {"job_name", rank.job_name}})
      .Increment(step.record().skipped() ? 1 : 0);
  families_->spikes.Add({{"job_id", rank.job_id}, {"job_name", rank.job_name}})
      .Increment(step.record().spike().empty() ? 0 : 1);
}

void AgentMetrics::Memory(const RankLabels& rank, const v1::TrainerMemory& memory) {
  const Labels labels = ToLabels(rank);
  const auto set = [&](const char* kind, int64_t bytes) {
    families_->memory.Add(With(labels, "kind", kind)).Set(static_cast<double>(bytes));
  };
  set("planned", memory.planned_bytes());
  set("used", memory.used_bytes());
  set("peak", memory.peak_bytes());
  set("resident", memory.resident_bytes());
}

void AgentMetrics::Checkpoint(const RankLabels& rank, const v1::CheckpointProgress& progress) {
  const Labels labels = ToLabels(rank);
  families_->checkpoint_bytes.Add(labels).Increment(static_cast<double>(progress.bytes()));
  families_->checkpoint_seconds.Add(labels).Set(progress.seconds());
  if (!progress.error().empty()) families_->checkpoint_failures.Add(labels).Increment();
}

void AgentMetrics::LogLinesLost(const RankLabels& rank, int64_t lines) {
  families_->log_lines_lost.Add(ToLabels(rank)).Increment(static_cast<double>(lines));
}

void AgentMetrics::Exited(const RankLabels& rank, bool fault) {
  families_->exits
      .Add({{"job_id", rank.job_id},
            {"job_name", rank.job_name},
            {"kind", fault ? "fault" : "normal"}})
      .Increment();
}

void AgentMetrics::Loaded(const RankLabels& rank, const std::string& source, double seconds) {
  families_->load_seconds.Add(With(ToLabels(rank), "source", source)).Set(seconds);
}

void AgentMetrics::SetSnapshotBytes(int64_t bytes) {
  families_->snapshot_bytes.Set(static_cast<double>(bytes));
}

void AgentMetrics::ShowGpus(std::function<std::vector<GpuReading>()> read,
                            const std::string& driver) {
  families_->page->ShowGpus(std::move(read), driver);
}

void AgentMetrics::SetRunning(int trainers) { families_->running.Set(trainers); }

void AgentMetrics::Forget(const RankLabels& rank) {
  const Labels labels = ToLabels(rank);
  for (Family<Gauge>* family :
       {&families_->tokens_per_second, &families_->step, &families_->step_seconds,
        &families_->communication_seconds, &families_->loss, &families_->grad_norm,
        &families_->checkpoint_seconds}) {
    family->Remove(&family->Add(labels));
  }
  for (const char* source : {"memory", "disk"}) {
    families_->load_seconds.Remove(&families_->load_seconds.Add(With(labels, "source", source)));
  }
  for (const char* convention : {"full", "causal"}) {
    families_->mfu.Remove(&families_->mfu.Add(With(labels, "convention", convention)));
  }
  for (const char* kind : {"planned", "used", "peak", "resident"}) {
    families_->memory.Remove(&families_->memory.Add(With(labels, "kind", kind)));
  }
}

}  // namespace tercio
