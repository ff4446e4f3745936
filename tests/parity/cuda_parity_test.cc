// The whole engine on emulated GPUs against the same engine on the CPU (cuda_ranks.h).
#include <cudnn.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "emulation/nvtx_control.h"
#include "plan/model_tensors.h"
#include "plan/names.h"
#include "plan/plan_builder.h"
#include "tests/parity/cuda_ranks.h"
#include "tests/parity/document_source.h"
#include "tests/parity/drawn_architecture.h"
#include "worker/engine/step_guard.h"

namespace tercio::testing {
namespace {

TEST_F(CudaParity, ModelsOnOneDevice) {
  for (const v1::JobSpec& spec : {SmallJob(), SmallLlama(), SmallBert(kPost), SmallBert(kPre),
                                  SmallClassifier(), SmallT5()}) {
    SCOPED_TRACE(plan::TextOf(spec.model().architecture()));
    const v1::JobSpec fp32 = With(In(spec, {1, 1, 1}), v1::PRECISION_FP32);
    ExpectClose(OnGpus(fp32), OnCpu(fp32), 1e-4);
  }
}

// Logits of classes come from the device, in 32 bits or 16.
TEST_F(CudaParity, ClassesOfSequences) {
  for (const v1::Precision precision :
       {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
    SCOPED_TRACE(plan::TextOf(precision));
    const v1::JobSpec spec = With(In(SmallClassifier(), {1, 2, 2, 1}), precision);
    RunOptions options;
    options.evaluate_test = true;
    options.steps = 2;
    const RunResult gpu = OnGpus(spec, options);
    const RunResult cpu = OnCpu(spec, options);
    EXPECT_GT(cpu.test.confusion().counts_size(), 0);
    EXPECT_EQ(gpu.test.confusion().SerializeAsString(), cpu.test.confusion().SerializeAsString());
    EXPECT_EQ(gpu.validation.confusion().SerializeAsString(),
              cpu.validation.confusion().SerializeAsString());
  }
}

// As tests/parity/memory_test.cc on the CPU. What libraries may use is a budget, not a buffer.
TEST_F(CudaParity, AllOfTheMemoryPlanIsUsed) {
  for (const v1::JobSpec& spec :
       {With(In(SmallJob(), {1, 1, 1}), v1::PRECISION_FP32),
        With(In(WithoutDropout(SmallLlama()), {2, 1, 1}), v1::PRECISION_BF16)}) {
    SCOPED_TRACE(spec.ShortDebugString());
    RunOptions options;
    const RunResult plain = OnGpusWithNccl(spec, options);
    options.fill_pattern = true;
    const RunResult filled = OnGpusWithNccl(spec, options);
    ExpectSameBits(filled, plain);
    for (auto [stage, buffers] : UseOfStages(filled)) {
      std::erase_if(buffers,
                    [](const engine::BufferUse& use) { return use.name == "workspace.device"; });
      EXPECT_EQ(engine::UnusedText(buffers), "") << "stage " << stage;
    }
  }
}

// Frozen weights have 16 bits on the device, in places and in shards: they are converted where they
// are loaded, saved, and digested, which a run checks.
TEST_F(CudaParity, FrozenWeightsOfSixteenBits) {
  v1::JobSpec spec = With(In(WithoutDropout(SmallLlama()), {1, 1, 2}), v1::PRECISION_BF16);
  spec.mutable_training()->set_lanes(8);
  spec.mutable_training()->set_micro_batch(1);
  spec.mutable_training()->add_frozen("embedding.*");
  spec.mutable_training()->add_frozen("layers.*.mlp.*");
  RunOptions options;
  options.steps = 0;
  const std::map<std::string, std::vector<float>> state = OnCpu(spec, options).state;
  options.steps = 3;
  options.state = &state;
  const RunResult cpu = OnCpu(spec, options);
  for (const int zero_stage : {0, 2, 3}) {
    SCOPED_TRACE(zero_stage);
    spec.mutable_parallelism()->set_zero_stage(zero_stage);
    const RunResult gpu = OnGpus(spec, options);
    ExpectClose(gpu, cpu, 1e-2);
    const char* const frozen = "layers.1.mlp.up.weight";
    EXPECT_EQ(gpu.state.at(frozen), state.at(frozen));
    EXPECT_TRUE(gpu.holds_what_it_loaded);
  }
}

// Codes are made on the host and read on the device, also while steps are launched as graphs; what
// is loaded, saved and dequantised has the bits of the CPU.
TEST_F(CudaParity, QuantizedWeights) {
  for (const v1::BaseFormat format : {v1::BASE_FORMAT_NF4, v1::BASE_FORMAT_INT8}) {
    SCOPED_TRACE(plan::TextOf(format));
    v1::JobSpec spec = With(In(WithoutDropout(SmallLlama()), {2, 1, 2, 1}), v1::PRECISION_BF16);
    spec.mutable_model()->set_hidden(128);
    spec.mutable_model()->set_ffn_hidden(256);
    spec.mutable_model()->set_base_format(format);
    spec.mutable_training()->add_frozen("layers.*.weight");
    RunOptions options;
    options.steps = 5;
    const RunResult cpu = OnCpu(spec, options);
    const RunResult gpu = OnGpus(spec, options);
    ExpectClose(gpu, cpu, 1e-2);
    int parts = 0;
    for (const auto& [name, values] : cpu.state) {
      if (name.rfind(plan::kBasePrefix, 0) != 0) continue;
      const std::vector<float>& other = gpu.state.at(name);
      ASSERT_EQ(values.size(), other.size()) << name;
      EXPECT_EQ(std::memcmp(values.data(), other.data(), values.size() * sizeof(float)), 0) << name;
      ++parts;
    }
    EXPECT_EQ(parts, 3 * 4 * 7);
    // Resumed from what the device had.
    RunOptions more;
    more.state = &gpu.state;
    more.first_step = 6;
    more.steps = 1;
    EXPECT_NEAR(OnGpus(spec, more).steps.at(0).loss / OnCpu(spec, more).steps.at(0).loss, 1, 1e-2);
  }
}

// No memory of the device is allocated, nor given back, once steps run.
v1::JobSpec WithAdapters(v1::JobSpec spec, v1::AdapterKind kind, double dropout) {
  v1::AdapterSpec* adapter = spec.mutable_model()->mutable_adapter();
  adapter->set_kind(kind);
  adapter->set_rank(8);
  adapter->set_alpha(16);
  adapter->set_dropout(dropout);
  adapter->add_targets("all-linear");
  return spec;
}

TEST_F(CudaParity, Adapters) {
  for (const v1::JobSpec& job : {SmallJob(), SmallLlama(), SmallT5()}) {
    SCOPED_TRACE(plan::TextOf(job.model().architecture()));
    for (const Layout& layout : {Layout{1, 1, 1}, Layout{2, 1, 1}}) {
      const v1::JobSpec whole =
          With(In(WithAdapters(job, v1::ADAPTER_KIND_LORA, 0.1), layout), v1::PRECISION_FP32);
      ExpectClose(OnGpus(whole), OnCpu(whole), 1e-4);
    }
    const v1::JobSpec scaled =
        With(In(WithAdapters(job, v1::ADAPTER_KIND_IA3, 0), {1, 1, 1}), v1::PRECISION_FP32);
    ExpectClose(OnGpus(scaled), OnCpu(scaled), 1e-4);
    const v1::JobSpec half =
        With(In(WithAdapters(job, v1::ADAPTER_KIND_LORA, 0), {1, 1, 1}), v1::PRECISION_BF16);
    const double expected = OnCpu(half).steps.back().loss;
    EXPECT_NEAR(OnGpus(half).steps.back().loss, expected, 1e-2 * expected);
  }
  ExpectShapesKnown(With(In(WithAdapters(SmallLlama(), v1::ADAPTER_KIND_LORA, 0), {2, 1, 1}),
                         v1::PRECISION_BF16));
  ExpectShapesKnown(WithoutDropout(
      With(In(WithAdapters(SmallJob(), v1::ADAPTER_KIND_LORA, 0), {1, 2, 1}), v1::PRECISION_BF16)));
}

TEST_F(CudaParity, AStepTakesNoMemoryOfTheDevice) {
  const v1::JobSpec spec = With(In(WithoutDropout(SmallLlama()), {1, 1, 1}), v1::PRECISION_BF16);
  const auto device = device::CreateCudaDevice(0);
  ASSERT_TRUE(device.ok()) << device.status();
  std::vector<int64_t> in_use;
  RunOptions options;
  options.steps = 6;
  options.after_step = [&](int, int64_t) { in_use.push_back((*device)->BytesInUse().value()); };
  OnGpus(spec, options);
  ASSERT_EQ(in_use.size(), 6u);
  EXPECT_GT(in_use.front(), 0);
  for (const int64_t bytes : in_use) EXPECT_EQ(bytes, in_use.front());
}

TEST_F(CudaParity, PrecisionsOfSixteenBits) {
  for (const v1::Precision precision : {v1::PRECISION_BF16, v1::PRECISION_FP16}) {
    SCOPED_TRACE(plan::TextOf(precision));
    const v1::JobSpec spec = WithoutDropout(With(In(SmallLlama(), {1, 1, 1}), precision));
    // A loss scale at which nothing overflows; without one fp16 would skip all of these steps.
    RunOptions options;
    options.steps = 0;
    std::map<std::string, std::vector<float>> state = OnCpu(spec, options).state;
    if (spec.training().precision() == v1::PRECISION_FP16)
      state[engine::kGuardTensor] = {65536, 0, 2, 0, 0};
    options.steps = 3;
    options.state = &state;
    const RunResult cpu = OnCpu(spec, options);
    EXPECT_FALSE(cpu.steps.back().skipped);
    // With attention by cuDNN, and by our own kernel.
    emulation::ConfigureCudnn({});
    const RunResult library = OnGpus(spec, options);
    EXPECT_GT(emulation::GetCudnnCounts().executions, 0);
    ExpectClose(library, cpu, 1e-2);
    emulation::ConfigureCudnn({.present = false});
    const RunResult own = OnGpus(spec, options);
    emulation::ConfigureCudnn({});
    ExpectClose(own, cpu, 1e-2);
    EXPECT_NE(own.steps.back().loss, library.steps.back().loss);
  }
}

// The library's attention has the CPU's dropout masks and padding.
TEST_F(CudaParity, DropoutAndPaddingByTheLibrary) {
  for (const v1::JobSpec& given :
       {SmallJob(), SmallBert(kPost), WithoutDropout(SmallBert(kPre)), SmallClassifier()}) {
    const v1::JobSpec spec = With(In(given, {1, 1, 1}), v1::PRECISION_BF16);
    SCOPED_TRACE(spec.model().ShortDebugString());
    emulation::ConfigureCudnn({});
    const RunResult library = OnGpus(spec);
    EXPECT_GT(emulation::GetCudnnCounts().executions, 0);
    ExpectClose(library, OnCpu(spec), 1e-2);
    emulation::ConfigureCudnn({.present = false});
    const RunResult own = OnGpus(spec);
    emulation::ConfigureCudnn({});
    EXPECT_NE(own.steps.back().loss, library.steps.back().loss);
  }
}

// Documents that share sequences have positions of their own, and attention by our own kernel.
TEST_F(CudaParity, PackedDocuments) {
  v1::JobSpec windows = SmallLlama();
  windows.mutable_model()->set_sliding_window(5);
  for (const v1::JobSpec& given : {SmallJob(), SmallLlama(), windows}) {
    SCOPED_TRACE(given.model().ShortDebugString());
    DocumentSource source(given.model(), Places::kPacked);
    RunOptions options;
    options.source = &source;
    const v1::JobSpec one = With(In(Packed(given), {1, 1, 1}), v1::PRECISION_FP32);
    const RunResult cpu = OnCpu(one, options);
    ExpectClose(OnGpus(one, options), cpu, 1e-4);
    ExpectClose(OnGpus(With(In(Packed(given), {2, 2, 2}), v1::PRECISION_FP32), options), cpu, 1e-4);
    const v1::JobSpec half = With(one, v1::PRECISION_BF16);
    emulation::ConfigureCudnn({});
    ExpectClose(OnGpus(half, options), OnCpu(half, options), 1e-2);
    EXPECT_EQ(emulation::GetCudnnCounts().executions, 0);
  }
}

TEST_F(CudaParity, Layouts) {
  for (const Layout& layout :
       {Layout{2, 1, 1}, Layout{1, 2, 1}, Layout{1, 1, 2}, Layout{2, 2, 2}}) {
    SCOPED_TRACE(std::to_string(layout.tensor) + "x" + std::to_string(layout.pipeline) + "x" +
                 std::to_string(layout.data));
    const v1::JobSpec spec = With(In(SmallJob(), layout), v1::PRECISION_FP32);
    ExpectClose(OnGpus(spec), OnCpu(spec), 1e-4);
  }
  v1::JobSpec unequal = With(In(SmallJob(), {1, 2, 2}), v1::PRECISION_FP32);
  for (const int layers : {1, 3}) unequal.mutable_parallelism()->add_stage_layers(layers);
  ExpectClose(OnGpus(unequal), OnCpu(unequal), 1e-4);
  v1::JobSpec spec = With(In(SmallJob(), {2, 2, 2}), v1::PRECISION_BF16);
  spec.mutable_parallelism()->set_sequence_parallel(true);
  spec.mutable_parallelism()->set_recompute(kSelective);
  ExpectClose(OnGpus(spec), OnCpu(spec), 1e-2);
}

// Over NCCL our own order of sums is the same in every run. Over the host the bits are those of
// ranks that have all of the state, unless micro-batches are summed in rounds.
TEST_F(CudaParity, ADividedState) {
  const auto check = [&](const v1::JobSpec& whole, const std::vector<int>& stages, double bound) {
    const RunResult reference = OnGpus(whole);
    for (const int stage : stages) {
      SCOPED_TRACE(stage);
      v1::JobSpec divided = whole;
      divided.mutable_parallelism()->set_zero_stage(stage);
      const RunResult over_host = OnGpus(divided);
      ExpectClose(over_host, reference, bound);
      if (stage == 1) {
        EXPECT_EQ(over_host.state, reference.state);
      }
      const RunResult over_nccl = OnGpusWithNccl(divided);
      ExpectClose(over_nccl, reference, bound);
      EXPECT_EQ(over_nccl.state, OnGpusWithNccl(divided).state);
    }
  };
  check(With(In(SmallJob(), {1, 2, 2}), v1::PRECISION_FP32), {1, 2, 3}, 1e-4);
  check(With(In(WithoutDropout(SmallLlama()), {1, 1, 2}), v1::PRECISION_BF16), {3}, 1e-2);
  check(With(In(SmallT5(), {1, 1, 2}), v1::PRECISION_BF16), {1, 3}, 1e-2);
  v1::JobSpec groups = With(In(SmallJob(), {1, 1, 4}), v1::PRECISION_BF16);
  groups.mutable_parallelism()->set_shard(2);
  check(groups, {3}, 1e-2);
  v1::JobSpec kept = With(In(SmallJob(), {1, 1, 4}), v1::PRECISION_BF16);
  kept.mutable_parallelism()->set_reshard_after_forward(2);
  kept.mutable_parallelism()->set_prefetch(2);
  check(kept, {3}, 1e-2);
}

// Weights and gradients in blocks: with one order of sums every stage has the bits of ranks that
// have all of the state, and over NCCL every run those of the other.
TEST_F(CudaParity, BlockFormats) {
  v1::JobSpec spec = With(In(SmallJob(), {1, 1, 2}), v1::PRECISION_BF16);
  spec.mutable_training()->set_weight_format(v1::BLOCK_FORMAT_INT8);
  spec.mutable_training()->set_gradient_format(v1::BLOCK_FORMAT_INT4);
  v1::JobSpec exact = spec;
  exact.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_EXACT);
  exact.mutable_training()->set_lanes(4);
  const RunResult whole = OnGpus(exact);
  ExpectClose(whole, OnCpu(exact), 1e-2);
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    exact.mutable_parallelism()->set_zero_stage(stage);
    EXPECT_EQ(OnGpus(exact).state, whole.state);
  }
  for (const int stage : {0, 2, 3}) {
    SCOPED_TRACE(stage);
    spec.mutable_parallelism()->set_zero_stage(stage);
    const RunResult over_nccl = OnGpusWithNccl(spec);
    ExpectClose(over_nccl, whole, 2e-2);
    EXPECT_EQ(over_nccl.state, OnGpusWithNccl(spec).state);
  }
}

// State in pinned memory of the host has the bits of state in the GPU's own: the same kernels read
// and write it.
TEST_F(CudaParity, StateOnTheHost) {
  const auto check = [&](v1::JobSpec spec, int stage, bool parameters) {
    spec.mutable_parallelism()->set_zero_stage(stage);
    const RunResult on_gpus = OnGpus(spec);
    spec.mutable_offload()->set_optimizer(v1::OFFLOAD_TIER_HOST);
    if (parameters) spec.mutable_offload()->set_parameters(v1::OFFLOAD_TIER_HOST);
    const RunResult on_host = OnGpus(spec);
    EXPECT_EQ(on_host.steps.back().loss, on_gpus.steps.back().loss);
    EXPECT_EQ(on_host.state, on_gpus.state);
    spec.mutable_offload()->set_share(0.5);
    EXPECT_EQ(OnGpus(spec).state, on_gpus.state);
  };
  check(With(In(SmallJob(), {1, 1, 1}), v1::PRECISION_BF16), 0, false);
  check(With(In(SmallLlama(), {1, 1, 2}), v1::PRECISION_BF16), 2, false);
  check(With(In(SmallJob(), {1, 1, 2}), v1::PRECISION_FP32), 3, true);
  check(With(In(SmallJob(), {1, 1, 1}), v1::PRECISION_BF16), 3, true);
}

// What NVIDIA's profilers show of steps: ranges that nest, and end.
TEST_F(CudaParity, ProfilersSeeRangesOfAStep) {
  v1::JobSpec spec = With(In(WithoutDropout(SmallJob()), {1, 1, 1}), v1::PRECISION_BF16);
  spec.mutable_training()->set_global_batch(4);  // two micro-batches
  RunOptions options;
  options.steps = 4;
  emulation::RecordRanges(true);
  OnGpus(spec, options);
  const std::vector<std::string> ranges = emulation::TakeRanges();
  emulation::RecordRanges(false);
  const std::vector<std::string> first = {
      "step 1",       "  wait activation 0",  "  forward 0",  "  wait gradient 0",
      "  backward 0", "  wait activation 1",  "  forward 1",  "  wait gradient 1",
      "  backward 1", "  finish reduction 0", "  optimizer 0"};
  ASSERT_GT(ranges.size(), first.size());
  EXPECT_EQ(std::vector<std::string>(ranges.begin(), ranges.begin() + 11), first);
  // The last step is a graph, which shows nothing of what is in it. An evaluation follows.
  const auto last = std::find(ranges.begin(), ranges.end(), "step 4");
  ASSERT_GT(ranges.end() - last, 6);
  EXPECT_EQ(std::vector<std::string>(last, last + 6),
            (std::vector<std::string>{"step 4", "  forward and backward 4", "  finish reduction 0",
                                      "  optimizer 0", "wait activation 0", "forward 0"}));
}

// With several data ranks the sums are in the backward pass.
TEST_F(CudaParity, ProfilersSeeSumsInTheBackwardPass) {
  const v1::JobSpec spec = With(In(SmallJob(), {1, 1, 2}), v1::PRECISION_FP32);
  RunOptions options;
  options.steps = 1;
  emulation::RecordRanges(true);
  OnGpus(spec, options);
  const std::vector<std::string> ranges = emulation::TakeRanges();
  emulation::RecordRanges(false);
  const auto sums = std::count_if(ranges.begin(), ranges.end(), [](const std::string& line) {
    return line.rfind("    reduce ", 0) == 0;
  });
  EXPECT_EQ(sums, 2 * (spec.model().layers() + 2));
  for (const std::string& line : ranges) EXPECT_EQ(line.find("without"), std::string::npos) << line;
}

// With one stage data ranks exchange the gradient of a tied table once, unless sums have an order.
TEST_F(CudaParity, TiedGradientsAreReducedOnce) {
  const v1::JobSpec spec = With(In(SmallJob(), {1, 1, 2}), v1::PRECISION_FP32);
  v1::JobSpec exact = spec;
  exact.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_EXACT);
  constexpr int64_t kFloat = 4;
  const v1::Layout layout = *plan::LayoutOfJob(spec);
  const int64_t all = plan::TensorsOfStage(spec.model(), layout, 0).gradient_elements;
  const int64_t table =
      plan::PaddedVocabulary(spec.model().vocab_size(), 1) * spec.model().hidden();
  const RunOptions options;
  const RunResult once = OnGpus(spec);
  const RunResult twice = OnGpus(exact);
  EXPECT_EQ(once.sent.at(1).data(), options.steps * (all - table) * kFloat);
  EXPECT_EQ(twice.sent.at(1).data(), options.steps * all * kFloat);
  ExpectClose(once, OnCpu(spec), 1e-4);
  ExpectClose(once, twice, 1e-4);
  ExpectClose(OnGpusWithNccl(spec), twice, 1e-4);
}

