// GPUs on the page for Prometheus. Values that a GPU does not report have no series.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "common/metrics/metrics_page.h"
#include "worker/agent/gpus/gpu_monitor.h"

namespace tercio::agent {

// `now` in seconds since 1970: the time at which the readings were taken from the monitor.
void AddGpuMetrics(const std::vector<GpuReading>& readings, const std::string& driver, double now,
                   MetricsPage* page);

}  // namespace tercio::agent
