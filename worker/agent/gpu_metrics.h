// GPUs on the page for Prometheus. What a GPU does not say has no series.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "prometheus/metric_family.h"
#include "worker/agent/gpu_monitor.h"

namespace tercio {

std::vector<prometheus::MetricFamily> GpuMetrics(const std::vector<GpuReading>& readings,
                                                 const std::string& driver);

}  // namespace tercio
