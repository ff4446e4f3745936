// training.fp8 with the whole engine on emulated GPUs (cuda_ranks.h): near bf16, with equal bits
// however often it runs, and over every layout. Sizes are multiples of 16, but where a case says
// so.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "plan/names.h"
#include "tests/parity/cuda_ranks.h"
#include "worker/blocks/fp8_scaling.h"

namespace tercio::testing {
namespace {

v1::JobSpec Fp8(v1::JobSpec spec, const Layout& layout = {1, 1, 1}) {
  spec = With(In(std::move(spec), layout), v1::PRECISION_BF16);
  spec.mutable_model()->set_context(32);
  spec.mutable_training()->set_fp8(true);
  return spec;
}
v1::JobSpec WithoutFp8(v1::JobSpec spec) {
  spec.mutable_training()->set_fp8(false);
  return spec;
}

class Fp8Parity : public CudaParity {
 protected:
  Fp8Parity() : CudaParity(9) {}

  void ExpectNear(const RunResult& fp8, const RunResult& bf16) {
    ASSERT_EQ(fp8.steps.size(), bf16.steps.size());
    ASSERT_FALSE(fp8.steps.empty());
    for (size_t i = 0; i < bf16.steps.size(); ++i) {
      const double loss = std::abs(fp8.steps[i].loss / bf16.steps[i].loss - 1);
      const double norm = std::abs(fp8.steps[i].grad_norm / bf16.steps[i].grad_norm - 1);
      EXPECT_LT(loss, 0.01) << i;
      EXPECT_LT(norm, i == 0 ? 0.02 : 0.15) << i;  // then weights differ, too
      furthest_loss_ = std::max(furthest_loss_, loss);
      furthest_norm_ = std::max(furthest_norm_, norm);
    }
    EXPECT_NE(fp8.steps.front().loss, bf16.steps.front().loss);
    EXPECT_NEAR(fp8.validation_loss, bf16.validation_loss, 0.01 * bf16.validation_loss);
    EXPECT_TRUE(fp8.replicas.equal) << fp8.replicas.text;
    RecordProperty("furthest",
                   std::to_string(furthest_loss_) + ", norm " + std::to_string(furthest_norm_));
  }

