#include "config/notices.h"

#include "config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::config {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kJob[] = R"(model: {layers: 2, hidden: 32, heads: 4, context: 16}
data: {train: corpus.txt}
training: {steps: 10, global_batch: 8, optimizer: {learning_rate: 1e-3}}
)";

std::vector<std::string> NoticesOf(const std::vector<std::string>& overrides) {
  const absl::StatusOr<v1::JobSpec> job = ParseJobText(kJob, "job.yaml", "/where", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  if (!job.ok()) return {};
  return KeysWithoutEffect(*job);
}

TEST(Notices, KeysThatCannotHaveAnEffectAreNamed) {
  EXPECT_THAT(NoticesOf({"parallelism={sequence_parallel: true}"}),
              ElementsAre("parallelism.sequence_parallel has no effect: parallelism.tensor is 1"));
  EXPECT_THAT(NoticesOf({"parallelism={tensor: 1, pipeline: 2, tensor_overlap: 4}"}),
              ElementsAre("parallelism.tensor_overlap has no effect: parallelism.tensor is 1"));
  EXPECT_THAT(NoticesOf({"parallelism={zero_stage: 1}"}),
              ElementsAre("parallelism.zero_stage has no effect: there is one data rank"));
  EXPECT_THAT(NoticesOf({"resources.cuda_graphs=false"}),
              ElementsAre("resources.cuda_graphs has no effect: resources.device is cpu"));
  EXPECT_THAT(NoticesOf({"checkpoint.snapshot=in_place", "resources.device=cuda"}),
              ElementsAre("checkpoint.snapshot has no effect: resources.device is cuda, whose "
                          "snapshots lie on the host"));
  EXPECT_THAT(NoticesOf({"training.lanes=2", "resources.device=cuda"}),
              ElementsAre("training.lanes has no effect: on GPUs sums have lanes only with "
                          "training.reproducibility: exact"));
  EXPECT_THAT(NoticesOf({"fault_tolerance.elastic_wait=1m"}),
              ElementsAre("fault_tolerance.elastic_wait has no effect: without "
                          "fault_tolerance.elastic_min_ranks the job waits for all of its ranks"));
  EXPECT_THAT(NoticesOf({"offload={share: auto}"}),
              ElementsAre("offload.share has no effect: offload.optimizer leaves the state where "
                          "it is"));
  EXPECT_THAT(NoticesOf({"offload={optimizer: host, share: 0.5}"}),
              ElementsAre("offload.optimizer has no effect: on CPUs host is the memory of the "
                          "ranks themselves",
                          "offload.share has no effect: offload.optimizer leaves the state where "
                          "it is"));
  EXPECT_THAT(
      NoticesOf({"training.evaluate={every_steps: 5, every_epochs: 1, batches: 2}"}),
      ElementsAre("training.evaluate.every_steps has no effect: there is no data.validation",
                  "training.evaluate.every_epochs has no effect: there is no data.validation",
                  "training.evaluate.batches has no effect: there is no data.validation"));
  EXPECT_EQ(NoticesOf({"fault_tolerance.elastic_wait=1m", "resources.cuda_graphs=false",
                       "parallelism={tensor_overlap: 2}"})
                .size(),
            3u);
}

TEST(Notices, KeysWithAnEffectAreNot) {
  EXPECT_THAT(NoticesOf({}), IsEmpty());
  EXPECT_THAT(NoticesOf({"parallelism={tensor: 2, sequence_parallel: true}"}), IsEmpty());
  EXPECT_THAT(NoticesOf({"parallelism={tensor: 2, tensor_overlap: 4}"}), IsEmpty());
  EXPECT_THAT(NoticesOf({"parallelism={data: 2, zero_stage: 1}"}), IsEmpty());
  EXPECT_THAT(NoticesOf({"parallelism={zero_stage: 1}", "resources.ranks=2"}), IsEmpty());
  EXPECT_THAT(NoticesOf({"training.evaluate={every_steps: 5, every_epochs: 1, batches: 2}",
                         "data.validation=0.1"}),
              IsEmpty());
  EXPECT_THAT(NoticesOf({"resources.cuda_graphs=false", "resources.device=cuda"}), IsEmpty());
  EXPECT_THAT(NoticesOf({"resources.cuda_graphs=false", "resources.device=auto"}), IsEmpty());
  EXPECT_THAT(NoticesOf({"checkpoint.snapshot=in_place"}), IsEmpty());
  EXPECT_THAT(NoticesOf({"offload={optimizer: nvme, share: 0.5}"}), IsEmpty());
  EXPECT_THAT(NoticesOf({"offload={optimizer: host, share: auto}", "resources.device=auto"}),
              IsEmpty());
  EXPECT_THAT(NoticesOf({"training.lanes=2"}), IsEmpty());
  EXPECT_THAT(
      NoticesOf({"training.lanes=2", "resources.device=cuda", "training.reproducibility=exact"}),
      IsEmpty());
  EXPECT_THAT(NoticesOf({"fault_tolerance.elastic_wait=1m", "fault_tolerance.elastic_min_ranks=1"}),
              IsEmpty());
}

TEST(Notices, DefaultsThatAreWrittenAreNot) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {}, {"parallelism={tensor: 1}"}, {"resources.device=cuda"}}) {
    const absl::StatusOr<v1::JobSpec> job = ParseJobText(kJob, "job.yaml", "/where", overrides);
    ASSERT_TRUE(job.ok()) << job.status();
    const absl::StatusOr<v1::JobSpec> complete =
        ParseJobText(EffectiveYaml(*job), "complete.yaml", "/where", {});
    ASSERT_TRUE(complete.ok()) << complete.status();
    EXPECT_THAT(KeysWithoutEffect(*complete), IsEmpty());
  }
}

}  // namespace
}  // namespace tercio::config
