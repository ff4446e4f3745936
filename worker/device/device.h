// The model's and the parallel code's view of a device: memory, streams, events, and operations
// bound to a stream. A backend implements these four classes; nothing above this header names a
// backend.
//
// Threads: a Device may be used from any thread; one Stream is fed by one thread at a time.
// Ownership: DeviceMemory, Stream and Event are owned by the code that requested them and must not
// outlive the Device. Errors of asynchronous work surface at Stream::Synchronize.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace tercio::device {

// One block of device memory; freed with the object.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::byte* data() = 0;
  virtual int64_t size_bytes() const = 0;
  // Whether the host's own instructions read and write it.
  virtual bool IsOnHost() const = 0;

  // Bytes of [begin, begin + bytes) that are backed by memory: on the CPU those on pages that are
  // resident, as the kernel counts them. None if the device backs a block completely when it is
  // allocated.
  virtual std::optional<int64_t> ResidentBytes(int64_t begin, int64_t bytes) const = 0;
};

class Event;

// Memory of the device that the operations of a stream may use while they run. The CPU needs none.
struct Workspace {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

// Recorded work of a stream that can run again. Must not outlive its stream.
class WorkGraph {
 public:
  virtual ~WorkGraph() = default;
};

// Work in order. Everything enqueued runs after the work that was enqueued before on the same
// stream.
class Stream {
 public:
  virtual ~Stream() = default;

  // Operations that run in this stream.
  virtual kernels::Ops& ops() = 0;

  // Runs `function` on the host in stream order. Its error becomes the stream's error (the first
  // one is kept) and later work is skipped.
  virtual void RunOnHost(std::function<absl::Status()> function) = 0;

  // Whether the host computes what is enqueued, so that RunOnHost costs next to nothing.
  virtual bool RunsOnHost() const { return false; }

  // Runs operations in stream order, also on a stream whose operations run when they are called.
  virtual void RunOperations(const std::function<void(kernels::Ops&)>& work) { work(ops()); }

  // The host's bytes of a copy from it may change as soon as the call returns; those of a copy to
  // it are there after Synchronize.
  virtual void CopyToHost(void* host, const void* device, int64_t bytes) = 0;
  virtual void CopyFromHost(void* device, const void* host, int64_t bytes) = 0;
  virtual void SetZero(void* device, int64_t bytes) = 0;

  virtual void Record(Event& event) = 0;  // completes when the work before it has
  virtual void Wait(Event& event) = 0;    // later work of this stream waits for the event

  // Makes later work of this stream wait for the work so far of the other one, of the same device,
  // whose errors become this stream's, too. The other lives until the next Synchronize.
  virtual void Join(Stream& other) = 0;

  // Records the work that `enqueue` gives to this stream, without running it, to be launched with
  // the same addresses and numbers. `enqueue` uses no other stream and waits for nothing. Null if
  // the device, or some of the work, cannot be recorded: then nothing has happened.
  virtual std::unique_ptr<WorkGraph> RecordGraph(const std::function<void()>& enqueue) = 0;
  virtual void Launch(WorkGraph& graph) = 0;

  // For profilers: names what the calling thread enqueues until PopRange. Ranges nest. Without a
  // device that has profilers they do nothing. `name` lives as long as the program.
  virtual void PushRange(const char* /*name*/, int64_t /*number*/) {}
  virtual void PopRange() {}

  // Blocks until everything enqueued has run. Returns the first error since the stream was made.
  virtual absl::Status Synchronize() = 0;
};

// A range from its making to its end.
class Range {
 public:
  Range(Stream& stream, const char* name, int64_t number) : stream_(stream) {
    stream_.PushRange(name, number);
  }
  ~Range() { stream_.PopRange(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  Stream& stream_;
};

class Event {
 public:
  virtual ~Event() = default;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;

  // How products of factors of `format` are computed and why, for logs; empty if there is only one
  // way.
  virtual std::string DescribeProducts(kernels::Format format) = 0;

  // Zero-filled. RESOURCE_EXHAUSTED names the bytes asked for.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) = 0;

  // Memory of the host with which copies from and to the device are fastest; zero-filled.
  virtual absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateHost(int64_t bytes) = 0;

  // Measured: bytes of the device's memory in use now. On the CPU those of this process, without
  // pages of files (proc(5): resident - shared of statm); on a GPU those of all processes
  // (cudaMemGetInfo: total - free), since the driver tells them apart only for users with the right
  // to see the others.
  virtual absl::StatusOr<int64_t> BytesInUse() = 0;

  // kCompute runs operations as fast as the device can; on the CPU it runs in the calling thread.
  // kCommunication overlaps with it; on the CPU it has a thread of its own.
  enum class StreamKind { kCompute, kCommunication };
  // The calling thread feeds the stream. The workspace must outlive it; without one, operations
  // that need some end the program.
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind,
                                                               Workspace workspace) = 0;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) {
    return CreateStream(kind, Workspace());
  }
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;
};

}  // namespace tercio::device
