#include "worker/device/cuda_status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace tercio::device {
namespace {

// Agents look for the name in parentheses (common/gpus/gpu_faults.h), so every message has it.
std::string Words(cudaError_t error, std::string_view what) {
  return absl::StrCat(std::string(what), ": ", cudaGetErrorString(error), " (",
                      cudaGetErrorName(error), ")");
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, std::string_view what) {
  switch (error) {
    case cudaSuccess:
      return absl::OkStatus();
    // This is no fault of the GPU: a smaller job may run on it.
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(Words(error, what));
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
      return absl::FailedPreconditionError(
          absl::StrCat(Words(error, what), "; nvidia-smi lists the GPUs that the driver sees"));
    // Within a major version of CUDA, newer runtimes work with older drivers.
    case cudaErrorInsufficientDriver:
      return absl::FailedPreconditionError(absl::StrCat(Words(error, what),
                                                        "; the driver must support CUDA ",
                                                        CUDART_VERSION / 1000, " or newer"));
    // In an exclusive mode the second process on a GPU gets this.
    case cudaErrorDevicesUnavailable:
      return absl::FailedPreconditionError(absl::StrCat(
          Words(error, what),
          "; another process is using it, or its compute mode is exclusive or prohibited: "
          "nvidia-smi -q -d COMPUTE shows the mode, -c DEFAULT resets it"));
    case cudaErrorSystemNotReady:
      return absl::FailedPreconditionError(
          absl::StrCat(Words(error, what), "; GPUs on an NVSwitch need nvidia-fabricmanager"));
    // An update of the driver leaves the old module loaded until the node restarts.
    case cudaErrorSystemDriverMismatch:
      return absl::FailedPreconditionError(
          absl::StrCat(Words(error, what),
                       "; the kernel module and the libraries belong to different driver versions: "
                       "restart the node, or, if it has NVIDIA's package for forward compatibility "
                       "(cuda-compat), take one that supports this driver"));
    case cudaErrorCompatNotSupportedOnDevice:
      return absl::FailedPreconditionError(
          absl::StrCat(Words(error, what),
                       "; NVIDIA's package for forward compatibility (cuda-compat) supports GPUs "
                       "of data centres "
                       "only: install a newer driver instead"));
    case cudaErrorNoKernelImageForDevice:
      return absl::FailedPreconditionError(absl::StrCat(
          Words(error, what), "; this build has no code for this GPU (bazel/cuda.bzl)"));
    case cudaErrorECCUncorrectable:
      return absl::InternalError(absl::StrCat(
          Words(error, what), "; the GPU's memory is faulty: take the node out of service"));
    // After any other error the process can no longer use the GPU.
    default:
      return absl::InternalError(Words(error, what));
  }
}

bool IsUnderWay(cudaError_t query) {
  if (query != cudaErrorNotReady) return false;
  cudaGetLastError();
  return true;
}

}  // namespace tercio::device
