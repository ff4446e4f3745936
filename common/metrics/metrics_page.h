// One page for Prometheus, in its text format (version 0.0.4), made of metrics of the table.
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

namespace tercio {

// Longer values of labels are cut, so that nobody can make pages large by a job's name.
inline constexpr size_t kMostLabelBytes = 120;

class MetricsPage {
 public:
  // Metrics of another daemon cannot be set.
  explicit MetricsPage(MetricExporter exporter) : exporter_(exporter) {}

  // Values of the metric's labels, in their order, which is alphabetical. They may hold anything:
  // what is not UTF-8 or unprintable is replaced, the rest escaped.
  using Labels = std::initializer_list<absl::string_view>;
  void Set(MetricId metric, Labels labels, double value);
  void Set(MetricId metric, Labels labels, const HistogramFigures& figures);
  void Set(MetricId metric, double value) { Set(metric, {}, value); }
  void Set(MetricId metric, const HistogramFigures& figures) { Set(metric, {}, figures); }

  // The metrics that were set, in the order of the table.
  std::string Text() const;

 private:
  std::string& SeriesOf(MetricId metric, MetricKind kind);

  const MetricExporter exporter_;
  std::array<std::string, kMetricCount> series_;  // lines of each metric
};

}  // namespace tercio
