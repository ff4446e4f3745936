// The keys of objectives that learn preferences.
#include <string>
#include <vector>

#include "config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kGood[] = R"(name: small
model: {architecture: llama, layers: 2, hidden: 32, heads: 4, context: 16}
data: {train: pairs.jsonl, template: chatml}
training:
  objective: dpo
  steps: 10
  global_batch: 8
  optimizer: {learning_rate: 1e-3}
)";

absl::StatusOr<v1::JobSpec> Parse(const std::string& text,
                                  const std::vector<std::string>& overrides = {}) {
  return ParseJobText(text, "job.yaml", "/where", overrides);
}

std::string FaultOf(const std::vector<std::string>& overrides) {
  const auto spec = Parse(kGood, overrides);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

TEST(PreferenceKeys, DefaultsAreThoseOfTrl) {
  const auto dpo = Parse(kGood);
  ASSERT_TRUE(dpo.ok()) << dpo.status();
  EXPECT_EQ(dpo->training().objective(), v1::TRAINING_OBJECTIVE_DPO);
  EXPECT_EQ(dpo->training().preference().beta(), 0.1);
  EXPECT_EQ(dpo->training().preference().loss(), v1::PREFERENCE_LOSS_SIGMOID);
  EXPECT_EQ(dpo->training().preference().label_smoothing(), 0);
  EXPECT_EQ(dpo->data().chat().answers(), v1::ANSWER_FORM_PAIR);
  // Lanes hold whole pairs.
  EXPECT_EQ(dpo->training().lanes(), 4);
  const auto kto = Parse(kGood, {"training.objective=kto"});
  ASSERT_TRUE(kto.ok()) << kto.status();
  EXPECT_EQ(kto->training().preference().desirable_weight(), 1);
  EXPECT_EQ(kto->training().preference().undesirable_weight(), 1);
  EXPECT_EQ(kto->data().chat().answers(), v1::ANSWER_FORM_LABELLED);
  EXPECT_EQ(kto->training().lanes(), 8);
  const auto plain = Parse(kGood, {"training.objective=sft"});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->training().has_preference());
  EXPECT_EQ(plain->data().chat().answers(), v1::ANSWER_FORM_UNSPECIFIED);
}

TEST(PreferenceKeys, AreWrittenAndReadAgain) {
  const std::vector<std::vector<std::string>> all = {
      {"training.preference.beta=0.3", "training.preference.label_smoothing=0.1"},
      {"training.preference.loss=ipo", "training.lanes=2"},
      {"training.objective=orpo", "training.preference.beta=0.25"},
      {"training.objective=kto", "training.preference.desirable_weight=1.33",
       "training.preference.undesirable_weight=0.5"}};
  for (const std::vector<std::string>& changes : all) {
    const auto spec = Parse(kGood, changes);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto again = Parse(EffectiveYaml(*spec));
    ASSERT_TRUE(again.ok()) << again.status() << EffectiveYaml(*spec);
    EXPECT_EQ(spec->SerializeAsString(), again->SerializeAsString()) << EffectiveYaml(*spec);
  }
}

TEST(PreferenceKeys, Faults) {
  EXPECT_THAT(FaultOf({"training.global_batch=7"}),
              HasSubstr("training.global_batch: 7 is odd, and would cut a pair"));
  EXPECT_THAT(FaultOf({"training.micro_batch=1"}),
              HasSubstr("training.micro_batch: 1 is odd, and would cut a pair"));
  EXPECT_THAT(FaultOf({"training.lanes=8"}), HasSubstr("use at most 4"));
  EXPECT_THAT(FaultOf({"training.label_smoothing=0.1"}),
              AllOf(HasSubstr("training.label_smoothing: changes probabilities"),
                    HasSubstr("training.preference.label_smoothing")));
  EXPECT_THAT(FaultOf({"training.preference.label_smoothing=0.5"}),
              HasSubstr("training.preference.label_smoothing"));
  EXPECT_THAT(
      FaultOf({"training.preference.label_smoothing=0.1", "training.preference.loss=hinge"}),
      HasSubstr("only loss: sigmoid has it"));
  EXPECT_THAT(FaultOf({"training.preference.desirable_weight=1"}),
              HasSubstr("only training.objective: kto has it"));
  EXPECT_THAT(FaultOf({"training.objective=kto", "training.preference.loss=sigmoid"}),
              HasSubstr("only training.objective: dpo has it"));
  EXPECT_THAT(FaultOf({"training.objective=sft", "training.preference.beta=1"}),
              HasSubstr("training.preference: only training.objective: dpo, orpo and kto"));
  EXPECT_THAT(FaultOf({"training.preference.gamma=1"}), HasSubstr("training.preference.gamma"));
  EXPECT_THAT(FaultOf({"data.loss_on=all", "data.format=messages"}),
              AllOf(HasSubstr("data.loss_on: only training.objective: sft has a choice"),
                    HasSubstr("data.format: only training.objective: sft has a choice")));
  EXPECT_THAT(FaultOf({"data.train=a.txt"}),
              HasSubstr("training.objective: dpo learns from .jsonl files, a prompt"));
  EXPECT_THAT(FaultOf({"model.architecture=t5", "data.tokenizer=v"}),
              HasSubstr("training.objective: dpo needs a decoder"));
}

}  // namespace
}  // namespace tercio::config
