// For tests of the whole engine on emulated GPUs: ranks as threads, each with a device of its own,
// collectives over the host or by NCCL. Streams run as late as they may (emulation), so an
// operation that forgets to wait for another stream, or a host buffer that is used again too early,
// shows in the losses.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "emulation/control.h"
#include "gtest/gtest.h"
#include "plan/plan_builder.h"
#include "plan/rank_layout.h"
#include "tests/parity/thread_ranks.h"
#include "worker/collective/host_staged.h"
#include "worker/collective/memory_rendezvous.h"
#include "worker/collective/nccl_communicator.h"
#include "worker/device/cuda_device.h"
#include "worker/engine/product_shapes.h"

namespace tercio::testing {

struct Layout {
  int tensor, pipeline, data;
  int micro_batch = 2;
};

inline v1::JobSpec In(v1::JobSpec spec, const Layout& layout) {
  v1::ParallelismSpec& parallelism = *spec.mutable_parallelism();
  parallelism.set_tensor(layout.tensor);
  parallelism.set_pipeline(layout.pipeline);
  parallelism.set_data(layout.data);
  spec.mutable_training()->set_micro_batch(layout.micro_batch);
  return spec;
}

inline v1::JobSpec Cuda(v1::JobSpec spec) {
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  return spec;
}

inline v1::JobSpec WithoutDropout(v1::JobSpec spec) {
  spec.mutable_model()->set_dropout(0);
  return spec;
}

inline v1::JobSpec With(v1::JobSpec spec, v1::Precision precision) {
  spec.mutable_training()->set_precision(precision);
  return spec;
}

class HostStagedGroups : public Machine::Groups {
 public:
  absl::StatusOr<std::unique_ptr<collective::Communicator>> Group(
      std::unique_ptr<collective::Communicator> over_host, const collective::CommunicatorOptions&,
      v1::GroupKind) override {
    return collective::CreateHostStagedCommunicator(std::move(over_host));
  }
};

class NcclMachineGroups : public Machine::Groups {
 public:
  explicit NcclMachineGroups(std::unique_ptr<collective::NcclGroups> groups)
      : groups_(std::move(groups)) {}
  absl::StatusOr<std::unique_ptr<collective::Communicator>> Group(
      std::unique_ptr<collective::Communicator>, const collective::CommunicatorOptions& options,
      v1::GroupKind kind) override {
    // As worker/trainer/cuda_backend.cc does it.
    if (kind == v1::GROUP_KIND_SUMS) return nullptr;
    const bool messages = kind == v1::GROUP_KIND_PIPELINE;
    return groups_->Group(
        messages ? collective::NcclMessages::kNeighbours : collective::NcclMessages::kNone,
        options);
  }

 private:
  std::unique_ptr<collective::NcclGroups> groups_;
};

class CudaParity : public ::testing::Test {
 protected:
  static constexpr int kDevices = 8;

  explicit CudaParity(int major = 8) : major_(major) {}

  void SetUp() override {
    emulation::Settings settings;
    settings.major = major_;
    settings.devices = kDevices;
    settings.memory_bytes = size_t{256} << 20;
    settings.streams = emulation::StreamOrder::kWaitedFirst;
    emulation::Configure(settings);
  }
  void TearDown() override { EXPECT_EQ(emulation::MemoryReport(), ""); }

  static absl::StatusOr<std::unique_ptr<device::Device>> OpenDevice(int rank) {
    return device::CreateCudaDevice(rank % kDevices);
  }
  RunResult OnGpus(const v1::JobSpec& spec, const RunOptions& options = {}) {
    return On({OpenDevice,
               [](int, int, device::Device&) -> absl::StatusOr<std::unique_ptr<Machine::Groups>> {
                 return std::make_unique<HostStagedGroups>();
               }},
              spec, options);
  }
  // The same with devices that have these options.
  RunResult OnGpusOf(const device::CudaDeviceOptions& device, const v1::JobSpec& spec,
                     const RunOptions& options) {
    return On({[&](int rank) { return device::CreateCudaDevice(rank % kDevices, device); },
               [](int, int, device::Device&) -> absl::StatusOr<std::unique_ptr<Machine::Groups>> {
                 return std::make_unique<HostStagedGroups>();
               }},
              spec, options);
  }
  RunResult OnGpusWithNccl(const v1::JobSpec& spec, const RunOptions& options = {}) {
    collective::MemoryRendezvous store;
    return On(
        {OpenDevice,
         [&store](int rank, int size,
                  device::Device& device) -> absl::StatusOr<std::unique_ptr<Machine::Groups>> {
           TERCIO_ASSIGN_OR_RETURN(auto groups, collective::NcclGroups::Join(
                                                    rank, size, device, store, absl::Seconds(60)));
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
      const engine::StepResult& expected = cpu.steps[i];
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

  // What is timed before the first step is all that steps multiply, and nothing else.
  void ExpectShapesKnown(const v1::JobSpec& given, RunOptions run = {}) {
    SCOPED_TRACE(given.ShortDebugString());
    const v1::JobSpec spec = Cuda(given);
    const auto layout = plan::LayoutOfJob(spec);
    ASSERT_TRUE(layout.ok()) << layout.status();
    std::vector<plan::DeviceSlot> slots;
    for (int rank = 0; rank < plan::WorldSize(*layout); ++rank) slots.push_back({"n", rank, rank});
    const auto plan = plan::BuildPlan(spec, *layout, slots, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<device::CudaDeviceOptions> of_rank(slots.size());
    for (device::CudaDeviceOptions& options : of_rank) {
      options.algorithms = std::make_shared<kernels::cuda::ProductAlgorithms>();
    }
    run.steps = 1;
    On({[&](int rank) {
          return device::CreateCudaDevice(rank, of_rank[static_cast<size_t>(rank)]);
        },
        [](int, int, device::Device&) -> absl::StatusOr<std::unique_ptr<Machine::Groups>> {
          return std::make_unique<HostStagedGroups>();
        }},
       spec, run);
    for (int rank = 0; rank < plan->ranks_size(); ++rank) {
      std::vector<kernels::cuda::ProductShape> used;
      for (const auto& [shape, algorithm] : *of_rank[static_cast<size_t>(rank)].algorithms) {
        used.push_back(shape);
      }
      EXPECT_TRUE(used == engine::ProductShapes(spec, plan::SliceForRank(*plan, rank))) << rank;
    }
  }

 private:
  const int major_;  // major number of the devices' compute capability
};

}  // namespace tercio::testing
