// The page as Prometheus would fetch it.
#include "worker/agent/agent_metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
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

const RankLabels kLabels{"j-1", "shakespeare", 3};
constexpr char kLabelText[] = "{job_id=\"j-1\",job_name=\"shakespeare\",rank=\"3\"}";

TEST(AgentMetrics, ShowsARanksFigures) {
  const auto metrics = AgentMetrics::Serve("127.0.0.1:0");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  v1::TrainerStep step;
  step.set_step(7);
  step.set_step_seconds(0.25);
  step.set_tokens_per_second(1024);
  step.set_loss(3.5);
  step.set_grad_norm(0.5);
  (*metrics)->Step(kLabels, step, 2, 256);
  (*metrics)->Step(kLabels, step, 1, 256);
  step.mutable_record()->set_skipped(false);
  (*metrics)->Step(kLabels, step, 0, 0);
  for (int i = 0; i < 2; ++i) {
    step.mutable_record()->set_skipped(true);
    step.mutable_record()->set_spike(i == 0 ? "loss 9.1" : "");
    (*metrics)->Step(kLabels, step, 0, 0);
  }
  v1::TrainerMemory memory;
  memory.set_planned_bytes(4096);
  memory.set_resident_bytes(8192);
  (*metrics)->Memory(kLabels, memory);
  v1::CheckpointProgress progress;
  progress.set_bytes(100);
  progress.set_error("disk full");
  (*metrics)->Checkpoint(kLabels, progress);
  (*metrics)->Loaded(kLabels, "memory", 0.5);
  (*metrics)->SetSnapshotBytes(2048);
  const std::string page = Fetch((*metrics)->address());
  const std::string labels = kLabelText;
  EXPECT_THAT(page, HasSubstr("200 OK"));
  EXPECT_THAT(page, HasSubstr("tercio_tokens_total" + labels + " 512"));
  EXPECT_THAT(page, HasSubstr("tercio_steps_total" + labels + " 3"));
  EXPECT_THAT(page, HasSubstr("tercio_tokens_per_second" + labels + " 1024"));
  EXPECT_THAT(page, HasSubstr("tercio_skipped_steps_total{job_id=\"j-1\",job_name="
                              "\"shakespeare\"} 2"));
  EXPECT_THAT(page, HasSubstr("tercio_spikes_total{job_id=\"j-1\",job_name=\"shakespeare\"} 1"));
  EXPECT_THAT(page, HasSubstr("tercio_step_seconds" + labels + " 0.25"));
  EXPECT_THAT(page, HasSubstr("tercio_loss" + labels + " 3.5"));
  EXPECT_THAT(page, HasSubstr("tercio_grad_norm" + labels + " 0.5"));
  EXPECT_THAT(page, HasSubstr("tercio_checkpoint_failures_total" + labels + " 1"));
  EXPECT_THAT(page, HasSubstr("tercio_memory_bytes{job_id=\"j-1\",job_name=\"shakespeare\","
                              "kind=\"planned\",rank=\"3\"} 4096"));
  EXPECT_THAT(page, HasSubstr("kind=\"resident\",rank=\"3\"} 8192"));
  EXPECT_THAT(page, HasSubstr("rank=\"3\",source=\"memory\"} 0.5"));
  EXPECT_THAT(page, HasSubstr("tercio_agent_snapshot_bytes 2048"));
}

TEST(AgentMetrics, GaugesGoWithTheRankAndCountersStay) {
  const auto metrics = AgentMetrics::Serve("127.0.0.1:0");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  v1::TrainerStep step;
  step.set_loss(3.5);
  (*metrics)->Step(kLabels, step, 1, 256);
  (*metrics)->Memory(kLabels, {});
  (*metrics)->Loaded(kLabels, "disk", 1);
  (*metrics)->Exited(kLabels, /*fault=*/true);
  (*metrics)->Forget(kLabels);
  const std::string page = Fetch((*metrics)->address());
  EXPECT_THAT(page, Not(HasSubstr("tercio_loss{")));
  EXPECT_THAT(page, Not(HasSubstr("tercio_memory_bytes{")));
  EXPECT_THAT(page, Not(HasSubstr("tercio_load_seconds{")));
  EXPECT_THAT(page, HasSubstr(std::string("tercio_tokens_total") + kLabelText + " 256"));
  EXPECT_THAT(page, HasSubstr("kind=\"fault\"} 1"));
}

TEST(AgentMetrics, SaysThatAnAddressIsInUse) {
  const auto first = AgentMetrics::Serve("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = AgentMetrics::Serve((*first)->address());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address()));
}

TEST(AgentMetrics, ShowsGpusAsTheyAreAtEachScrape) {
  const auto metrics = AgentMetrics::Serve("127.0.0.1:0");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_THAT(Fetch((*metrics)->address()), Not(HasSubstr("tercio_gpu_")));
  GpuReading reading;
  reading.gpu = {1, "Fake GPU", "GPU-1", 1, ""};
  reading.sample.emplace();
  double watts = 100;
  (*metrics)->ShowGpus(
      [&] {
        reading.sample->power_watts = watts++;
        return std::vector<GpuReading>{reading};
      },
      "580.1");
  EXPECT_THAT(Fetch((*metrics)->address()),
              HasSubstr("tercio_gpu_power_watts{gpu=\"1\",uuid=\"GPU-1\"} 100\n"));
  const std::string page = Fetch((*metrics)->address());
  EXPECT_THAT(page, HasSubstr("tercio_gpu_power_watts{gpu=\"1\",uuid=\"GPU-1\"} 101\n"));
  EXPECT_THAT(page, HasSubstr("tercio_trainers 0\n"));
}

}  // namespace
}  // namespace tercio
