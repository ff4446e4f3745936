// The CPU as a device: the embedded default and the reference for every other backend.
//
// The compute stream runs operations immediately, in the calling thread and a pool of threads. The
// communication stream has a thread of its own, so that waiting for other ranks overlaps with work.
#pragma once

#include <memory>

#include "worker/device/device.h"

namespace tercio::device {

// threads >= 1: of the compute stream, including the calling thread.
std::unique_ptr<Device> CreateCpuDevice(int threads);

}  // namespace tercio::device
