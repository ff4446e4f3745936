// The page as Prometheus would fetch it.
#include "worker/agent/agent_metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "common/metrics/metric_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// GET /metrics from 127.0.0.1:PORT, header and all.
std::string Fetch(const std::string& address) {
  sockaddr_in where = {};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  inet_pton(AF_INET, "127.0.0.1", &where.sin_addr);
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(descriptor, reinterpret_cast<sockaddr*>(&where), sizeof(where)), 0);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(write(descriptor, request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  std::string page;
  char buffer[4096];
  for (ssize_t count; (count = read(descriptor, buffer, sizeof(buffer))) > 0;) {
    page.append(buffer, static_cast<size_t>(count));
  }
  close(descriptor);
  return page;
}

const RankLabels kLabels{"j-1", "shakespeare", 3, 0, 1, 1, 5};
constexpr char kLabelText[] = "{job_id=\"j-1\",job_name=\"shakespeare\",rank=\"3\"}";

v1::TrainerStep MakeStep() {
  v1::TrainerStep step;
  v1::StepRecord* record = step.mutable_newest();
  record->set_step(7);
  record->set_step_seconds(0.25);
  step.set_tokens_per_second(1024);
  step.set_communication_seconds(0.125);
  record->set_loss(3.5);
  record->set_grad_norm(0.5);
  step.set_mfu(0.4);
  step.set_mfu_causal(0.3);
  v1::RankFigures* figures = step.mutable_figures();
  figures->set_cpu_seconds(12);
  figures->mutable_phases()->set_forward(1);
  figures->mutable_phases()->set_wait(2);
  figures->mutable_communication()->set_data(4096);
  figures->mutable_state()->set_gather(5);
  figures->mutable_state()->set_reduce_waited(0.75);
  figures->mutable_gpu_fallbacks()->set_gelu(2);
  return step;
}

// Everything that a rank can say.
void SayAll(AgentMetrics& metrics) {
  metrics.Step(kLabels, MakeStep(), 2, 256);
  v1::TrainerMemory memory;
  memory.set_planned_bytes(4096);
  memory.set_resident_bytes(8192);
  metrics.Memory(kLabels, memory);
  metrics.LogLinesLost(kLabels, 13);
  v1::CheckpointProgress progress;
  progress.set_bytes(100);
  progress.set_seconds(1.5);
  progress.set_error("disk full");
  metrics.Checkpoint(kLabels, progress);
  metrics.Loaded(kLabels, "memory", 0.5);
}

TEST(AgentMetrics, ShowsARanksFigures) {
  const auto metrics = AgentMetrics::Serve("127.0.0.1:0");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  SayAll(**metrics);
  (*metrics)->Step(kLabels, MakeStep(), 1, 256);
  (*metrics)->SetSnapshotBytes(2048);
  const std::string page = Fetch((*metrics)->address());
  const std::string labels = kLabelText;
  const std::string job = "{job_id=\"j-1\",job_name=\"shakespeare\",";
  EXPECT_THAT(page, HasSubstr("200 OK"));
  for (const char* line :
       {"tercio_tokens_total 512", "tercio_steps_total 3", "tercio_tokens_per_second 1024",
        "tercio_step 7", "tercio_step_seconds 0.25", "tercio_communication_seconds 0.125",
        "tercio_loss 3.5", "tercio_grad_norm 0.5", "tercio_checkpoint_send_failures_total 1",
        "tercio_checkpoint_sent_bytes_total 100", "tercio_checkpoint_send_seconds 1.5",
        "tercio_rank_cpu_seconds_total 12", "tercio_log_lines_lost_total 13"}) {
    const std::string text = line;
    const size_t space = text.find(' ');
    EXPECT_THAT(page, HasSubstr("\n" + text.substr(0, space) + labels + text.substr(space) + "\n"));
  }
  EXPECT_THAT(page, HasSubstr("tercio_memory_bytes" + job + "kind=\"planned\",rank=\"3\"} 4096"));
  EXPECT_THAT(page, HasSubstr("tercio_memory_bytes" + job + "kind=\"resident\",rank=\"3\"} 8192"));
  EXPECT_THAT(page, HasSubstr("tercio_load_seconds" + job + "rank=\"3\",source=\"memory\"} 0.5"));
  EXPECT_THAT(page, HasSubstr("seconds_total" + job + "phase=\"forward\",rank=\"3\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("seconds_total" + job + "phase=\"wait\",rank=\"3\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("seconds_total" + job + "phase=\"data\",rank=\"3\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("tercio_state_seconds_total" + job +
                              "part=\"taken\",rank=\"3\",what=\"gather\"} 5\n"));
  EXPECT_THAT(page, HasSubstr("tercio_state_seconds_total" + job +
                              "part=\"waited\",rank=\"3\",what=\"reduce\"} 0.75\n"));
  EXPECT_THAT(page, HasSubstr("tercio_communication_bytes_total{group=\"data\",job_id=\"j-1\","
                              "job_name=\"shakespeare\",rank=\"3\"} 4096\n"));
  EXPECT_THAT(page, HasSubstr("tercio_communication_bytes_total{group=\"world\",job_id=\"j-1\","
                              "job_name=\"shakespeare\",rank=\"3\"} 0\n"));
  EXPECT_THAT(page,
              HasSubstr("tercio_gpu_fallbacks_total" + job + "rank=\"3\",what=\"gelu\"} 2\n"));
  EXPECT_THAT(page,
              HasSubstr("tercio_gpu_fallbacks_total" + job + "rank=\"3\",what=\"attention\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("tercio_mfu_ratio{convention=\"causal\",job_id=\"j-1\","
                              "job_name=\"shakespeare\",rank=\"3\"} 0.3"));
  EXPECT_THAT(page, HasSubstr("tercio_rank_info{data=\"1\",device=\"5\",job_id=\"j-1\",job_name="
                              "\"shakespeare\",pipeline=\"1\",rank=\"3\",tensor=\"0\"} 1"));
  EXPECT_THAT(page, HasSubstr("tercio_agent_snapshot_bytes 2048"));
}

TEST(AgentMetrics, GaugesGoWithTheRankAndCountersAfterAWhile) {
  AgentMetricsOptions options;
  options.linger = absl::Milliseconds(200);
  const auto metrics = AgentMetrics::Serve("127.0.0.1:0", options);
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_THAT((*metrics)->Page(), HasSubstr("_exits_total{kind=\"fault\"} 0\n"));
  SayAll(**metrics);
  (*metrics)->Exited(kLabels, RankEnd::kFault);
  std::string page = (*metrics)->Page();
  EXPECT_THAT(page, HasSubstr(std::string("tercio_tokens_total") + kLabelText + " 256"));
  EXPECT_THAT(page, HasSubstr("_exits_total{kind=\"fault\"} 1\n"));
  for (const char* gone :
       {"tercio_loss{", "tercio_memory_bytes{", "tercio_load_seconds{", "tercio_rank_info{",
        "tercio_mfu_ratio{", "tercio_step{", "_send_seconds{"}) {
    EXPECT_THAT(page, Not(HasSubstr(gone)));
  }
  // The same rank of the next attempt goes on, and lives again.
  (*metrics)->Step(kLabels, MakeStep(), 1, 256);
  (*metrics)->Memory(kLabels, v1::TrainerMemory());
  page = (*metrics)->Page();
  // A count that fell would be taken for a restart of the agent, and what is left for new losses.
  EXPECT_THAT(page, HasSubstr(std::string("tercio_log_lines_lost_total") + kLabelText + " 13\n"));
  EXPECT_THAT(page, HasSubstr(std::string("tercio_tokens_total") + kLabelText + " 512"));
  EXPECT_THAT(page, HasSubstr("tercio_loss{"));
  (*metrics)->Exited(kLabels, RankEnd::kGood);
  do {
    page = (*metrics)->Page();
  } while (page.find("j-1") != std::string::npos);
  EXPECT_THAT(page, HasSubstr("_exits_total{kind=\"normal\"} 1\n"));
}

TEST(AgentMetrics, ManyRanksAreBounded) {
  AgentMetricsOptions options;
  options.linger = absl::Hours(1);
  const auto metrics = AgentMetrics::Serve("127.0.0.1:0", options);
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  RankLabels labels = kLabels;
  (*metrics)->Step(labels, MakeStep(), 1, 1);
  for (int i = 0; i < 3000; ++i) {
    labels.job_id = "job-" + std::to_string(i);
    (*metrics)->Step(labels, MakeStep(), 1, 1);
    (*metrics)->Exited(labels, RankEnd::kGood);
  }
  const std::string page = (*metrics)->Page();
  size_t series = 0;
  for (size_t at = page.find("\ntercio_steps_total{"); at != std::string::npos;
       at = page.find("\ntercio_steps_total{", at + 1)) {
    ++series;
  }
  EXPECT_EQ(series, 1024u);
  // The one that lives is there, and of the others the last.
  EXPECT_THAT(page, HasSubstr("tercio_loss{job_id=\"j-1\""));
  EXPECT_THAT(page, HasSubstr("job-2999"));
  EXPECT_THAT(page, Not(HasSubstr("\"job-0\"")));
}

TEST(AgentMetrics, SaysThatAnAddressIsInUse) {
  const auto first = AgentMetrics::Serve("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = AgentMetrics::Serve((*first)->address());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address()));
}

GpuReading FullReading() {
  GpuReading reading;
  reading.gpu = {1, "Fake GPU", "GPU-1", 1, ""};
  reading.xids = {{79, 1}};
  GpuSample& sample = reading.sample.emplace();
  sample.utilization_ratio = sample.memory_utilization_ratio = 0.5;
  sample.memory_total_bytes = sample.memory_used_bytes = 1;
  sample.power_watts = sample.power_limit_watts = sample.temperature_celsius = 1;
  sample.sm_clock_hertz = sample.sm_clock_limit_hertz = sample.memory_clock_hertz = 1;
  sample.clock_reasons = 0;
  sample.processes.emplace();
  sample.ecc_enabled = true;
  sample.ecc_corrected = sample.ecc_uncorrected = 1;
  sample.ecc_corrected_ever = sample.ecc_uncorrected_ever = 1;
  sample.remapped_rows_corrected = sample.remapped_rows_uncorrected = 1;
  sample.remap_failed = sample.retirement_pending = false;
  sample.pcie_generation = sample.pcie_lanes = sample.nvlinks = sample.nvlinks_active = 1;
  return reading;
}

TEST(AgentMetrics, AsksItsSourcesAtEachScrapeUntilTheyGo) {
  const auto metrics = AgentMetrics::Serve("127.0.0.1:0");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_THAT((*metrics)->Page(), Not(HasSubstr("tercio_gpu_")));
  std::atomic<int> asked = 0;
  AgentSources sources;
  sources.gpus = [&asked] {
    GpuReading reading = FullReading();
    reading.sample->power_watts = ++asked;
    return std::vector<GpuReading>{reading};
  };
  (*metrics)->Show(std::move(sources));
  const std::string line = "tercio_gpu_power_watts{gpu=\"1\",uuid=\"GPU-1\"} ";
  EXPECT_THAT((*metrics)->Page(), HasSubstr(line + "1\n"));
  EXPECT_THAT((*metrics)->Page(), HasSubstr(line + "2\n"));
  (*metrics)->Show({});
  EXPECT_THAT((*metrics)->Page(), Not(HasSubstr("tercio_gpu_")));
  EXPECT_EQ(asked, 2);
}

// What is in the table is exported by somebody: here, or by the coordinator.
TEST(AgentMetrics, EveryMetricOfTheTableIsOnThePage) {
  AgentMetricsOptions options;
  options.state_dir = "/";
  options.certificate = "common/metrics/testdata/certificate.pem";
  const auto metrics = AgentMetrics::Serve("127.0.0.1:0", options);
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  SayAll(**metrics);
  (*metrics)->Show({[] { return true; }, [] { return int64_t{5}; },
                    [] { return std::vector<GpuReading>{FullReading()}; }, "580.1"});
  const std::string page = (*metrics)->Page();
  for (const MetricSpec& spec : metric_table::kAll) {
    const std::string type = "# TYPE " + std::string(spec.name) + " ";
    if (spec.exporter != MetricExporter::kBoth && spec.exporter != MetricExporter::kAgent) {
      EXPECT_THAT(page, Not(HasSubstr(type)));
    } else {
      EXPECT_THAT(page, HasSubstr(type));
    }
  }
}

}  // namespace
}  // namespace tercio::agent
