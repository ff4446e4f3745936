#include <cuda_runtime.h>

#include <utility>

#include "common/status_macros.h"
#include "worker/collective/host_staged.h"
#include "worker/device/cuda_device.h"
#include "worker/device/cuda_status.h"
#include "worker/trainer/backend.h"
#include "worker/trainer/host_group.h"

namespace tercio {
namespace {

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(const v1::TrainerAssignment& assignment) : assignment_(assignment) {}

  const char* name() const override { return "cuda"; }

  // A node may offer more slots than it has GPUs: their ranks share one.
  absl::StatusOr<std::unique_ptr<Device>> OpenDevice() override {
    int count = 0;
    TERCIO_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "looking for GPUs"));
    const int slot = assignment_.plan().placement().device();
    return CreateCudaDevice(count == 0 ? slot : slot % count);
  }

  absl::StatusOr<std::unique_ptr<Communicator>> JoinGroup(const v1::ProcessGroup& group,
                                                          CommunicatorOptions options,
                                                          RendezvousStore& rendezvous) override {
    TERCIO_ASSIGN_OR_RETURN(auto over_host,
                            JoinHostGroup(assignment_, group, std::move(options), rendezvous));
    return CreateHostStagedCommunicator(std::move(over_host));
  }

 private:
  const v1::TrainerAssignment& assignment_;
};

}  // namespace

std::unique_ptr<Backend> CreateBackend(const v1::TrainerAssignment& assignment) {
  return std::make_unique<CudaBackend>(assignment);
}

}  // namespace tercio
