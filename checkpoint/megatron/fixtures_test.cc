// Checkpoints that torch saved, with the code of Megatron-LM or in its layout: the logits are those
// of transformers after its own conversion, and those of megatron-core itself.
// tests/megatron/make_fixtures.py wrote the fixtures.
#include <string>

#include "absl/strings/str_cat.h"
#include "checkpoint/megatron/import.h"
#include "checkpoint/megatron/testing/megatron_files.h"
#include "checkpoint/megatron/weights.h"
#include "checkpoint/model_description.h"
#include "checkpoint/weight_source.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/huggingface/logits.h"

namespace tercio::checkpoint {
namespace {

using Json = nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;

std::string Fixture(const std::string& name) { return "tests/megatron/fixtures/" + name; }

double LogitError(const std::string& directory, const std::string& name) {
  return LogitErrorOf(directory, Json::parse(*ReadFile(Fixture(name) + ".json")));
}

TEST(MegatronFixtures, LogitsAreThoseOfTransformersInEveryVersion) {
  for (const char* name : {"gpt", "bert"}) {
    const auto first = OpenWeightSource(Fixture(name) + "_v0", DigestCheck::kNone);
    ASSERT_TRUE(first.ok()) << first.status();
    for (int version = 0; version <= 3; ++version) {
      const std::string directory = absl::StrCat(Fixture(name), "_v", version);
      const auto source = OpenWeightSource(directory, DigestCheck::kNone);
      ASSERT_TRUE(source.ok()) << source.status();
      EXPECT_EQ(ReadAllTensors(**source), ReadAllTensors(**first)) << directory;
      EXPECT_EQ((*source)->model().DebugString(), (*first)->model().DebugString()) << directory;
      EXPECT_LT(LogitError(directory, name), 1e-5) << directory;
    }
  }
}

TEST(MegatronFixtures, LogitsAreThoseOfMegatronCore) {
  for (const char* name : {"core_gpt", "core_bert", "core_llama"}) {
    EXPECT_LT(LogitError(Fixture(name), name), 1e-5) << name;
  }
}

TEST(MegatronFixtures, AnImportComputesTheSame) {
  const TempDir dir;
  for (const char* name : {"gpt_v3", "bert_v3", "core_llama"}) {
    const std::string path = absl::StrCat(dir.path(), "/", name);
    const auto imported = ImportMegatron(Fixture(name), path);
    ASSERT_TRUE(imported.ok()) << imported.status();
    const std::string expected = std::string(name).substr(0, std::string(name).find("_v"));
    EXPECT_LT(LogitError(path, expected), 1e-5) << name;
  }
}

TEST(MegatronFixtures, SizesComeFromTheArguments) {
  const auto llama = DescribeModel(Fixture("core_llama"));
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->architecture(), v1::ARCHITECTURE_LLAMA);
  EXPECT_EQ(llama->kv_heads(), 2);
  EXPECT_EQ(llama->rope_theta(), 5000);
  EXPECT_EQ(llama->vocab_size(), 19);
  EXPECT_TRUE(llama->untied_head());
  EXPECT_FALSE(llama->bias());
  const auto bert = DescribeModel(Fixture("bert_v0"));
  ASSERT_TRUE(bert.ok()) << bert.status();
  EXPECT_EQ(bert->architecture(), v1::ARCHITECTURE_BERT);
  EXPECT_EQ(bert->norm(), v1::NORM_PLACEMENT_PRE);
  EXPECT_EQ(bert->token_types(), 2);
  EXPECT_TRUE(bert->sentence_order());
  EXPECT_EQ(bert->norm_eps(), 1e-5);
}

// One is of 2019, with an object of a class in it, the other of 2023.
TEST(MegatronFixtures, OptimizerAndRandomNumbersArePassedOver) {
  for (const char* name : {"gpt_v0", "gpt_v3"}) {
    const auto model = MegatronModel::Open(Fixture(name));
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_THAT((*model)->NotesFor((*model)->model()), Contains(HasSubstr("optimizer"))) << name;
  }
}

}  // namespace
}  // namespace tercio::checkpoint
