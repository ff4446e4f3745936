// Names and meanings of CUDA's errors.
#include "emulation/runtime_api.h"

namespace {

struct Entry {
  cudaError_t error;
  const char* name;
  const char* meaning;
};

// The macro writes each name once, as a constant and as text.
#define ENTRY(error, meaning) \
  { error, #error, meaning }
// The texts are our own: NVIDIA's documentation describes the errors, and code must not depend on
// their wording.
constexpr Entry kEntries[] = {
    ENTRY(cudaSuccess, "no error"),
    ENTRY(cudaErrorInvalidValue, "an argument has no valid value"),
    ENTRY(cudaErrorMemoryAllocation, "out of memory"),
    ENTRY(cudaErrorInitializationError, "the driver could not be started"),
    ENTRY(cudaErrorInvalidConfiguration, "a kernel's grid or block is invalid"),
    ENTRY(cudaErrorInvalidMemcpyDirection, "a copy's direction is not valid"),
    ENTRY(cudaErrorInsufficientDriver, "the driver is older than the runtime"),
    ENTRY(cudaErrorDevicesUnavailable, "all devices are busy or not available"),
    ENTRY(cudaErrorSystemNotReady, "the system is not ready for CUDA"),
    ENTRY(cudaErrorSystemDriverMismatch, "parts of the driver have different versions"),
    ENTRY(cudaErrorCompatNotSupportedOnDevice, "the device does not run a newer driver library"),
    ENTRY(cudaErrorInvalidDeviceFunction, "not a kernel of this program"),
    ENTRY(cudaErrorNoDevice, "there is no device"),
    ENTRY(cudaErrorInvalidDevice, "there is no device with this number"),
    ENTRY(cudaErrorNoKernelImageForDevice, "the kernel was not built for this device"),
    ENTRY(cudaErrorECCUncorrectable, "memory of the device has an error that it cannot correct"),
    ENTRY(cudaErrorNvlinkUncorrectable, "an NVLink has an error that it cannot correct"),
    ENTRY(cudaErrorInvalidResourceHandle, "not a valid handle, or a handle of another device"),
    ENTRY(cudaErrorNotReady, "not finished yet"),
    ENTRY(cudaErrorPeerAccessAlreadyEnabled, "the device already has access to that one"),
    ENTRY(cudaErrorIllegalAddress, "a kernel used an illegal address"),
    ENTRY(cudaErrorLaunchOutOfResources, "a kernel needs more registers than a block has"),
    ENTRY(cudaErrorLaunchTimeout, "a kernel ran too long"),
    ENTRY(cudaErrorHardwareStackError, "a kernel's stack was damaged"),
    ENTRY(cudaErrorIllegalInstruction,
          "a kernel contains an instruction that the device does not have"),
    ENTRY(cudaErrorMisalignedAddress, "a kernel used a misaligned address"),
    ENTRY(cudaErrorLaunchFailure, "a kernel failed"),
    ENTRY(cudaErrorNotPermitted, "not permitted here"),
    ENTRY(cudaErrorStreamCaptureUnsupported, "not permitted while a stream is captured"),
    ENTRY(cudaErrorStreamCaptureInvalidated, "the capture was invalidated by an earlier error"),
    ENTRY(cudaErrorStreamCaptureMerge, "two captures would become one"),
    ENTRY(cudaErrorStreamCaptureUnmatched, "the capture was not begun on this stream"),
    ENTRY(cudaErrorStreamCaptureUnjoined,
          "the capture's first stream does not wait for the others"),
    ENTRY(cudaErrorStreamCaptureIsolation, "captured work would wait for other work"),
    ENTRY(cudaErrorCapturedEvent, "the event was recorded in a capture"),
    ENTRY(cudaErrorStreamCaptureWrongThread, "the capture was begun by another thread"),
    ENTRY(cudaErrorGraphExecUpdateFailure, "the graphs differ in more than parameters"),
    ENTRY(cudaErrorUnknown, "unknown error"),
};
#undef ENTRY

const Entry* Find(cudaError_t error) {
  // A search is quick enough for errors.
  for (const Entry& entry : kEntries) {
    if (entry.error == error) return &entry;
  }
  return nullptr;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  const Entry* entry = Find(error);
  // CUDA gives unknown codes this name.
  return entry == nullptr ? "unrecognized error code" : entry->name;
}

// The meanings are for people, as are CUDA's.
const char* cudaGetErrorString(cudaError_t error) {
  const Entry* entry = Find(error);
  return entry == nullptr ? "unrecognized error code" : entry->meaning;
}
