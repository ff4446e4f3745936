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

Generated from `common/metrics/metric_table.h` by `bazel run //common/metrics:write_document`; a test compares them.

Both daemons answer `GET /metrics` on `--metrics-listen` in Prometheus' text format, and `tercio serve` on its own port, with the metrics of
the process ([serving.md](serving.md)). How Prometheus finds them, dashboards and alerts:
[operations.md](operations.md).

- Times are seconds since 1970, so `time() - metric` is an age, even if a clock was set meanwhile. Counters start at 0 with the daemon; those
  of a rank start with its first report, and its phases and processor time restart with each attempt.
- `job_id` and `job_name` are on every series of a job, `rank` on every series of a rank (`job` is set by Prometheus). Label values longer
  than 120 bytes are truncated.
- A job that has ended stays on the pages for `--metrics-linger` seconds (TERCIO_METRICS_LINGER, 60: four scrapes 15 s apart) with its
  last values; so does a rank that has ended, except for its gauges, which are removed immediately. The coordinator shows 100
  jobs, those that hold devices before those that wait, the newer ones first, and counts the others in `tercio_jobs_not_shown`.
- An unknown value has no series: a loss before the first step, a GPU's power if its driver does not report it.
- A histogram has the series `_bucket`, `_sum` and `_count`.

The cost of a page is bounded, however often it is requested (`common/metrics/metrics_server.h`): pages are rendered at most so often that
this takes 5 % of a core, at most 200 connections per second are accepted, and beyond 64 open connections the one that has been silent
longest is closed. A connection is closed after its answer.
)";

// The sections are those of the pages, so that a reader finds what a daemon shows.
struct Section {
  MetricExporter exporter;
  absl::string_view title;
};
// Each metric is in the section of the page that shows it.
constexpr Section kSections[] = {
    {MetricExporter::kCoordinator, "Metrics of the coordinator"},
    {MetricExporter::kAgent, "Metrics of each agent"},
    {MetricExporter::kServer, "Metrics of `tercio serve`"},
    {MetricExporter::kBoth, "Metrics of both daemons"},
};

std::string TypeWordOf(const MetricSpec& spec) {
  // The names of the types are those of Prometheus.
  switch (spec.kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      break;
  }
  std::vector<double> bounds;
  for (const double bound : spec.buckets) {
    // Unused places of the table are 0.
    if (bound > 0) bounds.push_back(bound);
  }
  return absl::StrCat("histogram: ", absl::StrJoin(bounds, ", "));
}

std::string LabelsOf(const MetricSpec& spec) {
  if (spec.labels.empty()) return "";
  // The table separates labels by blanks, people read them one by one.
  const std::vector<absl::string_view> labels = absl::StrSplit(spec.labels, ' ');
  return absl::StrCat("`", absl::StrJoin(labels, "`, `"), "`");
}

}  // namespace

std::string MetricsDocument() {
  // The head explains what all metrics have in common.
  std::string text(kHead);
  for (const Section& section : kSections) {
    absl::StrAppend(&text, "\n## ", section.title,
                    "\n\n| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n");
    // The order is that of the table, where related metrics stand together.
    for (const MetricSpec& spec : metric_table::kAll) {
      if (spec.exporter != section.exporter) continue;
      absl::StrAppend(&text, "| `", spec.name, "` | ", TypeWordOf(spec), " | ",
                      // A unit of 1 is no unit for people.
                      spec.unit == "1" ? "" : spec.unit, " | ", LabelsOf(spec), " | ", spec.help,
                      " |\n");
    }
  }
  return text;
}

}  // namespace tercio
