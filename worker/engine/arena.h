// A rank's memory, cut by the plan's memory table: one allocation of the device, one of the host if
// that is something else, and a scratch file for what the job offloads to disk. Reports how much of
// it is really in use.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/memory_map.h"
#include "plan/precision.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/device/device.h"
#include "worker/device/scratch_file.h"
#include "worker/engine/memory_use.h"

namespace tercio::engine {

class Arena {
 public:
  // `scratch`: the directory for the scratch file, where the table has one (ScratchFile::Create).
  static absl::StatusOr<Arena> Allocate(const v1::MemoryTable& table, device::Device& device,
                                        const std::string& scratch = "");

  // The same memory by another table, whose buffers lie within this one's.
  Arena Part(const v1::MemoryTable& table) const;

  // REQUIRES: the table has a buffer of that name.
  template <typename T>
  T* Get(const std::string& name) {
    return reinterpret_cast<T*>(BeginOf(plan::FindBuffer(table_, name)));
  }
  float* Floats(const std::string& name) { return Get<float>(name); }
  kernels::Values ValuesOf(const std::string& name, const plan::Precision& precision) {
    return {Get<std::byte>(name), precision.format, precision.stored};
  }
  // The same memory, owned together with the arena; null if it is not the host's. REQUIRES:
  // `inside` is of a buffer that is not on_host().
  template <typename T>
  std::shared_ptr<T> OnHost(T* inside) const {
    if (IsOnDisk(inside)) return std::shared_ptr<T>(disk_, inside);
    return memory_->IsOnHost() ? std::shared_ptr<T>(memory_, inside) : nullptr;
  }
  bool IsOnDisk(const void* inside) const { return disk_ != nullptr && disk_->Contains(inside); }
  // Hints (device/scratch_file.h); without an effect elsewhere than on disk.
  void ReadAhead(const float* begin, int64_t count) const;
  void WriteBehind(const float* begin, int64_t count) const;
  int64_t Bytes(const std::string& name) const {
    return plan::FindBuffer(table_, name).size_bytes();
  }

  // Measured: bytes of the device's allocation in use. On the CPU those on resident pages, so
  // memory that was never touched is not counted, to the page (with large pages, to two MiB); on a
  // GPU the memory that the allocation took from the free memory (cudaMemGetInfo), within the
  // driver's unit of allocation, and together with memory that other processes took in that moment.
  int64_t UsedBytes() const;

  // Called before the first use: from now on HighWaterMarks finds out which memory was written. The
  // moments of the optimizer, which the engine expects to be zero at first, begin as -0.
  absl::Status FillWithPattern(device::Device& device);
  // The use of each buffer that is not empty. Copies the arena to the host: for tests and trials.
  // REQUIRES: it was filled with the pattern.
  absl::StatusOr<std::vector<BufferUse>> HighWaterMarks(device::Stream& stream);

 private:
  Arena(const v1::MemoryTable& table, std::unique_ptr<device::DeviceMemory> memory,
        std::unique_ptr<device::DeviceMemory> host, std::unique_ptr<device::ScratchFile> disk,
        int64_t taken)
      : table_(table),
        memory_(std::move(memory)),
        host_(std::move(host)),
        disk_(std::move(disk)),
        taken_(taken) {}

  std::byte* BeginOf(const v1::Buffer& buffer) {
    if (buffer.on_disk()) return disk_->data() + buffer.offset_bytes();
    return (buffer.on_host() ? *host_ : *memory_).data() + buffer.offset_bytes();
  }
  absl::StatusOr<BufferUse> UseOf(const v1::Buffer& buffer, device::Stream& stream);

  v1::MemoryTable table_;
  std::shared_ptr<device::DeviceMemory> memory_;
  std::shared_ptr<device::DeviceMemory> host_;
  std::shared_ptr<device::ScratchFile> disk_;  // null: the table has nothing on disk
  int64_t taken_;                              // memory of the device that the allocation took
  bool filled_ = false;
};

}  // namespace tercio::engine
