#include "common/metrics/metrics_page.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/utf8.h"
#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"

namespace tercio {
namespace {

prometheus::MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return prometheus::MetricType::Counter;
    case MetricKind::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricKind::kHistogram:
      break;
  }
  return prometheus::MetricType::Histogram;
}

// At most kMostLabelBytes of the value, without characters that terminals or pages do not show.
std::string Readable(absl::string_view label) {
  const std::string_view value(label.data(), label.size());
  std::string text;
  for (size_t at = 0; at < value.size();) {
    const CodePoint point = DecodeUtf8(value, at);
    // A label is cut at a character, as half of one would make the page invalid.
    if (text.size() + point.length > kMostLabelBytes) break;
    at += point.length;
    AppendUtf8(IsPrintable(point) ? point.code : '?', &text);
  }
  return text;
}

std::vector<prometheus::ClientMetric::Label> Named(const MetricSpec& spec,
                                                   MetricsPage::Labels values) {
  std::vector<prometheus::ClientMetric::Label> labels;
  if (spec.labels.empty()) {
    TERCIO_CHECK(values.size() == 0);
    return labels;
  }
  const std::vector<std::string> names = absl::StrSplit(spec.labels, ' ');
  // A label more or less would be another series: the table decides.
  TERCIO_CHECK_EQ(names.size(), values.size());
  const absl::string_view* value = values.begin();
  for (const std::string& name : names) labels.push_back({name, Readable(*value++)});
  return labels;
}

}  // namespace

prometheus::ClientMetric& MetricsPage::Add(MetricId metric, MetricKind kind, Labels labels) {
  const MetricSpec& spec = metric.spec();
  // A metric of the other daemon's page is a mistake of the program.
  TERCIO_CHECK(spec.exporter == MetricExporter::kBoth || spec.exporter == exporter_);
  TERCIO_CHECK((spec.kind == MetricKind::kHistogram) == (kind == MetricKind::kHistogram));
  prometheus::ClientMetric& series = series_[metric.index()].emplace_back();
  series.label = Named(spec, labels);
  return series;
}

void MetricsPage::Set(MetricId metric, Labels labels, double value) {
  prometheus::ClientMetric& series = Add(metric, MetricKind::kGauge, labels);
  // The serializer looks at the one that the type of the family names.
  series.gauge.value = value;
  series.counter.value = value;
}

void MetricsPage::Set(MetricId metric, Labels labels, const HistogramFigures& figures) {
  prometheus::ClientMetric::Histogram& histogram =
      Add(metric, MetricKind::kHistogram, labels).histogram;
  const MetricBuckets& bounds = metric.spec().buckets;
  for (size_t i = 0; i < kMostBuckets && bounds[i] > 0; ++i) {
    // Buckets of Prometheus are cumulative.
    histogram.sample_count += figures.counts[i];
    histogram.bucket.push_back({histogram.sample_count, bounds[i]});
  }
  // Values above all bounds are in the bucket that the serializer adds.
  histogram.sample_count += figures.counts[kMostBuckets];
  histogram.sample_sum = figures.sum;
}

std::string MetricsPage::Text() const {
  std::vector<prometheus::MetricFamily> families;
  for (size_t i = 0; i < kMetricCount; ++i) {
    // A family without series would be a heading without content.
    if (series_[i].empty()) continue;
    const MetricSpec& spec = metric_table::kAll[i];
    families.push_back(
        {std::string(spec.name), std::string(spec.help), TypeOf(spec.kind), series_[i]});
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace tercio
