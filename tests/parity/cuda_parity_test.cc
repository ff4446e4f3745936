// The whole engine on emulated GPUs against the same engine on the CPU: ranks as threads, each with
// a device of its own, collectives over the host or by NCCL. Streams run as late as they may
// (emulation), so an operation that forgets to wait for another stream, or a host buffer that is
// used again too early, shows in the losses.
#include <cudnn.h>

#include <cmath>
#include <string>
#include <vector>

#include "common/status_macros.h"
#include "gtest/gtest.h"
#include "kernels/emulation/control.h"
#include "plan/plan_builder.h"
#include "plan/rank_layout.h"
#include "tests/parity/thread_ranks.h"
#include "worker/collective/host_staged.h"
#include "worker/collective/memory_rendezvous.h"
#include "worker/collective/nccl_communicator.h"
#include "worker/device/cuda_device.h"
#include "worker/engine/product_shapes.h"
#include "worker/engine/step_guard.h"

namespace tercio::testing {
namespace {

struct Layout {
  int tensor, pipeline, data;
  int micro_batch = 2;
};

v1::JobSpec In(v1::JobSpec spec, const Layout& layout) {
  v1::ParallelismSpec& parallelism = *spec.mutable_parallelism();
  parallelism.set_tensor(layout.tensor);
  parallelism.set_pipeline(layout.pipeline);
  parallelism.set_data(layout.data);
  spec.mutable_training()->set_micro_batch(layout.micro_batch);
  return spec;
}

v1::JobSpec Cuda(v1::JobSpec spec) {
  spec.mutable_resources()->set_device("cuda");
  return spec;
}

// cuDNN's attention takes no dropout.
v1::JobSpec WithoutDropout(v1::JobSpec spec) {
  spec.mutable_model()->set_dropout(0);
  return spec;
}

v1::JobSpec With(v1::JobSpec spec, const std::string& precision) {
  spec.mutable_training()->set_precision(precision);
  return spec;
}

class HostStagedGroups : public Machine::Groups {
 public:
  absl::StatusOr<std::unique_ptr<Communicator>> Group(std::unique_ptr<Communicator> over_host,
                                                      const CommunicatorOptions&, bool) override {
    return CreateHostStagedCommunicator(std::move(over_host));
  }
};

class NcclMachineGroups : public Machine::Groups {
 public:
  explicit NcclMachineGroups(std::unique_ptr<NcclGroups> groups) : groups_(std::move(groups)) {}
  absl::StatusOr<std::unique_ptr<Communicator>> Group(std::unique_ptr<Communicator>,
                                                      const CommunicatorOptions& options,
                                                      bool messages) override {
    return groups_->Group(messages, options);
  }

 private:
  std::unique_ptr<NcclGroups> groups_;
};

class CudaParity : public ::testing::Test {
 protected:
  static constexpr int kDevices = 8;

  void SetUp() override {
    emulation::Settings settings;
    settings.devices = kDevices;
    settings.memory_bytes = size_t{256} << 20;
    settings.streams = emulation::StreamOrder::kWaitedFirst;
    emulation::Configure(settings);
  }
  void TearDown() override { EXPECT_EQ(emulation::MemoryReport(), ""); }

