#include "common/metrics/metrics_document.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/metrics/metric_table.h"

namespace tercio {
namespace {

constexpr absl::string_view kHead = R"(# Metrics

Made from `common/metrics/metric_table.h` by `bazel run //common/metrics:write_document`; a test compares them.

Both daemons answer `GET /metrics` on `--metrics-listen` in Prometheus' text format. How Prometheus finds them, dashboards and alerts:
[operations.md](operations.md).

- Times are seconds since 1970, so `time() - metric` is an age, also when a clock was set. Counters begin at 0 with the daemon, those of a rank
  with its first report; its phases and processor time start over with each attempt.
- `job_id` and `job_name` are on all that concerns a job, `rank` on what concerns a rank (`job` is set by Prometheus). Values longer than
  120 bytes are cut.
- A job that has ended stays on the pages for `--metrics-linger` seconds (TERCIO_METRICS_LINGER, 60: four scrapes 15 s apart) with its
  last values, and then vanishes; so does a rank that has ended, but for its gauges, which go at once. The coordinator shows 100
  jobs, those that hold devices before those that wait, the newer ones first, and says how many others there are (`tercio_jobs_not_shown`).
- What is not known has no series: a loss before the first step, a GPU's power where its driver does not say it.
- A histogram of a metric is `_bucket`, `_sum` and `_count`.

What a page costs is bounded, however often it is asked for (`common/metrics/metrics_server.h`): it is made at most so often that this takes 5 % of a
core, 200 connections a second are let in, and beyond 64 at a time the connection that has been silent longest is closed. A
connection ends with its answer.
)";

struct Section {
  MetricExporter exporter;
  absl::string_view title;
};
constexpr Section kSections[] = {
    {MetricExporter::kCoordinator, "Coordinator"},
    {MetricExporter::kAgent, "Agents"},
    {MetricExporter::kBoth, "Both daemons"},
};

std::string TypeOf(const MetricSpec& spec) {
  switch (spec.kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    default:
      break;
  }
  std::vector<double> bounds;
  for (const double bound : spec.buckets) {
    if (bound > 0) bounds.push_back(bound);
  }
  return absl::StrCat("histogram: ", absl::StrJoin(bounds, ", "));
}

std::string LabelsOf(const MetricSpec& spec) {
  if (spec.labels.empty()) return "";
  const std::vector<absl::string_view> labels = absl::StrSplit(spec.labels, ' ');
  return absl::StrCat("`", absl::StrJoin(labels, "`, `"), "`");
}

}  // namespace

std::string MetricsDocument() {
  std::string text(kHead);
  for (const Section& section : kSections) {
    absl::StrAppend(&text, "\n## ", section.title,
                    "\n\n| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n");
    for (const MetricSpec& spec : metric_table::kAll) {
      if (spec.exporter != section.exporter) continue;
      absl::StrAppend(&text, "| `", spec.name, "` | ", TypeOf(spec), " | ",
                      spec.unit == "1" ? "" : spec.unit, " | ", LabelsOf(spec), " | ", spec.help,
                      " |\n");
    }
  }
  return text;
}

}  // namespace tercio
