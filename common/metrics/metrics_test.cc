// The table keeps the rules for names; the page is what Prometheus reads; the document is the
// table's.
#include <cmath>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/file.h"
#include "common/metrics/histogram.h"
#include "common/metrics/metrics_document.h"
#include "common/metrics/metrics_page.h"
#include "common/metrics/process_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

TEST(MetricTable, KeepsTheRulesForNames) {
  std::set<std::string> names;
  for (const MetricSpec& spec : metric_table::kAll) {
    const std::string name(spec.name);
    SCOPED_TRACE(name);
    EXPECT_TRUE(names.insert(name).second) << "twice";
    EXPECT_THAT(name, AnyOf(StartsWith("tercio_"), StartsWith("process_")));
    EXPECT_EQ(absl::EndsWith(name, "_total"), spec.kind == MetricKind::kCounter);
    EXPECT_TRUE(!absl::EndsWith(name, "_info") || spec.unit == "1");
    for (const char* unit : {"seconds", "bytes", "ratio", "watts", "hertz", "celsius"}) {
      if (spec.unit != unit) continue;
      std::string stem = name;
      if (absl::EndsWith(stem, "_total")) stem.resize(stem.size() - 6);
      EXPECT_TRUE(absl::EndsWith(stem, std::string("_") + unit)) << "its unit is " << unit;
    }
    for (const char* wrong : {"milli", "micro", "minutes", "percent", "_mb", "_gib", "_age_"}) {
      EXPECT_THAT(name, Not(HasSubstr(wrong)));
    }
    EXPECT_THAT(spec.help, Not(IsEmpty()));
    EXPECT_EQ(spec.help.find_first_of("\n\\|"), absl::string_view::npos);
  }
}

TEST(MetricTable, LabelsAreAlphabeticalAndNeverOfPrometheus) {
  for (const MetricSpec& spec : metric_table::kAll) {
    SCOPED_TRACE(std::string(spec.name));
    if (spec.labels.empty()) continue;
    const std::vector<std::string> labels = absl::StrSplit(spec.labels, ' ');
    EXPECT_TRUE(std::is_sorted(labels.begin(), labels.end()));
    for (const std::string& label : labels) {
      EXPECT_THAT(label, Not(AnyOf("job", "instance", "le", "quantile", "")));
    }
  }
}

TEST(MetricTable, BucketsAscend) {
  for (const MetricSpec& spec : metric_table::kAll) {
    SCOPED_TRACE(std::string(spec.name));
    EXPECT_EQ(spec.buckets[0] > 0, spec.kind == MetricKind::kHistogram);
    bool ended = false;
    for (size_t i = 1; i < kMostBuckets; ++i) {
      ended = ended || spec.buckets[i] == 0;
      EXPECT_TRUE(ended ? spec.buckets[i] == 0 : spec.buckets[i] > spec.buckets[i - 1]);
    }
  }
}

TEST(MetricsPage, IsInTheOrderOfTheTableWithHelpAndTypeOnce) {
  MetricsPage page(MetricExporter::kCoordinator);
  page.Set("tercio_job_loss", {"j-1", "a"}, 2.5);
  page.Set("tercio_jobs_waiting", 3);
  page.Set("tercio_job_loss", {"j-2", "b"}, std::nan(""));
  EXPECT_EQ(page.Text(),
            "# HELP tercio_jobs_waiting Jobs waiting for devices: the length of the queue.\n"
            "# TYPE tercio_jobs_waiting gauge\n"
            "tercio_jobs_waiting 3\n"
            "# HELP tercio_job_loss Loss of the last step.\n"
            "# TYPE tercio_job_loss gauge\n"
            "tercio_job_loss{job_id=\"j-1\",job_name=\"a\"} 2.5\n"
            "tercio_job_loss{job_id=\"j-2\",job_name=\"b\"} Nan\n");  // in any case, to Prometheus
}

TEST(MetricsPage, NumbersKeepTheirDigits) {
  MetricsPage page(MetricExporter::kCoordinator);
  page.Set("tercio_checkpoint_store_free_bytes", 123456789012345.0);
  page.Set("tercio_job_loss", {"j", "n"}, -INFINITY);
  page.Set("tercio_job_learning_rate", {"j", "n"}, 1e-5);
  EXPECT_THAT(page.Text(), HasSubstr("free_bytes 123456789012345\n"));
  EXPECT_THAT(page.Text(), HasSubstr("} -Inf\n"));
  EXPECT_THAT(page.Text(), HasSubstr("} 1e-05\n"));
}

