#include "coordinator/service/coordinator_metrics.h"

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
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
  JobCollector(const Coordinator& coordinator, const StreamHub& streams)
      : coordinator_(coordinator), streams_(streams) {}

  std::vector<MetricFamily> Collect() const override {
    families_.clear();
    for (const Coordinator::JobView& job : coordinator_.Views()) AddJob(job);
    int ready = 0;
    std::map<std::string, int> states;
    int devices = 0;
    int free = 0;
    int faulty = 0;
    for (const Coordinator::NodeView& node : coordinator_.Nodes()) {
      ready += node.state.connected ? 1 : 0;
      devices += node.state.connected ? node.state.hello.devices() : 0;
      free += node.free;
      faulty += node.state.connected ? node.state.record.device_faults_size() : 0;
      ++states[node.name];
    }
    for (const char* state : {"ready", "lost", "draining", "drained", "quarantined"}) {
      Add("tercio_nodes_by_state", "Nodes in this state.", MetricType::Gauge, {{"state", state}},
          states[state]);
    }
    Add("tercio_nodes", "Nodes that are connected.", MetricType::Gauge, {}, ready);
    Add("tercio_devices", "Devices of connected nodes.", MetricType::Gauge, {}, devices);
    Add("tercio_devices_free", "Devices that no job holds.", MetricType::Gauge, {}, free);
    Add("tercio_devices_faulty", "GPUs of connected nodes that take no ranks.", MetricType::Gauge,
        {}, faulty);
    AddStreams();
    return std::move(families_);
  }

 private:
  using Labels = std::vector<ClientMetric::Label>;

  void AddStreams() const {
    const StreamHub::Figures figures = streams_.figures();
    Add("tercio_streams", "Clients that follow jobs.", MetricType::Gauge, {},
        static_cast<double>(figures.open));
    Add("tercio_streams_refused_total", "Streams beyond the limit.", MetricType::Counter, {},
        static_cast<double>(figures.refused));
    Add("tercio_streams_cut_off_total", "Streams whose clients did not read.", MetricType::Counter,
        {}, static_cast<double>(figures.cut_off));
  }

  void AddJob(const Coordinator::JobView& view) const {
    const v1::JobRecord& job = view.record;
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
    AddGoodput(view, labels);
    if (job.checkpoint_step() == 0) return;
    Add("tercio_checkpoint_step", "Step of the last committed checkpoint.", MetricType::Gauge,
        labels, static_cast<double>(job.checkpoint_step()));
    Add("tercio_checkpoint_bytes", "Size of the last committed checkpoint.", MetricType::Gauge,
        labels, static_cast<double>(job.checkpoint_bytes()));
    if (job.checkpoint_at() > 0) {
      Add("tercio_checkpoint_age_seconds", "Time since the last checkpoint was committed.",
          MetricType::Gauge, labels, view.now - job.checkpoint_at());
    }
  }

  // The series of a job sum to its age.
  void AddGoodput(const Coordinator::JobView& view, const Labels& labels) const {
    const v1::Goodput goodput = GoodputOf(view.record, view.now);
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
      Labels with_kind = labels;
      with_kind.push_back({"kind", kind});
      // Not a counter: productive time becomes lost work when an attempt breaks.
      Add("tercio_job_time_seconds", "Where the time of the job has gone, since it was submitted.",
          MetricType::Gauge, with_kind, seconds);
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
  const StreamHub& streams_;
  mutable std::vector<MetricFamily> families_;  // one scrape at a time: the exposer has one thread
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorMetrics>> CoordinatorMetrics::Serve(
    const std::string& address, const Coordinator& coordinator, const StreamHub& streams) {
  TERCIO_ASSIGN_OR_RETURN(
      auto server,
      MetricsServer::Listen(address, std::make_shared<JobCollector>(coordinator, streams)));
  return std::unique_ptr<CoordinatorMetrics>(new CoordinatorMetrics(std::move(server)));
}

}  // namespace tercio::coordinator
