#include "worker/agent/gpus/gpu_metrics.h"

#include <optional>

namespace tercio::agent {
namespace {

// The series of one GPU.
class GpuSeries {
 public:
  GpuSeries(const GpuReading& reading, MetricsPage* page)
      : gpu_(std::to_string(reading.gpu.index)), uuid_(reading.gpu.uuid), page_(*page) {}

  template <typename Value>
  void Set(MetricId metric, const std::optional<Value>& value) {
    if (value.has_value()) page_.Set(metric, {gpu_, uuid_}, static_cast<double>(*value));
  }
  // With a label between the other two: `kind` or `reason`.
  template <typename Value>
  void Set(MetricId metric, const char* label, const std::optional<Value>& value) {
    if (value.has_value()) page_.Set(metric, {gpu_, label, uuid_}, static_cast<double>(*value));
  }
  void SetInfo(const std::string& driver, const std::string& model) {
    page_.Set("tercio_gpu_info", {driver, gpu_, model, uuid_}, 1);
  }
  // NVIDIA's number is the label, since documentation and kernel logs know errors by it.
  void SetXid(int xid, int64_t count) {
    page_.Set("tercio_gpu_xid_errors_total", {gpu_, uuid_, std::to_string(xid)},
              static_cast<double>(count));
  }

 private:
  const std::string gpu_;
  const std::string& uuid_;
  MetricsPage& page_;
};

void AddLoad(const GpuSample& sample, GpuSeries* series) {
  series->Set("tercio_gpu_utilization_ratio", sample.utilization_ratio);
  series->Set("tercio_gpu_memory_utilization_ratio", sample.memory_utilization_ratio);
  series->Set("tercio_gpu_memory_bytes", "size", sample.memory_total_bytes);
  series->Set("tercio_gpu_memory_bytes", "used", sample.memory_used_bytes);
  series->Set("tercio_gpu_power_watts", sample.power_watts);
  series->Set("tercio_gpu_power_limit_watts", sample.power_limit_watts);
  series->Set("tercio_gpu_temperature_celsius", sample.temperature_celsius);
  series->Set("tercio_gpu_sm_clock_hertz", sample.sm_clock_hertz);
  series->Set("tercio_gpu_sm_clock_limit_hertz", sample.sm_clock_limit_hertz);
  series->Set("tercio_gpu_memory_clock_hertz", sample.memory_clock_hertz);
  // Every reason has a series of 0 or 1, so that an alert sees it end.
  if (sample.clock_reasons.has_value()) {
    for (const ClockReason& reason : ClockReasons()) {
      series->Set("tercio_gpu_clocks_limited", reason.name,
                  std::optional<bool>((*sample.clock_reasons & reason.bit) != 0));
    }
  }
  if (sample.processes.has_value()) {
    series->Set("tercio_gpu_processes", std::optional<size_t>(sample.processes->size()));
  }
}

// Counts whose names lack `lifetime` start over when the driver is loaded; remapped rows stay.
void AddErrors(const GpuSample& sample, GpuSeries* series) {
  series->Set("tercio_gpu_ecc_enabled", sample.ecc_enabled);
  series->Set("tercio_gpu_ecc_errors_total", "corrected", sample.ecc_corrected);
  series->Set("tercio_gpu_ecc_errors_total", "uncorrected", sample.ecc_uncorrected);
  series->Set("tercio_gpu_lifetime_ecc_errors_total", "corrected", sample.ecc_corrected_ever);
  series->Set("tercio_gpu_lifetime_ecc_errors_total", "uncorrected", sample.ecc_uncorrected_ever);
  series->Set("tercio_gpu_remapped_rows", "corrected", sample.remapped_rows_corrected);
  series->Set("tercio_gpu_remapped_rows", "uncorrected", sample.remapped_rows_uncorrected);
  series->Set("tercio_gpu_row_remap_failed", sample.remap_failed);
  series->Set("tercio_gpu_retirement_pending", sample.retirement_pending);
}

// A link that has fallen back to fewer lanes or a lower generation is slow, and reports no error.
void AddLinks(const GpuSample& sample, GpuSeries* series) {
  series->Set("tercio_gpu_pcie_generation", sample.pcie_generation);
  series->Set("tercio_gpu_pcie_lanes", sample.pcie_lanes);
  series->Set("tercio_gpu_nvlinks", "all", sample.nvlinks);
  series->Set("tercio_gpu_nvlinks", "active", sample.nvlinks_active);
}

}  // namespace

void AddGpuMetrics(const std::vector<GpuReading>& readings, const std::string& driver, double now,
                   MetricsPage* page) {
  for (const GpuReading& reading : readings) {
    GpuSeries series(reading, page);
    // These need no sample: a GPU whose driver is silent is still a GPU of this node.
    series.SetInfo(driver, reading.gpu.model);
    series.Set("tercio_gpu_faulty", std::optional<bool>(reading.fault.has_value()));
    // A time, not an age: queries compute the age for the moment at which they run.
    series.Set("tercio_gpu_last_sample_timestamp_seconds",
               std::optional<double>(now - reading.age_seconds));
    for (const auto& [xid, count] : reading.xids) series.SetXid(xid, count);
    // A gap in the series shows that the driver is silent; the last values would hide it.
    if (!reading.sample.has_value()) continue;
    AddLoad(*reading.sample, &series);
    AddErrors(*reading.sample, &series);
    AddLinks(*reading.sample, &series);
  }
}

}  // namespace tercio::agent
