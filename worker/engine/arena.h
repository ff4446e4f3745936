// A rank's memory: one allocation, cut by the plan's memory table.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "plan/memory_map.h"
#include "plan/precision.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/device/device.h"

namespace tercio {

class Arena {
 public:
  static absl::StatusOr<Arena> Allocate(const v1::MemoryTable& table, Device& device) {
    auto memory = device.Allocate(table.total_bytes());
    if (!memory.ok()) return memory.status();
    return Arena(table, *std::move(memory));
  }

  // REQUIRES: the table has a buffer of that name.
  template <typename T>
  T* Get(const std::string& name) {
    const v1::Buffer& buffer = plan::FindBuffer(table_, name);
    return reinterpret_cast<T*>(memory_->data() + buffer.offset_bytes());
  }
  float* Floats(const std::string& name) { return Get<float>(name); }
  kernels::Values ValuesOf(const std::string& name, const plan::Precision& precision) {
    return {Get<std::byte>(name), precision.format, precision.stored};
  }
  int64_t Bytes(const std::string& name) const {
    return plan::FindBuffer(table_, name).size_bytes();
  }

  int64_t total_bytes() const { return memory_->size_bytes(); }

 private:
  Arena(const v1::MemoryTable& table, std::unique_ptr<DeviceMemory> memory)
      : table_(table), memory_(std::move(memory)) {}

  v1::MemoryTable table_;
  std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace tercio
