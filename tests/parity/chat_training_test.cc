// The example deploy/examples/chat from its files to its curve, with ranks as threads: the job
// file, its conversations, and what is predicted of them.
#include <set>
#include <string>
#include <vector>

#include "common/temp_dir.h"
#include "config/job_file.h"
#include "data/prepared_data.h"
#include "data/sample_sources.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/epochs.h"
#include "tests/parity/layout_case.h"
#include "tests/parity/thread_ranks.h"

namespace tercio::testing {
namespace {

// The job as a coordinator has it, when its data is known.
v1::JobSpec Example(const std::vector<std::string>& changes, data::PreparedData* prepared) {
  auto spec = config::ParseJobFile("deploy/examples/chat/chat.yaml", changes);
  EXPECT_TRUE(spec.ok()) << spec.status();
  config::ResolveDevice(&*spec, config::AutoDevice::kCpu);
  TempDir cache;
  auto data = data::PrepareData(spec->data(), spec->model(), cache.path());
  EXPECT_TRUE(data.ok()) << data.status();
  *prepared = *std::move(data);
  spec->mutable_model()->set_vocab_size(prepared->vocab_size);
  plan::SetStepsOfEpochs(prepared->train_sample_count, spec->mutable_training());
  return *std::move(spec);
}

RunResult TrainExample(const std::vector<std::string>& changes, const Case& c, int64_t steps) {
  data::PreparedData prepared;
  const v1::JobSpec spec = Example(changes, &prepared);
  EXPECT_EQ(spec.training().steps(), 40);
  EXPECT_EQ(prepared.train_sample_count, 32);
  EXPECT_EQ(prepared.validation_sample_count, 4);
  const auto source = data::MakeSampleSource(std::move(prepared), spec);
  RunOptions options;
  options.source = source.get();
  options.steps = steps;
  return Train(spec, c, options);
}

constexpr Case kOneRank = {1, 1, 1, 8, 1, k1f1b};

TEST(ChatTraining, TheExampleIsLearnt) {
  const RunResult result = TrainExample({}, kOneRank, 40);
  ASSERT_EQ(result.steps.size(), 40);
  // Without training each of 256 bytes has about the same chance: 5.5 nats.
  EXPECT_NEAR(result.steps.front().loss, 5.55, 0.3);
  EXPECT_LT(result.steps.back().loss, 0.6 * result.steps.front().loss);
  EXPECT_LT(result.validation_loss, 0.7 * result.steps.front().loss);
}

TEST(ChatTraining, LayoutsHaveTheSameBits) {
  const RunResult one = TrainExample({}, kOneRank, 3);
  for (const Case& c : {Case{1, 2, 1, 2, 1, k1f1b}, Case{1, 1, 2, 4, 1, k1f1b}}) {
    SCOPED_TRACE(NameOf(c));
    ExpectSameBits(one, TrainExample({}, c, 3));
  }
}

TEST(ChatTraining, WhatCountsDecidesTheLoss) {
  std::set<double> losses;
  for (const char* loss_on : {"data.loss_on=assistant", "data.loss_on=all", "data.loss_on=last"}) {
    losses.insert(TrainExample({loss_on}, kOneRank, 1).steps.front().loss);
  }
  EXPECT_EQ(losses.size(), 3);
}

}  // namespace
}  // namespace tercio::testing
