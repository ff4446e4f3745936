// The keys of objective distill.
#include <string>
#include <vector>

#include "config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/distillation.h"

namespace tercio::config {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr char kGood[] = R"(name: small
model: {architecture: llama, layers: 2, hidden: 32, heads: 4, context: 16}
data: {train: corpus.txt}
training:
  objective: distill
  distillation: {teacher: tests/huggingface/fixtures/gpt2}
  steps: 10
  global_batch: 8
  optimizer: {learning_rate: 1e-3}
)";

absl::StatusOr<v1::JobSpec> Parse(const std::string& text,
                                  const std::vector<std::string>& overrides = {}) {
  return ParseJobText(text, "job.yaml", ".", overrides);
}

std::string FaultOf(const std::vector<std::string>& overrides) {
  const auto spec = Parse(kGood, overrides);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

TEST(DistillationKeys, TheDirectorySaysWhatTheTeacherIs) {
  const auto spec = Parse(kGood);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const v1::DistillationSpec& distillation = spec->training().distillation();
  EXPECT_THAT(distillation.teacher(), EndsWith("tests/huggingface/fixtures/gpt2"));
  EXPECT_EQ(distillation.model().architecture(), v1::ARCHITECTURE_GPT2);
  EXPECT_EQ(distillation.model().vocab_size(), 40);
  EXPECT_EQ(distillation.temperature(), 1);
  EXPECT_EQ(distillation.weight(), 0.5);
  EXPECT_EQ(distillation.direction(), v1::DISTILLATION_DIRECTION_FORWARD);
  EXPECT_FALSE(spec->data().has_chat());
  // A model that is new gets the teacher's tokens, however few the data has.
  EXPECT_EQ(plan::VocabularyOf(*spec, 35), 40);
}

TEST(DistillationKeys, AreWrittenAndReadAgain) {
  const std::vector<std::vector<std::string>> all = {
      {},
      {"training.distillation.temperature=2.5", "training.distillation.weight=1",
       "training.distillation.direction=reverse"},
      {"training.distillation.stage_layers=[1, 1]", "parallelism.pipeline=2"},
      {"data.train=talks.jsonl", "data.template=chatml", "data.loss_on=all"},
      {"training.distillation.teacher=null", "training.distillation.logits=stored/logits",
       "training.distillation.top_k=64"}};
  for (const std::vector<std::string>& overrides : all) {
    const auto spec = Parse(kGood, overrides);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto again = Parse(EffectiveYaml(*spec));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->SerializeAsString(), spec->SerializeAsString());
  }
}

TEST(DistillationKeys, ConversationsAreLearntWhereTheirTemplateIsNamed) {
  const auto spec = Parse(kGood, {"data.train=talks.jsonl", "data.template=chatml"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->data().has_chat());
  EXPECT_THAT(FaultOf({"data.train=talks.jsonl", "data.loss_on=all"}),
              HasSubstr("distill where data.template is named"));
  EXPECT_THAT(FaultOf({"data.template=chatml"}), HasSubstr("learns from .jsonl files"));
}

TEST(DistillationKeys, FaultsNameTheirKey) {
  EXPECT_THAT(FaultOf({"training.objective=pretrain"}),
              HasSubstr("training.distillation: only training.objective: distill"));
  EXPECT_THAT(FaultOf({"training.distillation=null"}),
              HasSubstr("training.distillation.teacher: missing"));
  EXPECT_THAT(FaultOf({"training.distillation.logits=stored"}),
              HasSubstr("training.distillation.logits: conflicts with teacher"));
  EXPECT_THAT(FaultOf({"training.distillation.teacher=tests/nowhere"}),
              HasSubstr("training.distillation.teacher: "));
  EXPECT_THAT(FaultOf({"training.distillation.teacher=tests/huggingface/fixtures/bert"}),
              HasSubstr("gives no distribution over the next token"));
  EXPECT_THAT(FaultOf({"training.distillation.weight=0"}),
              HasSubstr("training.distillation.weight"));
  EXPECT_THAT(FaultOf({"training.distillation.temprature=2"}), HasSubstr("temperature"));
  EXPECT_THAT(FaultOf({"model.vocab_size=50"}), HasSubstr("has another vocabulary, of 40 tokens"));
  EXPECT_THAT(FaultOf({"model.context=64"}), HasSubstr("reads at most 16 tokens"));
  EXPECT_THAT(FaultOf({"training.label_smoothing=0.1"}), HasSubstr("training.label_smoothing"));
  EXPECT_THAT(FaultOf({"training.distillation.teacher=null", "training.distillation.logits=stored",
                       "training.distillation.direction=reverse"}),
              HasSubstr("reverse needs all logits"));
}

}  // namespace
}  // namespace tercio::config
