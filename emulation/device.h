// Emulated devices: streams with their work, events, captures, and the scheduling of all work. The
// functions of CUDA (runtime_*.cc) are a thin layer over this. Internal to the emulation.
//
// Threads: a device's mutable state is guarded by its mutex; the registry of handles by the
// process's. Locks are taken in the order process, device; no work runs under a lock. At most one
// thread runs work of a device at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "emulation/control.h"
#include "emulation/memory.h"
#include "emulation/runtime_api.h"

namespace tercio::emulation {

enum class Progress {
  kDone,     // this work is finished
  kMore,     // a part of it was done
  kWaiting,  // nothing could be done now
};

enum class WorkKind {
  kKernel,
  kCopy,
  kSet,
  kHostFunction,
  kEventRecord,
  kEventWait,
  kLibrary,
  kGraph
};

struct Work {
  WorkKind kind;
  std::function<Progress()> step;
};

// One part of a graph. It waits for the first `wait_count` parts of line `wait_line`, if any.
struct GraphNode {
  Work work;
  int wait_line = -1;
  size_t wait_count = 0;
};
// A capture: a line of nodes for each stream that took part.
using GraphLines = std::vector<std::vector<GraphNode>>;

struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  cudaStream_t origin;
  std::atomic<bool> invalid = false;  // set by other threads, too
  GraphLines lines;
  std::vector<cudaStream_t> streams;  // that of each line
};

}  // namespace tercio::emulation

struct CUstream_st {
  int device;
  bool destroyed = false;
  std::deque<tercio::emulation::Work> queue;  // the front is running or next
  uint64_t enqueued = 0;
  uint64_t finished = 0;
  std::shared_ptr<tercio::emulation::Capture> capture;
  int line = 0;  // in the capture
};

struct CUevent_st {
  // Shared with the work that records it or waits for it, which may outlive the event.
  struct State {
    std::mutex mutex;
    uint64_t recorded = 0;          // number of the last cudaEventRecord
    uint64_t completed = 0;         // number of the last that has happened
    int64_t microseconds = 0;       // time of the device's clock when it happened
    CUstream_st* stream = nullptr;  // that it was recorded on
  };
  int device;
  bool timing;
  std::shared_ptr<State> state = std::make_shared<State>();
  // The place of its last recording, if in a capture.
  bool captured = false;
  std::weak_ptr<tercio::emulation::Capture> capture;
  int line = 0;
  size_t count = 0;
};

struct CUgraph_st {
  std::shared_ptr<const tercio::emulation::GraphLines> lines;
};
struct CUgraphExec_st {
  std::shared_ptr<const tercio::emulation::GraphLines> lines;
  std::shared_ptr<bool> busy = std::make_shared<bool>(false);  // executions do not overlap
};

namespace tercio::emulation {

class Device {
 public:
  Device(int index, const Settings& settings);

  // Appends to a stream. Runs the oldest work of a stream that is full.
  cudaError_t Enqueue(CUstream_st& stream, Work work);

  // Runs work of this device until `reached`, which is called under the lock, returns true, or
  // until it has failed. `waited` is the stream that is waited for, or null.
  cudaError_t RunUntil(CUstream_st* waited, const std::function<bool()>& reached);
  // Runs one work, if one is ready and no other thread runs any. Returns whether it did.
  bool RunOne(CUstream_st* waited);

  cudaError_t fault() const { return fault_.load(); }
  // From now on everything fails.
  void Fail(cudaError_t error) { fault_.store(error); }
  // Virtual, so that timings are the same in every run: each work takes a microsecond, plus the
  // time given to Spend.
  int64_t clock() const { return clock_.load(); }
  void Spend(int64_t microseconds) { clock_ += microseconds; }

  const int index;
  std::mutex mutex;
  // Guarded by mutex.
  std::set<CUstream_st*> streams;
  MemoryTable memory;
  std::set<int> peers;                             // that cudaDeviceEnablePeerAccess was called for
  std::map<const void*, int> kernel_shared_bytes;  // what cudaFuncSetAttribute allows
  std::chrono::steady_clock::time_point last_run = std::chrono::steady_clock::now();
  StreamOrder order;
  uint64_t random;

  bool Idle() const;  // under the lock

 private:
  bool StepUnderLock(CUstream_st* waited, std::unique_lock<std::mutex>& lock);
  std::vector<CUstream_st*> Candidates(CUstream_st* waited);
  void FinishFront(CUstream_st& stream);
  void DropAll();

  const size_t max_queued_;
  std::condition_variable changed_;
  bool running_ = false;
  std::atomic<cudaError_t> fault_{cudaSuccess};
  std::atomic<int64_t> clock_{0};
};

// Everything that CUDA keeps for a process.
class Process {
 public:
  static Process& Get();
  Process();
  ~Process();

  void Configure(const Settings& settings);
  Device& device(int index) { return *devices[static_cast<size_t>(index)]; }
  Device* CurrentDevice();

  // Guarded by mutex.
  std::mutex mutex;
  Settings settings;
  MemoryTable pinned{"pinned memory of the host"};
  std::map<cudaStream_t, std::unique_ptr<CUstream_st>> streams;
  std::map<cudaEvent_t, std::unique_ptr<CUevent_st>> events;
  std::map<cudaGraph_t, std::unique_ptr<CUgraph_st>> graphs;
  std::map<cudaGraphExec_t, std::unique_ptr<CUgraphExec_st>> executables;
  std::vector<Fault> faults;
  std::vector<std::weak_ptr<Capture>> captures;

  // Changed by Configure only.
  std::vector<std::unique_ptr<Device>> devices;
  uint64_t generation = 0;

  std::atomic<int64_t> kernels{0};
  std::atomic<int64_t> graph_launches{0};
  std::atomic<int64_t> works{0};

 private:
  void WatchIdleDevices();

  std::thread watcher_;
  std::atomic<bool> stop_{false};
};

// The state of a thread: its device and its last error, reset by Configure.
struct ThreadState {
  uint64_t generation = 0;
  int device = 0;
  cudaError_t last_error = cudaSuccess;
};
ThreadState& TheThread();

// Whether this thread runs work of a device now: CUDA must not be called then.
bool RunsWork();

// Called first in each function of CUDA: returns the error that it fails with before it has done
// anything, or cudaSuccess. Consumes injected faults of that name.
cudaError_t Enter(const char* call);
// Called last in each: remembers the error.
cudaError_t Return(cudaError_t error);
// A fault that is due at this device for `call`, else cudaSuccess.
cudaError_t TakeFault(int device, const char* call);

// This thread's work waits for another device, which must proceed, too.
void WaitsForOtherDevice();

// The live object of a handle, or null. Streams stay in memory until Configure.
CUstream_st* FindStream(cudaStream_t handle);
CUevent_st* FindEvent(cudaEvent_t handle);

// Appends to the stream, or to the graph that it captures.
cudaError_t Submit(cudaStream_t stream, Work work);
// Whether this thread must not make calls that are unsafe during its capture (allocations and the
// like).
bool CapturesHere();

// One execution of a graph as work of a stream.
Work GraphWork(const CUgraphExec_st& executable, uint64_t seed);

}  // namespace tercio::emulation
