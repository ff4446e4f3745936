// One page for Prometheus, made of metrics of the table and written by prometheus-cpp in the text
// format (version 0.0.4).
//
// Not thread-safe.
#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/metrics/histogram.h"
#include "common/metrics/metric_table.h"
#include "prometheus/client_metric.h"

namespace tercio {

// Longer label values are truncated, so that a job's name cannot make pages large.
inline constexpr size_t kMostLabelBytes = 120;

class MetricsPage {
 public:
  // Metrics of another daemon cannot be set.
  explicit MetricsPage(MetricExporter exporter) : exporter_(exporter) {}

  // Values of the metric's labels, in their order, which is alphabetical. They may contain
  // anything: invalid UTF-8 and unprintable characters are replaced, the rest is escaped.
  using Labels = std::initializer_list<absl::string_view>;
  void Set(MetricId metric, Labels labels, double value);
  void Set(MetricId metric, Labels labels, const HistogramFigures& figures);
  void Set(MetricId metric, double value) { Set(metric, {}, value); }
  void Set(MetricId metric, const HistogramFigures& figures) { Set(metric, {}, figures); }

  // The metrics that were set, in the order of the table.
  std::string Text() const;

 private:
  prometheus::ClientMetric& Add(MetricId metric, MetricKind kind, Labels labels);

  const MetricExporter exporter_;
  std::array<std::vector<prometheus::ClientMetric>, kMetricCount> series_;  // series of each metric
};

}  // namespace tercio