TEST_F(CudaParity, RepeatedAndResumedWithEqualBits) {
  const v1::JobSpec dropping = With(In(SmallJob(), {1, 2, 2}), v1::PRECISION_BF16);
  for (const v1::JobSpec& spec : {dropping, WithoutDropout(dropping)}) {
    SCOPED_TRACE(spec.model().dropout());
    ExpectEqualBits(spec);
  }
}

TEST_F(CudaParity, ShapesOfProductsAreKnownBeforehand) {
  v1::JobSpec wide = With(In(SmallJob(), {2, 2, 2}), v1::PRECISION_BF16);
  wide.mutable_parallelism()->set_sequence_parallel(true);
  v1::JobSpec overlapped = With(In(SmallLlama(), {2, 1, 1}), v1::PRECISION_BF16);
  overlapped.mutable_parallelism()->set_tensor_overlap(3);
  v1::JobSpec exact = With(In(SmallJob(), {1, 1, 2, 1}), v1::PRECISION_FP32);
  exact.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_EXACT);
  v1::JobSpec lanes = With(In(SmallJob(), {1, 1, 1, 4}), v1::PRECISION_BF16);
  lanes.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_EXACT);
  for (const v1::JobSpec& given :
       {wide, lanes, overlapped, exact, With(In(SmallLlama(), {1, 2, 1}), v1::PRECISION_BF16),
        With(In(SmallJob(), {1, 1, 1, 4}), v1::PRECISION_FP16)}) {
    ExpectShapesKnown(given);
  }
}

