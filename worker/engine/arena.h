// A rank's memory, cut by the plan's memory table: one allocation of the device, and one of the
// host where that is something else.
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
    auto host = device.AllocateHost(table.host_bytes());
    if (!host.ok()) return host.status();
    return Arena(table, *std::move(memory), *std::move(host));
  }

  // REQUIRES: the table has a buffer of that name.
  template <typename T>
  T* Get(const std::string& name) {
    const v1::Buffer& buffer = plan::FindBuffer(table_, name);
    DeviceMemory& memory = buffer.on_host() ? *host_ : *memory_;
    return reinterpret_cast<T*>(memory.data() + buffer.offset_bytes());
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
  Arena(const v1::MemoryTable& table, std::unique_ptr<DeviceMemory> memory,
        std::unique_ptr<DeviceMemory> host)
      : table_(table), memory_(std::move(memory)), host_(std::move(host)) {}

  v1::MemoryTable table_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<DeviceMemory> host_;
};

}  // namespace tercio
