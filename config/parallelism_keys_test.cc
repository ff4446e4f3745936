// The keys that say how the training state is divided, where it lies, and in which numbers it
// travels.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::config {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kJob[] = R"(
model: {architecture: gpt2, layers: 2, heads: 2, hidden: 32, context: 16}
data: {train: corpus.txt, tokenizer: bytes}
training: {steps: 10, global_batch: 8, optimizer: {learning_rate: 1e-3}}
)";

absl::StatusOr<v1::JobSpec> Parse(const std::vector<std::string>& changes) {
  return ParseJobText(kJob, "job", "/", changes);
}

std::string FaultOf(const std::vector<std::string>& changes) {
  return std::string(Parse(changes).status().message());
}

TEST(ParallelismKeys, HowTheStateIsDividedAndWhereItLies) {
  const auto plain = Parse({"parallelism={data: 4, zero_stage: 3}"});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->parallelism().shard(), 0);
  EXPECT_EQ(plain->parallelism().reshard_after_forward(), 0);
  EXPECT_EQ(plain->parallelism().prefetch(), 1);
  // Plans for a cluster may choose what is left out.
  EXPECT_EQ(plain->offload().optimizer(), v1::OFFLOAD_TIER_UNSPECIFIED);
  EXPECT_EQ(Parse({"offload.optimizer=none"})->offload().optimizer(), v1::OFFLOAD_TIER_NONE);
  for (const auto& [text, ranks] :
       {std::pair("true", 0), std::pair("false", 1), std::pair("2", 2)}) {
    const auto job = Parse({absl::StrCat("parallelism={data: 4, zero_stage: 3, shard: 4, "
                                         "prefetch: 0, reshard_after_forward: ",
                                         text, "}"),
                            "offload={optimizer: nvme}"});
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->parallelism().reshard_after_forward(), ranks);
    EXPECT_EQ(job->parallelism().prefetch(), 0);
    EXPECT_EQ(job->offload().optimizer(), v1::OFFLOAD_TIER_NVME);
    const auto again = ParseJobText(EffectiveYaml(*job), "job", "/", {});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->SerializeAsString(), job->SerializeAsString());
  }
  EXPECT_THAT(FaultOf({"parallelism={data: 4, shard: 1}"}), HasSubstr("parallelism.shard"));
  EXPECT_THAT(FaultOf({"parallelism={reshard_after_forward: 1}"}),
              HasSubstr("parallelism.reshard_after_forward"));
  EXPECT_THAT(FaultOf({"offload.optimizer=tape"}), HasSubstr("none, host, nvme"));
  EXPECT_THAT(FaultOf({"offload.gradients=host"}), HasSubstr("offload.gradients"));
}

TEST(ParallelismKeys, LayersOfStages) {
  const auto with = [](const std::string& parallelism) {
    return std::vector<std::string>{"model.layers=8", "parallelism={" + parallelism + "}"};
  };
  for (const char* text : {"pipeline: 3, stage_layers: [2, 4, 2]",
                           "pipeline: 2, virtual_pipeline: 2, stage_layers: [1, 3, 3, 1]"}) {
    const auto job = Parse(with(text));
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_GT(job->parallelism().stage_layers_size(), 2);
    const auto again = ParseJobText(EffectiveYaml(*job), "job", "/", {});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->SerializeAsString(), job->SerializeAsString());
  }
  EXPECT_THAT(EffectiveYaml(*Parse(with("pipeline: 3"))), Not(HasSubstr("stage_layers")));
  const auto fault = [&](const std::string& text) { return FaultOf(with(text)); };
  EXPECT_THAT(fault("pipeline: 4, stage_layers: [2, 4, 2]"),
              HasSubstr("parallelism.stage_layers: has 3 numbers, but pipeline 4 needs 4"));
  EXPECT_THAT(fault("pipeline: 2, virtual_pipeline: 2, stage_layers: [4, 4]"),
              HasSubstr("has 2 numbers, but pipeline 2 x virtual_pipeline 2 needs 4"));
  EXPECT_THAT(fault("pipeline: 3, stage_layers: [4, 4, 0]"),
              HasSubstr("parallelism.stage_layers: '0': expected whole numbers from 1 to "));
  EXPECT_THAT(fault("pipeline: 3, stage_layers: [10, -1, -1]"), HasSubstr("'-1': expected whole"));
  EXPECT_THAT(fault("pipeline: 3, stage_layers: [2.5, 4, 2]"), HasSubstr("'2.5': expected whole"));
  EXPECT_THAT(fault("pipeline: 3, stage_layers: [[1], 4, 2]"), HasSubstr("'...': expected whole"));
  EXPECT_THAT(fault("pipeline: 3, stage_layers: [2, 3, 2]"),
              HasSubstr("adds up to 7 layers, but the model has 8"));
  EXPECT_THAT(fault("stage_layers: [8]"), HasSubstr("needs pipeline: 2 or more"));
  EXPECT_THAT(fault("pipeline: 3, stage_layers: 8"), HasSubstr("expected a list of whole numbers"));
}

TEST(ParallelismKeys, HowMuchOfTheOptimizersStateLiesElsewhere) {
  for (const auto& [text, share] :
       {std::pair("0.5", 0.5), {"auto", 0.0}, {"0.1234567890123", 0.1234567890123}}) {
    const auto job = Parse({absl::StrCat("offload={optimizer: nvme, share: ", text, "}")});
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_TRUE(job->offload().has_share());
    EXPECT_EQ(job->offload().share(), share);
    EXPECT_THAT(EffectiveYaml(*job), HasSubstr(absl::StrCat("share: ", text, "}")));
    const auto again = ParseJobText(EffectiveYaml(*job), "job", "/", {});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->SerializeAsString(), job->SerializeAsString());
  }
  for (const char* all : {"1", "1.0"}) {
    const auto job = Parse({absl::StrCat("offload={optimizer: nvme, share: ", all, "}")});
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_FALSE(job->offload().has_share());
    EXPECT_EQ(job->SerializeAsString(), Parse({"offload={optimizer: nvme}"})->SerializeAsString());
  }
  for (const char* wrong : {"0", "-0.5", "1.1", "nan", "half", "[1]"}) {
    EXPECT_THAT(FaultOf({absl::StrCat("offload={optimizer: nvme, share: ", wrong, "}")}),
                HasSubstr("offload.share: expected auto, or a number above 0 and at most 1"))
        << wrong;
  }
}

TEST(ParallelismKeys, FormatsInWhichTheStateTravels) {
  const auto spec = Parse({"training.weight_format=int8", "training.gradient_format=int4"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training().weight_format(), v1::BLOCK_FORMAT_INT8);
  EXPECT_EQ(spec->training().gradient_format(), v1::BLOCK_FORMAT_INT4);
  EXPECT_THAT(EffectiveYaml(*spec), HasSubstr("weight_format: int8\n  gradient_format: int4\n"));
  EXPECT_EQ(Parse({})->training().weight_format(), v1::BLOCK_FORMAT_NONE);
  EXPECT_THAT(FaultOf({"training.weight_format=int4"}),
              HasSubstr("training.weight_format: int4 is for gradients only; use int8 or none"));
  EXPECT_THAT(FaultOf({"training.gradient_format=fp8"}), HasSubstr("training.gradient_format"));
}

}  // namespace
}  // namespace tercio::config
