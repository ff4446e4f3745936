#include "common/metrics/metrics_page.h"

#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/utf8.h"

namespace tercio {
namespace {

const char* NameOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    default:
      return "histogram";
  }
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  // Counts of bytes and times keep all their digits, others need not.
  std::string text = absl::StrFormat("%.15g", value);
  return text;
}

void AppendValue(absl::string_view label, std::string* out) {
  const std::string_view value(label.data(), label.size());
  size_t kept = 0;
  for (size_t at = 0; at < value.size();) {
    const CodePoint point = DecodeUtf8(value, at);
    if (kept + point.length > kMostLabelBytes) return;
    kept += point.length;
    at += point.length;
    const bool printable = point.code >= 0x20 && !(point.code >= 0x7f && point.code < 0xa0);
    if (point.code == '\\') {
      out->append("\\\\");
    } else if (point.code == '"') {
      out->append("\\\"");
    } else {
      AppendUtf8(point.valid && printable ? point.code : '?', out);
    }
  }
}

// `job_id="j-1",rank="3"`; empty where there are no labels.
std::string Render(const MetricSpec& spec, MetricsPage::Labels values) {
  std::string text;
  if (spec.labels.empty()) {
    TERCIO_CHECK(values.size() == 0);
    return text;
  }
  const std::vector<absl::string_view> names = absl::StrSplit(spec.labels, ' ');
  TERCIO_CHECK_EQ(names.size(), values.size());
  const absl::string_view* value = values.begin();
  for (const absl::string_view name : names) {
    absl::StrAppend(&text, text.empty() ? "" : ",", name, "=\"");
    AppendValue(*value++, &text);
    text += '"';
  }
  return text;
}

}  // namespace

std::string& MetricsPage::SeriesOf(MetricId metric, MetricKind kind) {
  const MetricSpec& spec = metric.spec();
  TERCIO_CHECK(spec.exporter == MetricExporter::kBoth || spec.exporter == exporter_);
  TERCIO_CHECK((spec.kind == MetricKind::kHistogram) == (kind == MetricKind::kHistogram));
  return series_[metric.index()];
}

void MetricsPage::Set(MetricId metric, Labels labels, double value) {
  std::string& lines = SeriesOf(metric, MetricKind::kGauge);
  const std::string rendered = Render(metric.spec(), labels);
  absl::StrAppend(&lines, metric.spec().name);
  if (!rendered.empty()) absl::StrAppend(&lines, "{", rendered, "}");
  absl::StrAppend(&lines, " ", Number(value), "\n");
}

void MetricsPage::Set(MetricId metric, Labels labels, const HistogramFigures& figures) {
  std::string& lines = SeriesOf(metric, MetricKind::kHistogram);
  const MetricSpec& spec = metric.spec();
  const std::string rendered = Render(spec, labels);
  uint64_t count = 0;
  for (size_t i = 0; i < kMostBuckets && spec.buckets[i] > 0; ++i) {
    count += figures.counts[i];
    absl::StrAppend(&lines, spec.name, "_bucket{", rendered, rendered.empty() ? "" : ",", "le=\"",
                    Number(spec.buckets[i]), "\"} ", count, "\n");
  }
  count += figures.counts[kMostBuckets];
  const std::string braces = rendered.empty() ? "" : absl::StrCat("{", rendered, "}");
  absl::StrAppend(&lines, spec.name, "_bucket{", rendered, rendered.empty() ? "" : ",",
                  "le=\"+Inf\"} ", count, "\n");
  absl::StrAppend(&lines, spec.name, "_sum", braces, " ", Number(figures.sum), "\n");
  absl::StrAppend(&lines, spec.name, "_count", braces, " ", count, "\n");
}

std::string MetricsPage::Text() const {
  std::string text;
  for (size_t i = 0; i < kMetricCount; ++i) {
    if (series_[i].empty()) continue;
    const MetricSpec& spec = metric_table::kAll[i];
    absl::StrAppend(&text, "# HELP ", spec.name, " ", spec.help, "\n# TYPE ", spec.name, " ",
                    NameOf(spec.kind), "\n", series_[i]);
  }
  return text;
}

}  // namespace tercio
