// The keys of objective distill that learn from stored logits.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/logits/header.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/distillation.h"

namespace tercio::config {
namespace {

using ::testing::HasSubstr;

constexpr char kStudent[] = R"(name: small
model: {architecture: llama, layers: 2, hidden: 32, heads: 4, context: 16}
data: {train: corpus.txt}
training:
  objective: distill
  distillation: {logits: logits, weight: 1}
  steps: 10
  global_batch: 8
  optimizer: {learning_rate: 1e-3}
)";

class StoredLogitsKeys : public ::testing::Test {
 protected:
  StoredLogitsKeys() {
    checkpoint::LogitsHeader header;
    header.subject = {.vocabulary = 40, .context = 16, .samples = {}};
    header.k = 9;
    EXPECT_TRUE(MakeDirectories(directory_.path() + "/logits").ok());
    EXPECT_TRUE(WriteFileDurably(absl::StrCat(directory_.path(), "/logits/logits.json"),
                                 checkpoint::LogitsHeaderJson(header))
                    .ok());
  }

  absl::StatusOr<v1::JobSpec> Parse(const std::vector<std::string>& overrides = {},
                                    const std::string& text = kStudent) {
    return ParseJobText(text, "job.yaml", directory_.path(), overrides);
  }
  std::string FaultOf(const std::vector<std::string>& overrides) {
    const auto spec = Parse(overrides);
    EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(spec.status().message());
  }

  const TempDir directory_;
};

TEST_F(StoredLogitsKeys, TheHeaderSaysWhatTheLogitsAre) {
  const auto spec = Parse();
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training().distillation().logits(), directory_.path() + "/logits");
  EXPECT_EQ(spec->training().distillation().top_k(), 9);
  EXPECT_EQ(plan::VocabularyOf(*spec, 35), 40);
  const auto again = Parse({}, EffectiveYaml(*spec));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->SerializeAsString(), spec->SerializeAsString());
}

TEST_F(StoredLogitsKeys, WhereOnlyNodesSeeTheDirectoryTheJobSaysHowMany) {
  const auto spec =
      Parse({"training.distillation.logits=elsewhere", "training.distillation.top_k=64"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training().distillation().top_k(), 64);
  EXPECT_THAT(FaultOf({"training.distillation.logits=elsewhere"}),
              HasSubstr("training.distillation.logits: "));
}

TEST_F(StoredLogitsKeys, WhatCannotBeIsAFault) {
  EXPECT_THAT(FaultOf({"training.distillation.top_k=8"}), HasSubstr("8, but the logits in "));
  EXPECT_THAT(FaultOf({"training.distillation.direction=reverse"}),
              HasSubstr("direction: reverse needs all logits of the teacher"));
  EXPECT_THAT(FaultOf({"training.distillation.logits=null",
                       "training.distillation.teacher=tests/huggingface/fixtures/gpt2",
                       "training.distillation.top_k=8"}),
              HasSubstr("only stored logits (logits) have it"));
  ASSERT_TRUE(WriteFileDurably(directory_.path() + "/logits/logits.json", "{}").ok());
  EXPECT_THAT(FaultOf({}), HasSubstr("logits/logits.json: it has no format"));
}

}  // namespace
}  // namespace tercio::config
