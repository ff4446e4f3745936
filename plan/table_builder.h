// Writes the memory table of a rank (plan/memory_map.h), buffer after buffer. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "plan/precision.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// Where a rank has what can be offloaded. Kernels of a GPU read and write pinned memory of the
// host, and those of CPUs a mapped file, as any other memory.
enum class Place { kDevice, kHost, kDisk };

class TableBuilder {
 public:
  // Buffers that are not needed are entered with 0 bytes, so that every name is found.
  void Add(const std::string& name, v1::BufferKind kind, int64_t bytes) {
    const int64_t offset = table_.total_bytes();
    v1::Buffer* buffer = Append(name, kind, bytes);
    buffer->set_offset_bytes(offset);
    table_.set_total_bytes(offset + RoundUp(bytes, kAlignment));
  }
  // What lies on the host has an arena of its own.
  void AddOnHost(const std::string& name, v1::BufferKind kind, int64_t bytes) {
    const int64_t offset = table_.host_bytes();
    v1::Buffer* buffer = Append(name, kind, bytes);
    buffer->set_on_host(true);
    buffer->set_offset_bytes(offset);
    table_.set_host_bytes(offset + RoundUp(bytes, kAlignment));
  }
  void AddOnDisk(const std::string& name, v1::BufferKind kind, int64_t bytes) {
    const int64_t offset = table_.disk_bytes();
    v1::Buffer* buffer = Append(name, kind, bytes);
    buffer->set_on_disk(true);
    buffer->set_offset_bytes(offset);
    // Hints to the kernel are about whole pages.
    table_.set_disk_bytes(offset + RoundUp(bytes, kPage));
  }
  void AddAt(Place place, const std::string& name, v1::BufferKind kind, int64_t bytes) {
    switch (place) {
      case Place::kDevice:
        return Add(name, kind, bytes);
      case Place::kHost:
        return AddOnHost(name, kind, bytes);
      case Place::kDisk:
        return AddOnDisk(name, kind, bytes);
    }
  }
  void Floats(const std::string& name, v1::BufferKind kind, int64_t count) {
    Add(name, kind, count * static_cast<int64_t>(sizeof(float)));
  }
  void Values(const std::string& name, v1::BufferKind kind, const Precision& precision,
              int64_t count) {
    Add(name, kind, count * precision.bytes());
  }
  v1::MemoryTable Finish() { return std::move(table_); }

 private:
  static constexpr int64_t kAlignment = 256;  // bytes: of vector accesses on any device
  static constexpr int64_t kPage = 4096;
  static int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

  v1::Buffer* Append(const std::string& name, v1::BufferKind kind, int64_t bytes) {
    v1::Buffer* buffer = table_.add_buffers();
    buffer->set_name(name);
    buffer->set_kind(kind);
    buffer->set_size_bytes(bytes);
    return buffer;
  }

  v1::MemoryTable table_;
};

}  // namespace tercio::plan