// A random list of units: every kind of block, norm and branch in some combination.
v1::JobSpec DrawnJob(uint64_t seed) {
  v1::JobSpec spec = SmallLlama();
  WithSeed(seed, spec.mutable_model());
  spec.mutable_model()->set_rotary_dim(4);
  spec.mutable_model()->set_dropout(seed % 2 == 0 ? 0.1 : 0.0);
  return spec;
}

TEST_F(CudaParity, RandomListsOfUnits) {
  const model::ScopedArchitecture drawn(DrawnArchitecture());
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Layout layout = seed % 3 == 0 ? Layout{2, 1, 1} : Layout{1, 1, 1};
    const v1::JobSpec spec = In(DrawnJob(seed), layout);
    const v1::JobSpec whole = With(spec, v1::PRECISION_FP32);
    ExpectClose(OnGpus(whole), OnCpu(whole), 1e-4);
    // Without norms a model makes much of the rounding of 16 bits, more with every update.
    const v1::JobSpec half = With(spec, v1::PRECISION_BF16);
    const double expected = OnCpu(half).steps.front().loss;
    EXPECT_NEAR(OnGpus(half).steps.front().loss, expected, 1e-2 * expected);
    ExpectShapesKnown(WithoutDropout(half));
  }
}

// What is recorded in the third step and launched from then on is what is enqueued else.
TEST_F(CudaParity, GraphsHaveTheSameBits) {
  for (const Layout& layout : {Layout{1, 1, 1, 1}, Layout{1, 1, 2, 1}}) {
    v1::JobSpec spec = With(In(SmallJob(), layout), v1::PRECISION_BF16);
    spec.mutable_model()->set_dropout(0);
    RunOptions options;
    options.steps = 5;
    const auto train = [&](bool graphs) {
      device::CudaDeviceOptions device;
      device.graphs = graphs;
      const int64_t before = emulation::GetCounts().graphs;
      const RunResult result = OnGpusOf(device, spec, options);
      EXPECT_EQ(emulation::GetCounts().graphs - before, graphs ? 3 * layout.data : 0);
      return result;
    };
    const RunResult with = train(true);
    ExpectSameBits(with, train(false));
  }
  // Dropout differs from step to step.
  RunOptions options;
  options.steps = 4;
  const int64_t before = emulation::GetCounts().graphs;
  OnGpus(With(In(SmallJob(), {1, 1, 1}), v1::PRECISION_BF16), options);
  EXPECT_EQ(emulation::GetCounts().graphs, before);
}