TEST(MetricsPage, LabelsMayHoldAnything) {
  MetricsPage page(MetricExporter::kCoordinator);
  page.Set("tercio_job_loss", {"quote\" slash\\ line\nend", "bad\xff\x1b[31m"}, 1);
  page.Set("tercio_job_loss", {std::string(100'000, 'x'), std::string(119, 'y') + "\u00e4"}, 2);
  const std::string text = page.Text();
  EXPECT_THAT(text, HasSubstr("{job_id=\"quote\\\" slash\\\\ line?end\",job_name=\"bad??[31m\"}"));
  EXPECT_THAT(text, HasSubstr("{job_id=\"" + std::string(kMostLabelBytes, 'x') + "\",job_name=\"" +
                              std::string(119, 'y') + "\"} 2\n"));
}

TEST(MetricsPage, HistogramsAreCumulative) {
  Histogram histogram("tercio_store_commit_duration_seconds");
  for (const double seconds : {0.0005, 0.001, 0.02, 0.02, 100.0}) histogram.Observe(seconds);
  MetricsPage page(MetricExporter::kCoordinator);
  page.Set("tercio_store_commit_duration_seconds", histogram.figures());
  const std::string text = page.Text();
  EXPECT_THAT(text, HasSubstr("# TYPE tercio_store_commit_duration_seconds histogram\n"));
  EXPECT_THAT(text, HasSubstr("_bucket{le=\"0.001\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("_bucket{le=\"0.01\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("_bucket{le=\"0.03\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("_bucket{le=\"10\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("_bucket{le=\"+Inf\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("_seconds_sum 100.0415\n"));
  EXPECT_THAT(text, HasSubstr("_seconds_count 5\n"));
}

TEST(MetricsPage, HistogramsWithFewerBucketsCountWhatIsAbove) {
  Histogram histogram("tercio_batch_events");
  histogram.Observe(1e9);
  histogram.Observe(2);
  MetricsPage page(MetricExporter::kCoordinator);
  page.Set("tercio_batch_events", histogram.figures());
  EXPECT_THAT(page.Text(), HasSubstr("_bucket{le=\"10000\"} 1\n"));
  EXPECT_THAT(page.Text(), HasSubstr("_bucket{le=\"+Inf\"} 2\n"));
}

TEST(MetricsPage, CountsNothingTwiceOrNotAtAllUnderThreads) {
  Histogram histogram("tercio_rpc_duration_seconds");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&histogram] {
      for (int k = 0; k < 10'000; ++k) histogram.Observe(0.5);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const HistogramFigures figures = histogram.figures();
  EXPECT_EQ(figures.counts[6], 40'000u);  // above 0.3, up to 1
  EXPECT_EQ(figures.sum, 20'000);
}

TEST(MetricsPageDeathTest, RefusesMetricsOfAnotherDaemonAndWrongLabels) {
  MetricsPage page(MetricExporter::kAgent);
  EXPECT_DEATH(page.Set("tercio_jobs_waiting", 1), "check failed");
  EXPECT_DEATH(page.Set("tercio_loss", {"j-1"}, 1), "check failed");
  EXPECT_DEATH(page.Set("tercio_trainers", {"j-1"}, 1), "check failed");
}

TEST(ProcessMetrics, AreThoseOfThisProcess) {
  MetricsPage page(MetricExporter::kAgent);
  AddProcessMetrics("1.2.3", "abc", &page);
  const std::string text = page.Text();
  EXPECT_THAT(text, HasSubstr("tercio_build_info{commit=\"abc\",version=\"1.2.3\"} 1\n"));
  for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes",
                           "process_virtual_memory_bytes", "process_open_fds", "process_max_fds",
                           "process_threads", "process_start_time_seconds"}) {
    const size_t at = text.find(std::string("\n") + name + " ");
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_GT(std::stod(text.substr(at + 2 + std::string(name).size())),
              std::string(name) == "process_cpu_seconds_total" ? -1 : 0)
        << name;
  }
}

TEST(ProcessMetrics, SayWhenCertificatesEndAndNothingOfThoseThatAreNone) {
  MetricsPage page(MetricExporter::kAgent);
  AddCertificateMetrics("common/metrics/testdata/certificate.pem", "", &page);
  EXPECT_THAT(page.Text(),
              HasSubstr("_not_after_timestamp_seconds{file=\"certificate\"} 4102444800\n"));
  EXPECT_THAT(page.Text(), Not(HasSubstr("file=\"authority")));
  MetricsPage without(MetricExporter::kAgent);
  AddCertificateMetrics("common/metrics/metrics_test.cc", "/does/not/exist", &without);
  EXPECT_THAT(without.Text(), IsEmpty());
}

TEST(MetricsDocument, IsWhatIsCommitted) {
  const absl::StatusOr<std::string> committed = ReadFile("docs/metrics.md");
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_EQ(*committed, MetricsDocument()) << "run: bazel run //common/metrics:write_document";
}

}  // namespace
}  // namespace tercio