  static absl::StatusOr<std::unique_ptr<Device>> OpenDevice(int rank) {
    return CreateCudaDevice(rank % kDevices);
  }
  RunResult OnGpus(const v1::JobSpec& spec, const RunOptions& options = {}) {
    return On({OpenDevice,
               [](int, int, Device&) -> absl::StatusOr<std::unique_ptr<Machine::Groups>> {
                 return std::make_unique<HostStagedGroups>();
               }},
              spec, options);
  }
  RunResult OnGpusWithNccl(const v1::JobSpec& spec, const RunOptions& options = {}) {
    MemoryRendezvous store;
    return On({OpenDevice,
               [&store](int rank, int size,
                        Device& device) -> absl::StatusOr<std::unique_ptr<Machine::Groups>> {
                 TERCIO_ASSIGN_OR_RETURN(
                     auto groups, NcclGroups::Join(rank, size, device, store, absl::Seconds(60)));
                 return std::make_unique<NcclMachineGroups>(std::move(groups));
               }},
              spec, options);
  }
  RunResult On(const Machine& machine, const v1::JobSpec& spec, RunOptions options) {
    options.machine = &machine;
    options.evaluate = true;
    auto result = TrainWithThreads(Cuda(spec), options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RunResult();
  }
  RunResult OnCpu(const v1::JobSpec& spec, RunOptions options = {}) {
    options.evaluate = true;
    auto result = TrainWithThreads(spec, options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RunResult();
  }

  static void ExpectClose(const RunResult& gpu, const RunResult& cpu, double tolerance) {
    ASSERT_EQ(gpu.steps.size(), cpu.steps.size());
    for (size_t i = 0; i < cpu.steps.size(); ++i) {
      const StepResult& expected = cpu.steps[i];
      EXPECT_NEAR(gpu.steps[i].loss, expected.loss, tolerance * expected.loss) << i;
      EXPECT_NEAR(gpu.steps[i].grad_norm, expected.grad_norm, 4 * tolerance * expected.grad_norm)
          << i;
    }
    EXPECT_NEAR(gpu.validation_loss, cpu.validation_loss, tolerance * cpu.validation_loss);
    EXPECT_TRUE(gpu.replicas.equal) << gpu.replicas.text;
  }
  static void ExpectSameBits(const RunResult& a, const RunResult& b) {
    ASSERT_EQ(a.steps.size(), b.steps.size());
    for (size_t i = 0; i < a.steps.size(); ++i) {
      EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << i;
      EXPECT_EQ(a.steps[i].grad_norm, b.steps[i].grad_norm) << i;
    }
    EXPECT_EQ(a.state, b.state);
  }
  // Twice, in other orders, and interrupted.
  void ExpectEqualBits(const v1::JobSpec& spec) {
    RunOptions all;
    all.steps = 4;
    const RunResult whole = OnGpus(spec, all);
    emulation::SetStreamOrder(emulation::StreamOrder::kDrawn, 7);
    emulation::SetOrders({emulation::Order::kShuffled, emulation::Order::kShuffled, 11});
    ExpectSameBits(OnGpus(spec, all), whole);
    RunOptions half;
    half.steps = 2;
    const RunResult first = OnGpus(spec, half);
    RunOptions rest = half;
    rest.first_step = 3;
    rest.state = &first.state;
    EXPECT_EQ(OnGpus(spec, rest).state, whole.state);
  }
};

TEST_F(CudaParity, ModelsOnOneDevice) {
  for (const v1::JobSpec& spec :
       {SmallJob(), SmallLlama(), SmallBert("post"), SmallBert("pre"), SmallClassifier()}) {
    SCOPED_TRACE(spec.model().architecture());
    const v1::JobSpec fp32 = With(In(spec, {1, 1, 1}), "fp32");
    ExpectClose(OnGpus(fp32), OnCpu(fp32), 1e-4);
  }
}

TEST_F(CudaParity, PrecisionsOfSixteenBits) {
  for (const char* precision : {"bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    const v1::JobSpec spec = WithoutDropout(With(In(SmallLlama(), {1, 1, 1}), precision));
    // A loss scale at which nothing overflows; without one fp16 would skip all of these steps.
    RunOptions options;
    options.steps = 0;
    std::map<std::string, std::vector<float>> state = OnCpu(spec, options).state;
    if (spec.training().precision() == "fp16") state[kGuardTensor] = {65536, 0, 2, 0, 0};
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

TEST_F(CudaParity, Layouts) {
  for (const Layout& layout :
       {Layout{2, 1, 1}, Layout{1, 2, 1}, Layout{1, 1, 2}, Layout{2, 2, 2}}) {
    SCOPED_TRACE(std::to_string(layout.tensor) + "x" + std::to_string(layout.pipeline) + "x" +
                 std::to_string(layout.data));
    const v1::JobSpec spec = With(In(SmallJob(), layout), "fp32");
    ExpectClose(OnGpus(spec), OnCpu(spec), 1e-4);
  }
  v1::JobSpec spec = With(In(SmallJob(), {2, 2, 2}), "bf16");
  spec.mutable_parallelism()->set_sequence_parallel(true);
  spec.mutable_parallelism()->set_recompute("selective");
  ExpectClose(OnGpus(spec), OnCpu(spec), 1e-2);
}

TEST_F(CudaParity, RepeatedAndResumedWithEqualBits) {
  const v1::JobSpec dropping = With(In(SmallJob(), {1, 2, 2}), "bf16");
  for (const v1::JobSpec& spec : {dropping, WithoutDropout(dropping)}) {
    SCOPED_TRACE(spec.model().dropout());
    ExpectEqualBits(spec);
  }
}

// What is timed before the first step is all that steps multiply, and nothing else.
TEST_F(CudaParity, ShapesOfProductsAreKnownBeforehand) {
  v1::JobSpec wide = With(In(SmallJob(), {2, 2, 2}), "bf16");
  wide.mutable_parallelism()->set_sequence_parallel(true);
  v1::JobSpec overlapped = With(In(SmallLlama(), {2, 1, 1}), "bf16");
  overlapped.mutable_parallelism()->set_tensor_overlap(3);
  v1::JobSpec exact = With(In(SmallJob(), {1, 1, 2, 1}), "fp32");
  exact.mutable_training()->set_reproducibility("exact");
  for (const v1::JobSpec& given :
       {wide, overlapped, exact, With(In(SmallLlama(), {1, 2, 1}), "bf16"),
        With(In(SmallJob(), {1, 1, 1, 4}), "fp16")}) {
    SCOPED_TRACE(given.ShortDebugString());
    const v1::JobSpec spec = Cuda(given);
    const auto layout = plan::LayoutOfJob(spec);
    ASSERT_TRUE(layout.ok()) << layout.status();
    std::vector<plan::DeviceSlot> slots;
    for (int rank = 0; rank < plan::WorldSize(*layout); ++rank) slots.push_back({"n", rank, rank});
    const auto plan = plan::BuildPlan(spec, *layout, slots, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<CudaDeviceOptions> of_rank(slots.size());
    for (CudaDeviceOptions& options : of_rank) {
      options.algorithms = std::make_shared<kernels::cuda::ProductAlgorithms>();
    }
    RunOptions options;
    options.steps = 1;
    On({[&](int rank) { return CreateCudaDevice(rank, of_rank[static_cast<size_t>(rank)]); },
        [](int, int, Device&) -> absl::StatusOr<std::unique_ptr<Machine::Groups>> {
          return std::make_unique<HostStagedGroups>();
        }},
       spec, options);
    for (int rank = 0; rank < plan->ranks_size(); ++rank) {
      std::vector<kernels::cuda::ProductShape> used;
      for (const auto& [shape, algorithm] : *of_rank[static_cast<size_t>(rank)].algorithms) {
        used.push_back(shape);
      }
      EXPECT_TRUE(used == ProductShapes(spec, plan::SliceForRank(*plan, rank))) << rank;
    }
  }
}

// What is recorded in the third step and launched from then on is what is enqueued else.
TEST_F(CudaParity, GraphsHaveTheSameBits) {
  for (const Layout& layout : {Layout{1, 1, 1, 1}, Layout{1, 1, 2, 1}}) {
    v1::JobSpec spec = With(In(SmallJob(), layout), "bf16");
    spec.mutable_model()->set_dropout(0);
    RunOptions options;
    options.steps = 5;
    const auto train = [&](bool graphs) {
      CudaDeviceOptions device;
      device.graphs = graphs;
      const int64_t before = emulation::GetCounts().graphs;
      const RunResult result =
          On({[&](int rank) { return CreateCudaDevice(rank, device); },
              [](int, int, Device&) -> absl::StatusOr<std::unique_ptr<Machine::Groups>> {
                return std::make_unique<HostStagedGroups>();
              }},
             spec, options);
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
  OnGpus(With(In(SmallJob(), {1, 1, 1}), "bf16"), options);
  EXPECT_EQ(emulation::GetCounts().graphs, before);
}

// NCCL sums in another order than the CPU, but always in the same one.
TEST_F(CudaParity, LayoutsWithNccl) {
  v1::JobSpec plain = With(In(SmallJob(), {2, 2, 2}), "fp32");
  v1::JobSpec overlapped = With(In(SmallJob(), {2, 2, 2}), "bf16");
  overlapped.mutable_parallelism()->set_tensor_overlap(3);
  v1::JobSpec sequences = With(In(SmallJob(), {2, 2, 2}), "bf16");
  sequences.mutable_parallelism()->set_sequence_parallel(true);
  sequences.mutable_parallelism()->set_recompute("selective");
  v1::JobSpec interleaved = With(In(SmallJob(), {1, 2, 2, 1}), "fp32");
  interleaved.mutable_parallelism()->set_schedule("interleaved");
  interleaved.mutable_parallelism()->set_virtual_pipeline(2);
  v1::JobSpec deep = With(In(SmallJob(), {1, 4, 1, 1}), "fp32");
  struct Case {
    const v1::JobSpec& spec;
    bool repeat;
  };
  for (const auto& [spec, repeat] :
       {Case{plain, false}, Case{overlapped, true}, Case{sequences, true}, Case{interleaved, true},
        Case{deep, false}}) {
    SCOPED_TRACE(spec.parallelism().ShortDebugString() + " " + spec.training().precision());
    emulation::SetStreamOrder(emulation::StreamOrder::kWaitedFirst, 1);
    const RunResult first = OnGpusWithNccl(spec);
    ExpectClose(first, OnCpu(spec), spec.training().precision() == "fp32" ? 1e-4 : 1e-2);
    if (!repeat) continue;
    emulation::SetStreamOrder(emulation::StreamOrder::kDrawn, 5);
    ExpectSameBits(OnGpusWithNccl(spec), first);
  }
}

// Of as many buckets and lanes as the CPU has: the sums of data ranks have its order.
TEST_F(CudaParity, ExactSumsDoNotDependOnTheDataDegree) {
  v1::JobSpec spec = With(SmallJob(), "fp32");
  spec.mutable_training()->set_reproducibility("exact");
  const RunResult one = OnGpus(In(spec, {1, 1, 1, 1}));
  ExpectSameBits(OnGpus(In(spec, {1, 1, 4, 1})), one);
  ExpectSameBits(OnGpus(In(spec, {1, 2, 2, 1})), one);
}

}  // namespace
}  // namespace tercio::testing