// Bits that a job on CPUs relies on are no promise of this backend.
TEST_F(CudaParity, AJobOfCpusIsRefused) {
  const Machine machine = {
      OpenDevice,
      [](int, int, device::Device&) -> absl::StatusOr<std::unique_ptr<Machine::Groups>> {
        return std::make_unique<HostStagedGroups>();
      }};
  RunOptions options;
  options.machine = &machine;
  const auto result =
      TrainWithThreads(With(In(SmallJob(), {1, 1, 1}), v1::PRECISION_FP32), options);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition) << result.status();
  EXPECT_NE(result.status().message().find("sums over rows in one order"), std::string::npos)
      << result.status();
}

// NCCL sums in another order than the CPU, but always in the same one.
TEST_F(CudaParity, LayoutsWithNccl) {
  v1::JobSpec plain = With(In(SmallJob(), {2, 2, 2}), v1::PRECISION_FP32);
  v1::JobSpec overlapped = With(In(SmallJob(), {2, 2, 2}), v1::PRECISION_BF16);
  overlapped.mutable_parallelism()->set_tensor_overlap(3);
  v1::JobSpec sequences = With(In(SmallJob(), {2, 2, 2}), v1::PRECISION_BF16);
  sequences.mutable_parallelism()->set_sequence_parallel(true);
  sequences.mutable_parallelism()->set_recompute(kSelective);
  v1::JobSpec interleaved = With(In(SmallJob(), {1, 2, 2, 1}), v1::PRECISION_FP32);
  interleaved.mutable_parallelism()->set_schedule(kInterleaved);
  interleaved.mutable_parallelism()->set_virtual_pipeline(2);
  v1::JobSpec deep = With(In(SmallJob(), {1, 4, 1, 1}), v1::PRECISION_FP32);
  struct Case {
    const v1::JobSpec& spec;
    bool repeat;
  };
  for (const auto& [spec, repeat] :
       {Case{plain, false}, Case{overlapped, true}, Case{sequences, true}, Case{interleaved, true},
        Case{deep, false}}) {
    SCOPED_TRACE(spec.parallelism().ShortDebugString() + " " +
                 plan::TextOf(spec.training().precision()));
    emulation::SetStreamOrder(emulation::StreamOrder::kWaitedFirst, 1);
    const RunResult first = OnGpusWithNccl(spec);
    ExpectClose(first, OnCpu(spec),
                spec.training().precision() == v1::PRECISION_FP32 ? 1e-4 : 1e-2);
    if (!repeat) continue;
    emulation::SetStreamOrder(emulation::StreamOrder::kDrawn, 5);
    ExpectSameBits(OnGpusWithNccl(spec), first);
  }
}

// With as many buckets and lanes as the CPU has, the sums of data ranks have its order.
TEST_F(CudaParity, ExactSumsDoNotDependOnTheDataDegree) {
  v1::JobSpec spec = With(SmallJob(), v1::PRECISION_FP32);
  spec.mutable_training()->set_reproducibility(v1::REPRODUCIBILITY_EXACT);
  const RunResult one = OnGpus(In(spec, {1, 1, 1, 1}));
  ExpectSameBits(OnGpus(In(spec, {1, 1, 4, 1})), one);
  ExpectSameBits(OnGpus(In(spec, {1, 2, 2, 1})), one);
}

}  // namespace
}  // namespace tercio::testing
