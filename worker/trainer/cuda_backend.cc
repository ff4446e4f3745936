#include <cuda_runtime.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "plan/gpu_reserve.h"
#include "plan/precision.h"
#include "worker/collective/host_staged.h"
#include "worker/collective/nccl_communicator.h"
#include "worker/device/cuda_device.h"
#include "worker/device/cuda_status.h"
#include "worker/trainer/backend.h"
#include "worker/trainer/host_group.h"
#include "worker/trainer/nccl_interface.h"
#include "worker/trainer/product_choice.h"

namespace tercio::trainer {
namespace {

// All trainers start within this time; later calls have the job's own timeout.
constexpr absl::Duration kJoinTimeout = absl::Minutes(5);

v1::GpuFallbacks ToGpuFallbacks(const kernels::cuda::FallbackCounts& counts) {
  using kernels::cuda::Fallback;
  const auto of = [&](Fallback what) { return counts[static_cast<size_t>(what)]; };
  v1::GpuFallbacks fallbacks;
  fallbacks.set_gelu(of(Fallback::kGelu));
  fallbacks.set_gelu_gradient(of(Fallback::kGeluGradient));
  fallbacks.set_bias_gradient(of(Fallback::kBiasGradient));
  fallbacks.set_table_algorithm(of(Fallback::kTableAlgorithm));
  fallbacks.set_product_algorithm(of(Fallback::kProductAlgorithm));
  fallbacks.set_attention(of(Fallback::kAttention));
  return fallbacks;
}

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const v1::TrainerAssignment& assignment) : assignment_(assignment) {}

  v1::DeviceKind kind() const override { return v1::DEVICE_KIND_CUDA; }

  // A node may offer more slots than it has GPUs: their ranks share one.
  absl::StatusOr<std::unique_ptr<device::Device>> OpenDevice() override {
    int count = 0;
    TERCIO_RETURN_IF_ERROR(device::CudaStatus(cudaGetDeviceCount(&count), "looking for GPUs"));
    const int slot = assignment_.plan().placement().device();
    device::CudaDeviceOptions options;
    options.tf32 = assignment_.spec().training().tf32();
    options.fp8 = plan::HasFp8(assignment_.spec());
    // They are chosen later, but before a stream multiplies.
    options.algorithms = algorithms_;
    options.graphs = !assignment_.spec().resources().no_cuda_graphs();
    // Without any GPU CreateCudaDevice says what is missing.
    TERCIO_ASSIGN_OR_RETURN(auto device,
                            device::CreateCudaDevice(count == 0 ? slot : slot % count, options));
    device_ = device.get();
    return device;
  }

  absl::StatusOr<std::unique_ptr<collective::Communicator>> JoinGroup(
      const v1::ProcessGroup& group, collective::CommunicatorOptions options,
      collective::RendezvousStore& rendezvous) override {
    if (assignment_.plan().collectives() == v1::COLLECTIVES_NCCL) {
      // All groups are split from one communicator, which the first of them makes.
      if (nccl_ == nullptr) TERCIO_RETURN_IF_ERROR(JoinNccl(rendezvous));
      // Two communicators that a GPU works on at once may block each other, where ranks start their
      // kernels in different orders.
      if (group.kind() == v1::GROUP_KIND_SUMS) return nullptr;
      const bool pipeline = group.kind() == v1::GROUP_KIND_PIPELINE;
      return nccl_->Group(
          pipeline ? collective::NcclMessages::kNeighbours : collective::NcclMessages::kNone,
          std::move(options));
    }
    TERCIO_ASSIGN_OR_RETURN(auto over_host,
                            JoinHostGroup(assignment_, group, std::move(options), rendezvous));
    return collective::CreateHostStagedCommunicator(std::move(over_host));
  }

  absl::StatusOr<v1::ProductTable> ChooseProducts(
      collective::RendezvousStore& rendezvous) override {
    return tercio::trainer::ChooseProducts(assignment_, *device_, rendezvous, algorithms_.get());
  }

  std::optional<v1::GpuFallbacks> Fallbacks() override {
    if (device_ == nullptr) return std::nullopt;
    return ToGpuFallbacks(device::FallbacksOf(*device_));
  }

  void LogMemory(std::string_view when) override {
    size_t free = 0;
    size_t total = 0;
    // A failed GPU is reported by the work that waits for it.
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return;
    // Ranks that share a GPU have no communicators, whatever the job asks for.
    const bool has_nccl = assignment_.plan().collectives() == v1::COLLECTIVES_NCCL;
    const int64_t reserve =
        has_nccl ? plan::GpuReserveBytes(assignment_.spec(), assignment_.plan().layout())
                 : plan::kGpuContextBytes;
    constexpr int64_t kMiB = 1 << 20;
    LogInfo(absl::StrCat("memory of the GPU ", std::string(when), ": ",
                         static_cast<int64_t>(free) / kMiB, " MiB of ",
                         static_cast<int64_t>(total) / kMiB, " MiB are free; the plan leaves ",
                         reserve / kMiB, " MiB to CUDA and NCCL"));
  }

 private:
  absl::Status JoinNccl(collective::RendezvousStore& rendezvous) {
    // NCCL looks at the variable when it makes its first communicator.
    UseInterfaceOf(assignment_.data_address());
    const v1::Layout& layout = assignment_.plan().layout();
    const plan::NcclCommunicators counted =
        plan::CommunicatorsOf(assignment_.spec().model(), layout);
    collective::NcclOptions options;
    options.world_channels = counted.wide_world ? 0 : plan::kNarrowChannels;
    options.edge_channels = plan::kEdgeChannels;
    options.edges = {counted.closes_ring, counted.is_tied};
    options.reserve_bytes = plan::GpuReserveBytes(assignment_.spec(), layout);
    TERCIO_ASSIGN_OR_RETURN(
        nccl_, collective::NcclGroups::Join(assignment_.plan().placement().rank(),
                                            assignment_.world_size(), *device_, rendezvous,
                                            kJoinTimeout, options));
    return absl::OkStatus();
  }

  const v1::TrainerAssignment& assignment_;
  const std::shared_ptr<kernels::cuda::ProductAlgorithms> algorithms_ =
      std::make_shared<kernels::cuda::ProductAlgorithms>();
  device::Device* device_ = nullptr;
  std::unique_ptr<collective::NcclGroups> nccl_;
};

}  // namespace

std::unique_ptr<Backend> CreateBackend(const v1::TrainerAssignment& assignment) {
  return std::make_unique<CudaBackend>(assignment);
}

}  // namespace tercio::trainer
