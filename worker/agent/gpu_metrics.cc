#include "worker/agent/gpu_metrics.h"

#include <map>

namespace tercio {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// The families in the order in which they were first added to.
class Page {
 public:
  void Add(const char* name, const char* help, MetricType type, const GpuReading& reading,
           const std::vector<ClientMetric::Label>& labels, double value) {
    const auto [place, added] = places_.try_emplace(name, families_.size());
    if (added) families_.push_back({name, help, type, {}});
    ClientMetric& metric = families_[place->second].metric.emplace_back();
    metric.label = {{"gpu", std::to_string(reading.gpu.index)}, {"uuid", reading.gpu.uuid}};
    metric.label.insert(metric.label.end(), labels.begin(), labels.end());
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  }
  template <typename Value>
  void Gauge(const char* name, const char* help, const GpuReading& reading,
             const std::optional<Value>& value,
             const std::vector<ClientMetric::Label>& labels = {}) {
    if (!value.has_value()) return;
    Add(name, help, MetricType::Gauge, reading, labels, static_cast<double>(*value));
  }
  template <typename Value>
  void Counter(const char* name, const char* help, const GpuReading& reading,
               const std::optional<Value>& value, const std::vector<ClientMetric::Label>& labels) {
    if (!value.has_value()) return;
    Add(name, help, MetricType::Counter, reading, labels, static_cast<double>(*value));
  }

  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
  std::map<std::string, size_t> places_;
};

void AddLoad(const GpuReading& reading, const GpuSample& sample, Page* page) {
  page->Gauge("tercio_gpu_utilization_ratio", "Part of the time with a kernel running.", reading,
              sample.utilization_ratio);
  page->Gauge("tercio_gpu_memory_utilization_ratio", "Part of the time with memory in use.",
              reading, sample.memory_utilization_ratio);
  constexpr char kMemory[] = "Memory of the GPU: all of it (size), and what anybody uses (used).";
  page->Gauge("tercio_gpu_memory_bytes", kMemory, reading, sample.memory_total_bytes,
              {{"kind", "size"}});
  page->Gauge("tercio_gpu_memory_bytes", kMemory, reading, sample.memory_used_bytes,
              {{"kind", "used"}});
  page->Gauge("tercio_gpu_power_watts", "Power that the GPU takes.", reading, sample.power_watts);
  page->Gauge("tercio_gpu_power_limit_watts", "Power that it may take.", reading,
              sample.power_limit_watts);
  page->Gauge("tercio_gpu_temperature_celsius", "Temperature of the die.", reading,
              sample.temperature_celsius);
  page->Gauge("tercio_gpu_sm_clock_hertz", "Clock rate of the multiprocessors.", reading,
              sample.sm_clock_hertz);
  page->Gauge("tercio_gpu_sm_clock_limit_hertz", "The highest that it can be.", reading,
              sample.sm_clock_limit_hertz);
  page->Gauge("tercio_gpu_memory_clock_hertz", "Clock rate of the memory.", reading,
              sample.memory_clock_hertz);
  if (sample.clock_reasons.has_value()) {
    for (const ClockReason& reason : ClockReasons()) {
      page->Gauge("tercio_gpu_clocks_limited", "1 for each reason why clocks are not higher.",
                  reading, std::optional<bool>((*sample.clock_reasons & reason.bit) != 0),
                  {{"reason", reason.name}});
    }
  }
  if (sample.processes.has_value()) {
    page->Gauge("tercio_gpu_processes", "Processes with a context on the GPU.", reading,
                std::optional<size_t>(sample.processes->size()));
  }
}

void AddErrors(const GpuReading& reading, const GpuSample& sample, Page* page) {
  page->Gauge("tercio_gpu_ecc_enabled", "1 where memory errors are corrected and counted.", reading,
              sample.ecc_enabled);
  constexpr char kErrors[] = "ECC errors since the driver was loaded.";
  page->Counter("tercio_gpu_ecc_errors_total", kErrors, reading, sample.ecc_corrected,
                {{"kind", "corrected"}});
  page->Counter("tercio_gpu_ecc_errors_total", kErrors, reading, sample.ecc_uncorrected,
                {{"kind", "uncorrected"}});
  constexpr char kEver[] = "ECC errors since the GPU was made.";
  page->Counter("tercio_gpu_lifetime_ecc_errors_total", kEver, reading, sample.ecc_corrected_ever,
                {{"kind", "corrected"}});
  page->Counter("tercio_gpu_lifetime_ecc_errors_total", kEver, reading, sample.ecc_uncorrected_ever,
                {{"kind", "uncorrected"}});
  constexpr char kRows[] = "Rows of memory that others stand in for, by the errors they had.";
  page->Gauge("tercio_gpu_remapped_rows", kRows, reading, sample.remapped_rows_corrected,
              {{"kind", "corrected"}});
  page->Gauge("tercio_gpu_remapped_rows", kRows, reading, sample.remapped_rows_uncorrected,
              {{"kind", "uncorrected"}});
  page->Gauge("tercio_gpu_row_remap_failed", "1 where there was no row to stand in.", reading,
              sample.remap_failed);
  page->Gauge("tercio_gpu_retirement_pending",
              "1 where a reset would put faulty rows or pages out of use.", reading,
              sample.retirement_pending);
}

void AddLinks(const GpuReading& reading, const GpuSample& sample, Page* page) {
  page->Gauge("tercio_gpu_pcie_generation", "Generation of PCIe that the link runs at.", reading,
              sample.pcie_generation);
  page->Gauge("tercio_gpu_pcie_lanes", "Lanes of PCIe that the link has.", reading,
              sample.pcie_lanes);
  constexpr char kLinks[] = "NVLinks of the GPU: all, and those that are up (active).";
  page->Gauge("tercio_gpu_nvlinks", kLinks, reading, sample.nvlinks, {{"kind", "all"}});
  page->Gauge("tercio_gpu_nvlinks", kLinks, reading, sample.nvlinks_active, {{"kind", "active"}});
}

}  // namespace

std::vector<MetricFamily> GpuMetrics(const std::vector<GpuReading>& readings,
                                     const std::string& driver) {
  Page page;
  for (const GpuReading& reading : readings) {
    page.Add("tercio_gpu_info", "1; what the GPU is.", MetricType::Gauge, reading,
             {{"model", reading.gpu.model}, {"driver", driver}}, 1);
    page.Add("tercio_gpu_faulty", "1 where the GPU takes no ranks.", MetricType::Gauge, reading, {},
             reading.fault.has_value() ? 1 : 0);
    page.Add("tercio_gpu_sample_age_seconds", "Since the driver has answered last.",
             MetricType::Gauge, reading, {}, reading.age_seconds);
    for (const auto& [xid, count] : reading.xids) {
      page.Add("tercio_gpu_xid_errors_total", "Errors that the driver has reported, by XID.",
               MetricType::Counter, reading, {{"xid", std::to_string(xid)}},
               static_cast<double>(count));
    }
    if (!reading.sample.has_value()) continue;
    AddLoad(reading, *reading.sample, &page);
    AddErrors(reading, *reading.sample, &page);
    AddLinks(reading, *reading.sample, &page);
  }
  return page.Take();
}

}  // namespace tercio
