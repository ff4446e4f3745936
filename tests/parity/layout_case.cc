#include "tests/parity/layout_case.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "plan/names.h"

namespace tercio::testing {

std::string NameOf(const Case& c) {
  return "tensor " + std::to_string(c.tensor) + " pipeline " + std::to_string(c.pipeline) +
         " data " + std::to_string(c.data) + " micro_batch " + std::to_string(c.micro_batch) +
         " threads " + std::to_string(c.threads) + " " + plan::TextOf(c.schedule) + " " +
         std::to_string(c.virtual_pipeline) + " recompute " + plan::TextOf(c.recompute) +
         (c.sequence_parallel ? " sequence parallel" : "") + " zero stage " +
         std::to_string(c.zero_stage) + " shard " + std::to_string(c.shard) + " reshard " +
         std::to_string(c.reshard_after_forward) + " prefetch " + std::to_string(c.prefetch) +
         (c.stage_layers.empty() ? "" : " layers " + absl::StrJoin(c.stage_layers, "-"));
}

RunResult Train(v1::JobSpec spec, const Case& c, RunOptions options) {
  v1::ParallelismSpec* parallelism = spec.mutable_parallelism();
  parallelism->set_tensor(c.tensor);
  parallelism->set_pipeline(c.pipeline);
  parallelism->set_data(c.data);
  parallelism->set_schedule(c.schedule);
  parallelism->set_virtual_pipeline(c.virtual_pipeline);
  parallelism->set_recompute(c.recompute);
  parallelism->set_sequence_parallel(c.sequence_parallel);
  parallelism->set_zero_stage(c.zero_stage);
  parallelism->set_shard(c.shard);
  parallelism->set_reshard_after_forward(c.reshard_after_forward);
  parallelism->set_prefetch(c.prefetch);
  parallelism->mutable_stage_layers()->Assign(c.stage_layers.begin(), c.stage_layers.end());
  spec.mutable_resources()->set_ranks(c.tensor * c.pipeline * c.data);
  spec.mutable_training()->set_micro_batch(c.micro_batch);
  options.threads_per_rank = c.threads;
  options.evaluate = true;
  absl::StatusOr<RunResult> result = TrainWithThreads(spec, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : RunResult{};
}

void ExpectSameBits(const RunResult& expected, const RunResult& actual) {
  ASSERT_EQ(expected.steps.size(), actual.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_EQ(expected.steps[i].loss, actual.steps[i].loss) << "step " << i + 1;
    // Not finite in steps that fp16 has to skip.
    EXPECT_EQ(std::bit_cast<uint64_t>(expected.steps[i].grad_norm),
              std::bit_cast<uint64_t>(actual.steps[i].grad_norm))
        << "step " << i + 1;
  }
  EXPECT_EQ(expected.validation_loss, actual.validation_loss);
  ASSERT_EQ(expected.state.size(), actual.state.size());
  for (const auto& [name, values] : expected.state) {
    const std::vector<float>& other = actual.state.at(name);
    ASSERT_EQ(values.size(), other.size()) << name;
    EXPECT_EQ(std::memcmp(values.data(), other.data(), values.size() * sizeof(float)), 0) << name;
  }
}

void ExpectSameGrid(const v1::JobSpec& spec, const std::vector<Case>& cases) {
  const RunResult reference = Train(spec, cases.front());
  for (size_t i = 1; i < cases.size(); ++i) {
    SCOPED_TRACE(NameOf(cases[i]));
    ExpectSameBits(reference, Train(spec, cases[i]));
  }
}

}  // namespace tercio::testing
