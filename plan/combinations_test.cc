// Every pair of features is either a row of the table, and refused with its reason, or accepted.
#include "plan/combinations.h"

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/planner/planner.h"

namespace tercio::plan {
namespace {

constexpr char kJob[] = R"(
model: {preset: gpt2-124m, vocab_size: 512, context: 32}
data: {train: /data/train.txt, tokenizer: bytes}
training: {steps: 10, global_batch: 16, micro_batch: 1, precision: bf16,
           optimizer: {learning_rate: 1e-3}}
parallelism: {tensor: 2, data: 2, zero_stage: 1}
)";

// What a feature must have beside it to be there at all.
std::vector<std::string> ChangesFor(const Feature& feature) {
  std::vector<std::string> changes;
  const std::string name = feature.name;
  if (name == "training.tf32" || name == "training.fp8" || name == "resources.collectives: nccl") {
    changes.push_back("resources.device=cuda");
  }
  if (name == "offload.parameters") changes.push_back("parallelism.zero_stage=3");
  if (name == "model.base_format") changes.push_back("training.frozen=[layers.*.weight]");
  changes.push_back(feature.change);
  return changes;
}

absl::Status Judge(const std::vector<std::string>& changes) {
  absl::StatusOr<v1::JobSpec> job = config::ParseJobText(kJob, "job", "/", changes);
  if (!job.ok()) return job.status();
  config::ResolveDevice(&*job, config::AutoDevice::kCpu);
  return AdmitJob(*job, kUnknownMemoryBytes);
}

TEST(Combinations, EveryFeatureCanBeUsed) {
  for (const Feature& feature : Features()) {
    const absl::Status status = Judge(ChangesFor(feature));
    EXPECT_TRUE(status.ok()) << feature.name << ": " << status;
  }
}

TEST(Combinations, EveryPairIsARowOrAccepted) {
  int refused = 0;
  for (const Feature& one : Features()) {
    for (const Feature& other : Features()) {
      if (&one == &other) continue;
      std::vector<std::string> changes = ChangesFor(one);
      for (const std::string& change : ChangesFor(other)) changes.push_back(change);
      // The changes of the pair itself are the last ones.
      changes.push_back(one.change);
      changes.push_back(other.change);
      SCOPED_TRACE(absl::StrCat(one.name, " and ", other.name));
      const absl::Status status = Judge(changes);
      bool is_row = false;
      for (const Exclusion& row : Exclusions()) {
        is_row = is_row || absl::StrContains(std::string(status.message()), row.reason);
      }
      EXPECT_TRUE(status.ok() || is_row) << status;
      refused += is_row ? 1 : 0;
    }
  }
  EXPECT_GT(refused, static_cast<int>(Exclusions().size()));
}

TEST(Combinations, TheDocumentHasEveryRow) {
  std::ifstream file("docs/configuration.md");
  const std::string document((std::istreambuf_iterator<char>(file)),
                             std::istreambuf_iterator<char>());
  for (const Exclusion& row : Exclusions()) {
    EXPECT_THAT(document,
                ::testing::HasSubstr(absl::StrCat("| ", row.one->name, " | ", row.other->name,
                                                  " | `", row.key, "`: ", row.reason, " |")));
  }
}

}  // namespace
}  // namespace tercio::plan