 private:
  double furthest_loss_ = 0;  // from bf16, relative
  double furthest_norm_ = 0;
};

TEST_F(Fp8Parity, FollowsTheCurveOfBf16) {
  RunOptions options;
  options.steps = 8;
  for (const v1::JobSpec& given : {SmallJob(), SmallLlama(), SmallBert(kPost)}) {
    SCOPED_TRACE(plan::TextOf(given.model().architecture()));
    const v1::JobSpec spec = Fp8(given);
    ExpectNear(OnGpus(spec, options), OnGpus(WithoutFp8(spec), options));
  }
}

TEST_F(Fp8Parity, RepeatedAndResumedWithEqualBits) {
  ExpectEqualBits(Fp8(SmallJob(), {1, 2, 2}));
  v1::JobSpec llama = Fp8(WithoutDropout(SmallLlama()), {1, 1, 1, 1});  // 8 micro-batches
  llama.mutable_parallelism()->set_recompute(kSelective);
  ExpectEqualBits(llama);
}

// How many scales of the two runs are further apart than the tolerance.
int ScalesApart(const RunResult& one, const RunResult& many, float tolerance) {
  int apart = 0;
  for (int layer = 0; layer < 4; ++layer) {
    const std::vector<float>& a = one.state.at(blocks::Fp8Tensor(layer));
    const std::vector<float>& b = many.state.at(blocks::Fp8Tensor(layer));
    EXPECT_EQ(a.size(), static_cast<size_t>(plan::kFp8StateOfLayer));
    EXPECT_EQ(b.size(), a.size());
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      apart += std::abs(b[i] - a[i]) > tolerance * a[i];
      EXPECT_EQ(a[i] > 0, i % plan::kFp8History < 2) << layer << " " << i;
    }
  }
  return apart;
}

// One magnitude of each factor and step, of all ranks: so the layout has next to no part in them,
// and a job may resume in another one.
TEST_F(Fp8Parity, ScalesAreStateOfTheTraining) {
  RunOptions options;
  options.steps = 2;
  const v1::JobSpec job = SmallJob();
  const v1::JobSpec plain = WithoutDropout(job);
  EXPECT_EQ(ScalesApart(OnGpus(Fp8(plain), options), OnGpus(Fp8(plain, {2, 2, 2}), options), 0.1f),
            0);
  v1::JobSpec unequal = Fp8(plain, {1, 2, 1});
  for (const int layers : {1, 3}) unequal.mutable_parallelism()->add_stage_layers(layers);
  EXPECT_EQ(ScalesApart(OnGpus(Fp8(plain), options), OnGpus(unequal, options), 0.1f), 0);
  const RunResult many = OnGpus(Fp8(job, {2, 2, 2}), options);
  const RunResult one = OnGpus(Fp8(job), options);
  // With dropout a gradient's largest value, which has two bits of mantissa, once falls elsewhere.
  EXPECT_LE(ScalesApart(one, many, 0.1f), 1);
  EXPECT_EQ(ScalesApart(one, many, 0.5f), 0);
  RunOptions rest = options;
  rest.first_step = 3;
  rest.state = &many.state;
  RunOptions whole;
  whole.steps = 4;
  const RunResult straight = OnGpus(Fp8(job), whole);
  const RunResult moved = OnGpus(Fp8(job), rest);
  EXPECT_NEAR(moved.steps.back().loss, straight.steps.back().loss,
              0.01 * straight.steps.back().loss);
}

// A checkpoint of a bf16 job has no scales: they are made from the values themselves.
TEST_F(Fp8Parity, BeginsInTheMiddleOfABf16Run) {
  const v1::JobSpec spec = Fp8(SmallJob());
  RunOptions options;
  options.steps = 4;
  const RunResult bf16 = OnGpus(WithoutFp8(spec), options);
  EXPECT_FALSE(bf16.state.contains(blocks::Fp8Tensor(0)));
  options.first_step = 5;
  options.state = &bf16.state;
  ExpectNear(OnGpus(spec, options), OnGpus(WithoutFp8(spec), options));
}

TEST_F(Fp8Parity, CopiesOfSnapshotsHoldTheScales) {
  v1::JobSpec spec = Fp8(SmallJob(), {2, 1, 2});
  spec.mutable_checkpoint()->set_peer_copies(1);
  RunOptions all;
  all.steps = 4;
  const RunResult whole = OnGpus(spec, all);
  RunOptions half;
  half.steps = 2;
  const RunResult first = OnGpus(spec, half);
  RunOptions rest = half;
  rest.first_step = 3;
  rest.copies = &first.copies;
  EXPECT_EQ(OnGpus(spec, rest).state, whole.state);
}

TEST_F(Fp8Parity, LayoutsWithNccl) {
  v1::JobSpec overlapped = Fp8(SmallJob(), {2, 2, 2});
  overlapped.mutable_parallelism()->set_tensor_overlap(4);
  v1::JobSpec sequences = Fp8(SmallLlama(), {2, 2, 2});
  sequences.mutable_parallelism()->set_sequence_parallel(true);
  sequences.mutable_parallelism()->set_recompute(kFull);
  v1::JobSpec interleaved = Fp8(SmallJob(), {1, 2, 2, 1});
  interleaved.mutable_parallelism()->set_schedule(kInterleaved);
  interleaved.mutable_parallelism()->set_virtual_pipeline(2);
  RunOptions options;
  options.steps = 2;
  for (const v1::JobSpec& spec : {overlapped, sequences, interleaved}) {
    SCOPED_TRACE(spec.parallelism().ShortDebugString());
    emulation::SetStreamOrder(emulation::StreamOrder::kWaitedFirst, 1);
    const RunResult first = OnGpusWithNccl(spec, options);
    ExpectNear(first, OnGpusWithNccl(WithoutFp8(spec), options));
    emulation::SetStreamOrder(emulation::StreamOrder::kDrawn, 5);
    ExpectSameBits(OnGpusWithNccl(spec, options), first);
  }
}

TEST_F(Fp8Parity, ShapesOfProductsAreKnownBeforehand) {
  v1::JobSpec overlapped = Fp8(SmallLlama(), {2, 1, 1});
  overlapped.mutable_parallelism()->set_tensor_overlap(4);
  v1::JobSpec mixed = Fp8(SmallLlama(), {2, 1, 1});  // pieces of 21 and 22 rows stay in bf16
  mixed.mutable_parallelism()->set_tensor_overlap(3);
  v1::JobSpec none = Fp8(SmallJob(), {1, 1, 2, 1});
  none.mutable_model()->set_context(24);
  for (const v1::JobSpec& spec : {Fp8(SmallJob(), {2, 2, 2}), overlapped, mixed, none}) {
    ExpectShapesKnown(spec);
  }
}

// Values are rounded to 8 bits by the kernel that makes them, or by one of its own.
TEST_F(Fp8Parity, FusedKernelsHaveTheSameBits) {
  v1::JobSpec llama = Fp8(SmallLlama());
  llama.mutable_parallelism()->set_recompute(kFull);
  for (const v1::JobSpec& spec : {Fp8(SmallJob()), llama, Fp8(SmallBert(kPost))}) {
    SCOPED_TRACE(plan::TextOf(spec.model().architecture()));
    // Also the kernels of the third step, in which all scales are known.
    const auto train = [&](bool fuses, int64_t* kernels) {
      std::vector<int64_t> counts;
      RunOptions options;
      options.steps = 3;
      options.after_step = [&](int, int64_t) { counts.push_back(emulation::GetCounts().kernels); };
      device::CudaDeviceOptions device;
      device.fuses = fuses;
      const RunResult result = OnGpusOf(device, spec, options);
      *kernels = counts.at(2) - counts.at(1);
      return result;
    };
    int64_t fused = 0;
    int64_t apart = 0;
    const RunResult with = train(true, &fused);
    ExpectSameBits(with, train(false, &apart));
    EXPECT_LT(fused, apart);
    if (spec.model().architecture() != v1::ARCHITECTURE_GPT2) continue;
    // For each layer and micro-batch two norms with the sum before them, and four factors: the
    // inputs of three products, and the gradient of one.
    EXPECT_EQ(apart - fused, 4 * 4 * (2 + 4));
  }
}

// Graphs begin when all scales follow from earlier steps: the first step makes them itself.
TEST_F(Fp8Parity, GraphsHaveTheSameBits) {
  const v1::JobSpec spec = Fp8(WithoutDropout(SmallJob()), {1, 1, 1, 1});
  RunOptions options;
  options.steps = 6;
  const auto train = [&](bool graphs) {
    device::CudaDeviceOptions device;
    device.graphs = graphs;
    const int64_t before = emulation::GetCounts().graphs;
    const RunResult result = OnGpusOf(device, spec, options);
    EXPECT_EQ(emulation::GetCounts().graphs - before, graphs ? 3 : 0);
    return result;
  };
  const RunResult with = train(true);
  ExpectSameBits(with, train(false));
}

TEST_F(Fp8Parity, ProductsOfOtherSizesStayInBf16) {
  v1::JobSpec mixed = Fp8(SmallJob(), {1, 1, 2, 2});
  mixed.mutable_model()->set_context(24);
  mixed.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_EXACT);
  RunOptions options;
  options.steps = 4;
  ExpectNear(OnGpus(mixed, options), OnGpus(WithoutFp8(mixed), options));
  v1::JobSpec none = Fp8(SmallJob(), {1, 1, 1, 1});  // 24 rows
  none.mutable_model()->set_context(24);
  RunResult fp8 = OnGpus(none, options);
  const RunResult bf16 = OnGpus(WithoutFp8(none), options);
  for (int layer = 0; layer < 4; ++layer) fp8.state.erase(blocks::Fp8Tensor(layer));
  ExpectSameBits(fp8, bf16);
}

TEST_F(Fp8Parity, CpusRefuse) {
  const auto result = TrainWithThreads(Fp8(SmallJob()), {});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(result.status().message().find("training.fp8 needs resources.device: cuda"),
            std::string::npos)
      << result.status();
}

}  // namespace
}  // namespace tercio::testing
