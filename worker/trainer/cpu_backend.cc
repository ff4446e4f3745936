#include <algorithm>
#include <utility>

#include "worker/device/cpu_device.h"
#include "worker/trainer/backend.h"
#include "worker/trainer/host_group.h"

namespace tercio::trainer {
namespace {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const v1::TrainerAssignment& assignment) : assignment_(assignment) {}

  v1::DeviceKind kind() const override { return v1::DEVICE_KIND_CPU; }

  absl::StatusOr<std::unique_ptr<device::Device>> OpenDevice() override {
    // The plan divides the cores of a node among its ranks.
    return device::CreateCpuDevice(std::max(1, assignment_.threads()));
  }

  absl::StatusOr<std::unique_ptr<collective::Communicator>> JoinGroup(
      const v1::ProcessGroup& group, collective::CommunicatorOptions options,
      collective::RendezvousStore& rendezvous) override {
    // Values of a CPU lie where these communicators need them.
    return JoinHostGroup(assignment_, group, std::move(options), rendezvous);
  }

  // The products are our own (kernels/cpu/gemm.h): there is no choice.
  absl::StatusOr<v1::ProductTable> ChooseProducts(collective::RendezvousStore&) override {
    return v1::ProductTable();
  }

 private:
  const v1::TrainerAssignment& assignment_;
};

}  // namespace

std::unique_ptr<Backend> CreateBackend(const v1::TrainerAssignment& assignment) {
  return std::make_unique<CpuBackend>(assignment);
}

}  // namespace tercio::trainer
