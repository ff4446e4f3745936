#include "coordinator/service/coordinator_metrics.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "coordinator/service/views.h"
#include "prometheus/client_metric.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace tercio::coordinator {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

class JobCollector : public prometheus::Collectable {
 public:
  explicit JobCollector(const Coordinator& coordinator) : coordinator_(coordinator) {}

  std::vector<MetricFamily> Collect() const override {
    families_.clear();
    for (const v1::JobRecord& job : coordinator_.Jobs()) AddJob(job);
    int ready = 0;
    int devices = 0;
    int free = 0;
    for (const Coordinator::NodeView& node : coordinator_.Nodes()) {
      ready += node.state.connected ? 1 : 0;
      devices += node.state.connected ? node.state.hello.devices() : 0;
      free += node.free;
    }
    Add("tercio_nodes", "Nodes that are connected.", MetricType::Gauge, {}, ready);
    Add("tercio_devices", "Devices of connected nodes.", MetricType::Gauge, {}, devices);
    Add("tercio_devices_free", "Devices that no job holds.", MetricType::Gauge, {}, free);
    return std::move(families_);
  }

 private:
  using Labels = std::vector<ClientMetric::Label>;

  void AddJob(const v1::JobRecord& job) const {
    const Labels labels = {{"job_id", job.id()}, {"job_name", job.spec().name()}};
    const v1::JobState state = PublishedState(job);
    Labels with_state = labels;
    // JOB_STATE_RUNNING -> running
    with_state.push_back({"state", absl::AsciiStrToLower(v1::JobState_Name(state).substr(10))});
    Add("tercio_job_state", "1 for the state that the job is in.", MetricType::Gauge, with_state,
        1);
    Add("tercio_job_step", "Last completed step.", MetricType::Gauge, labels,
        static_cast<double>(job.step()));
    Add("tercio_job_restarts_total", "Restarts of the job.", MetricType::Counter, labels,
        job.restarts());
    Add("tercio_job_attempt", "Number of the present attempt.", MetricType::Gauge, labels,
        job.attempt());
    if (job.has_loss()) {
      Add("tercio_job_loss", "Loss of the last step.", MetricType::Gauge, labels, job.loss());
    }
    if (job.checkpoint_step() == 0) return;
    Add("tercio_checkpoint_step", "Step of the last committed checkpoint.", MetricType::Gauge,
        labels, static_cast<double>(job.checkpoint_step()));
    Add("tercio_checkpoint_bytes", "Size of the last committed checkpoint.", MetricType::Gauge,
        labels, static_cast<double>(job.checkpoint_bytes()));
    if (job.checkpoint_at() > 0) {
      Add("tercio_checkpoint_age_seconds", "Time since the last checkpoint was committed.",
          MetricType::Gauge, labels,
          absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()) - job.checkpoint_at());
    }
  }

  void Add(const char* name, const char* help, MetricType type, const Labels& labels,
           double value) const {
    auto family = std::find_if(families_.begin(), families_.end(),
                               [&](const MetricFamily& f) { return f.name == name; });
    if (family == families_.end()) {
      families_.push_back({name, help, type, {}});
      family = std::prev(families_.end());
    }
    ClientMetric metric;
    metric.label = labels;
    if (type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    family->metric.push_back(metric);
  }

  const Coordinator& coordinator_;
  mutable std::vector<MetricFamily> families_;  // one scrape at a time: the exposer has one thread
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorMetrics>> CoordinatorMetrics::Serve(
    const std::string& address, const Coordinator& coordinator) {
  TERCIO_ASSIGN_OR_RETURN(
      auto server, MetricsServer::Listen(address, std::make_shared<JobCollector>(coordinator)));
  return std::unique_ptr<CoordinatorMetrics>(new CoordinatorMetrics(std::move(server)));
}

}  // namespace tercio::coordinator
