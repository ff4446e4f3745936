#include "worker/device/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "kernels/cuda/cuda_ops.h"
#include "worker/device/cuda_status.h"
#include "worker/device/pinned_ring.h"
#include "worker/device/profiler_range.h"

namespace tercio::device {
namespace {

constexpr int64_t kRingBytes = int64_t{32} << 20;    // for copies to the device
constexpr int64_t kLandingBytes = int64_t{8} << 20;  // for copies from it

// Ada (8.9) and Hopper (9.0) are the first with products of 8-bit factors.
constexpr int kFp8Capability = 89;  // 10 * major + minor

constexpr char kWork[] = "the work on the GPU";
// How a watched stream is waited for.
constexpr int64_t kEagerRounds = 200;
constexpr auto kPollInterval = std::chrono::microseconds(20);

// Which addresses of the host are pinned. Shared with the memory, which may outlive a stream.
class PinnedRanges {
 public:
  void Add(const std::byte* data, int64_t bytes) {
    MutexLock lock(mutex_);
    ranges_[data] = bytes;
  }
  void Remove(const std::byte* data) {
    MutexLock lock(mutex_);
    ranges_.erase(data);
  }
  bool Contain(const void* data, int64_t bytes) {
    const auto* begin = static_cast<const std::byte*>(data);
    MutexLock lock(mutex_);
    // Ranges do not overlap: only the last that begins at or before the address may hold it.
    const auto after = ranges_.upper_bound(begin);
    if (after == ranges_.begin()) return false;
    const auto& [start, size] = *std::prev(after);
    return begin + bytes <= start + size;
  }

 private:
  Mutex mutex_;
  std::map<const std::byte*, int64_t> ranges_ TERCIO_GUARDED_BY(mutex_);
};

// Sums over the streams of a device, which may end before it.
class FallbackTotals {
 public:
  // `before`: what of `now` was added already.
  void Add(const kernels::cuda::FallbackCounts& now, kernels::cuda::FallbackCounts* before) {
    if (now == *before) return;
    MutexLock lock(mutex_);
    for (size_t i = 0; i < now.size(); ++i) totals_[i] += now[i] - (*before)[i];
    *before = now;
  }
  kernels::cuda::FallbackCounts Read() {
    MutexLock lock(mutex_);
    return totals_;
  }

 private:
  Mutex mutex_;
  kernels::cuda::FallbackCounts totals_ TERCIO_GUARDED_BY(mutex_) = {};
};

class CudaMemory : public DeviceMemory {
 public:
  CudaMemory(std::byte* data, int64_t size) : data_(data), size_(size) {}
  ~CudaMemory() override { cudaFree(data_); }
  std::byte* data() override { return data_; }
  int64_t size_bytes() const override { return size_; }
  bool IsOnHost() const override { return false; }
  std::optional<int64_t> ResidentBytes(int64_t, int64_t) const override { return std::nullopt; }

 private:
  std::byte* data_;
  int64_t size_;
};

class PinnedMemory : public DeviceMemory {
 public:
  PinnedMemory(std::byte* data, int64_t size, std::shared_ptr<PinnedRanges> ranges)
      : data_(data), size_(size), ranges_(std::move(ranges)) {
    ranges_->Add(data_, size_);
  }
  ~PinnedMemory() override {
    // This comes first: once it is free, the address may be given to another thread.
    ranges_->Remove(data_);
    cudaFreeHost(data_);
  }
  std::byte* data() override { return data_; }
  int64_t size_bytes() const override { return size_; }
  bool IsOnHost() const override { return true; }
  std::optional<int64_t> ResidentBytes(int64_t, int64_t) const override { return std::nullopt; }

 private:
  std::byte* data_;
  int64_t size_;
  std::shared_ptr<PinnedRanges> ranges_;
};

class CudaGraph : public WorkGraph {
 public:
  explicit CudaGraph(cudaGraphExec_t executable) : executable_(executable) {}
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  cudaGraphExec_t handle() const { return executable_; }

 private:
  cudaGraphExec_t executable_;
};

class CudaEvent : public Event {
 public:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  ~CudaEvent() override { cudaEventDestroy(event_); }
  cudaEvent_t handle() const { return event_; }

 private:
  cudaEvent_t event_;
};

class CudaStream : public Stream {
 public:
  // The device must outlive the stream.
  CudaStream(Device& device, cudaStream_t stream, std::shared_ptr<PinnedRanges> ranges,
             std::shared_ptr<FallbackTotals> fallbacks, Workspace workspace,
             const CudaDeviceOptions& options)
      : device_(device),
        fallbacks_(std::move(fallbacks)),
        stream_(stream),
        ranges_(std::move(ranges)),
        algorithms_(options.algorithms),
        graphs_(options.graphs),
        ops_(kernels::cuda::CreateCudaOps({stream, workspace.data, workspace.bytes,
                                           &operation_errors_, algorithms_.get(),
                                           kernels::cuda::AttentionKernel::kAuto, &operation_notes_,
                                           options.tf32, options.fuses})) {}
  ~CudaStream() override {
    Await().IgnoreError();
    // Watches have given up the work that they could not end.
    cudaStreamSynchronize(stream_);
    // Operations and the ring need the stream for their own ends.
    ops_.reset();
    ring_.reset();
    cudaStreamDestroy(stream_);
  }

  cudaStream_t handle() const { return stream_; }
  void Fail(const absl::Status& status) { Note(status); }
  void Watch(const std::shared_ptr<StreamWatch*>& watch) {
    // Communicators may end before their streams, so the list is cleared of them here.
    std::erase_if(watches_, [](const auto& weak) { return weak.expired(); });
    // Communicators register with each of their calls.
    const bool known = std::any_of(watches_.begin(), watches_.end(),
                                   [&](const auto& weak) { return weak.lock() == watch; });
    if (!known) watches_.push_back(watch);
  }
  kernels::Ops& ops() override { return *ops_; }

  void RunOnHost(std::function<absl::Status()> function) override {
    // Callers rely on both: earlier work is done when the
    // function runs, and the function is done when this returns.
    if (Synchronize().ok()) Note(function());
  }

  void CopyToHost(void* host, const void* device, int64_t bytes) override {
    if (bytes == 0 || !status_.ok()) return;
    // CUDA copies to other memory of the host only while the caller waits.
    if (ranges_->Contain(host, bytes)) {
      return Note(
          cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_),
          "copying to the host");
    }
    MakePinned();
    for (int64_t at = 0; at < bytes && status_.ok(); at += kLandingBytes) {
      const int64_t count = std::min(kLandingBytes, bytes - at);
      // This empties the landing place: what lies there is copied to where it belongs.
      if (landed_ + count > kLandingBytes) Note(Synchronize());
      Note(cudaMemcpyAsync(landing_ + landed_, static_cast<const std::byte*>(device) + at,
                           static_cast<size_t>(count), cudaMemcpyDefault, stream_),
           "copying to the host");
      arrivals_.push_back({static_cast<std::byte*>(host) + at, landing_ + landed_, count});
      landed_ += count;
    }
  }

  void CopyFromHost(void* device, const void* host, int64_t bytes) override {
    if (bytes == 0 || !status_.ok()) return;
    MakePinned();
    for (int64_t at = 0; at < bytes && status_.ok(); at += ring_->most()) {
      const int64_t count = std::min(ring_->most(), bytes - at);
      std::byte* piece = nullptr;
      Note(ring_->Take(count, &piece));
      if (!status_.ok()) return;
      // Pinned memory is copied, too: the caller may change its bytes as soon as this returns.
      std::memcpy(piece, static_cast<const std::byte*>(host) + at, static_cast<size_t>(count));
      Note(cudaMemcpyAsync(static_cast<std::byte*>(device) + at, piece, static_cast<size_t>(count),
                           cudaMemcpyDefault, stream_),
           "copying to the device");
      Note(ring_->Release(stream_));
    }
  }

  void SetZero(void* device, int64_t bytes) override {
    if (bytes == 0) return;
    Note(cudaMemsetAsync(device, 0, static_cast<size_t>(bytes), stream_), "clearing memory");
  }

  void Record(Event& event) override {
    Note(cudaEventRecord(static_cast<CudaEvent&>(event).handle(), stream_), "recording an event");
  }
  void Wait(Event& event) override {
    Note(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).handle()),
         "waiting for an event");
  }

  void Join(Stream& other) override {
    auto& joined = static_cast<CudaStream&>(other);
    if (joined_event_ == nullptr) {
      auto made = device_.CreateEvent();
      if (!made.ok()) return Note(made.status());
      joined_event_ = *std::move(made);
    }
    joined.Record(*joined_event_);
    Wait(*joined_event_);
    // A stream is joined once per layer or so, but synchronized once.
    if (std::find(joined_.begin(), joined_.end(), &joined) == joined_.end()) {
      joined_.push_back(&joined);
    }
  }

  std::unique_ptr<WorkGraph> RecordGraph(const std::function<void()>& enqueue) override {
    if (!graphs_ || !status_.ok() || operation_errors_.first()) return nullptr;
    // What cannot be recorded has not run either, so its errors are no errors of the stream.
    const kernels::cuda::OperationErrors errors_before = operation_errors_;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    // Relaxed: other threads, and libraries that load kernels meanwhile, do as they like.
    absl::Status recorded = CudaStatus(
        cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "recording a graph");
    if (recorded.ok()) {
      enqueue();
      recorded = CudaStatus(cudaStreamEndCapture(stream_, &graph), "recording a graph");
    }
    if (recorded.ok() && status_.ok() && !operation_errors_.first()) {
      recorded = CudaStatus(cudaGraphInstantiate(&executable, graph, 0), "instantiating a graph");
    }
    if (graph != nullptr) cudaGraphDestroy(graph);
    // The executable graph is all that is launched; what it was made of is not needed any more.
    if (executable != nullptr) return std::make_unique<CudaGraph>(executable);
    const auto& error = operation_errors_.first();
    // This costs speed and changes no result, so the run continues.
    LogWarning(absl::StrCat("steps are enqueued without a CUDA graph: ",
                            error           ? absl::StrCat(error->operation, ": ", error->what)
                            : recorded.ok() ? std::string(status_.message())
                                            : std::string(recorded.message())));
    cudaGetLastError();
    operation_errors_.Forget(errors_before);
    // The stream is as it was before: the caller enqueues the work without a graph.
    status_ = absl::OkStatus();
    return nullptr;
  }
  void Launch(WorkGraph& graph) override {
    Note(cudaGraphLaunch(static_cast<CudaGraph&>(graph).handle(), stream_), "launching a graph");
  }

  void PushRange(const char* name, int64_t number) override { PushProfilerRange(name, number); }
  void PopRange() override { PopProfilerRange(); }

  absl::Status Synchronize() override {
    Note(Await());
    // A joined stream has ended with this one, but its errors are only known to itself.
    for (CudaStream* joined : joined_) Note(joined->Synchronize());
    joined_.clear();
    // Kernels include no log of ours, so what they have to say is logged here.
    for (const auto& note : operation_notes_.Take()) {
      note.warning ? LogWarning(note.text) : LogInfo(note.text);
    }
    fallbacks_->Add(operation_notes_.fallbacks(), &counted_);
    if (const auto& error = operation_errors_.first(); error.has_value()) {
      Note(absl::InternalError(absl::StrCat(error->operation, ": ", error->what)));
    }
    for (const Arrival& arrival : arrivals_) {
      // After an error the landing place may hold anything.
      if (status_.ok()) std::memcpy(arrival.to, arrival.from, static_cast<size_t>(arrival.bytes));
    }
    arrivals_.clear();
    landed_ = 0;
    return status_;
  }

 private:
  struct Arrival {
    std::byte* to;
    const std::byte* from;
    int64_t bytes;
  };

  // Not every stream copies.
  void MakePinned() {
    if (pinned_ != nullptr) return;
    // Pinning takes long, so one block serves both directions.
    auto made = device_.AllocateHost(kRingBytes + kLandingBytes);
    if (!made.ok()) return Note(made.status());
    pinned_ = *std::move(made);
    ring_ = std::make_unique<PinnedRing>(pinned_->data(), kRingBytes);
    landing_ = pinned_->data() + kRingBytes;
  }

  using Watches = std::vector<std::shared_ptr<StreamWatch*>>;

  // Watches of this stream and of those that it waits for.
  Watches LiveWatches() const {
    Watches live;
    const auto add = [&live](const CudaStream& stream) {
      for (const auto& weak : stream.watches_) {
        if (auto watch = weak.lock(); watch != nullptr) live.push_back(std::move(watch));
      }
    };
    add(*this);
    for (const CudaStream* joined : joined_) add(*joined);
    return live;
  }

  // With watches the stream is polled instead of waited for, since its work may never end.
  absl::Status Await() {
    const Watches watches = LiveWatches();
    if (watches.empty()) return CudaStatus(cudaStreamSynchronize(stream_), kWork);
    for (int64_t round = 0;; ++round) {
      const cudaError_t state = cudaStreamQuery(stream_);
      const bool ends = !IsUnderWay(state);
      absl::Status status = ends ? CudaStatus(state, kWork) : absl::OkStatus();
      for (const auto& watch : watches) {
        const absl::Status seen = (*watch)->Poll();
        // All watches are polled even after an error: each one is promised a last Poll.
        if (status.ok()) status = seen;
      }
      if (ends || !status.ok()) {
        EndWaits(watches, status);
        return status;
      }
      if (round > kEagerRounds) std::this_thread::sleep_for(kPollInterval);
    }
  }
  // A stream that has failed may still be at work on the GPU
  // for one of the watches, which alone knows how to end it.
  static void EndWaits(const Watches& watches, const absl::Status& status) {
    for (const auto& watch : watches) {
      (*watch)->EndWait();
      if (!status.ok()) (*watch)->GiveUp();
    }
  }

  void Note(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  void Note(cudaError_t error, const char* what) {
    if (error != cudaSuccess) Note(CudaStatus(error, what));
  }

  Device& device_;
  const std::shared_ptr<FallbackTotals> fallbacks_;
  kernels::cuda::FallbackCounts counted_ = {};  // of the stream's, those that are in the totals
  cudaStream_t stream_;
  std::shared_ptr<PinnedRanges> ranges_;
  std::unique_ptr<DeviceMemory> pinned_;
  std::byte* landing_ = nullptr;
  int64_t landed_ = 0;
  std::unique_ptr<PinnedRing> ring_;
  kernels::cuda::OperationErrors operation_errors_;
  const std::shared_ptr<kernels::cuda::ProductAlgorithms> algorithms_;
  const bool graphs_;
  kernels::cuda::OperationNotes operation_notes_;
  std::unique_ptr<kernels::Ops> ops_;
  std::vector<std::weak_ptr<StreamWatch*>> watches_;
  std::vector<CudaStream*> joined_;  // since the last Synchronize
  std::unique_ptr<Event> joined_event_;
  std::vector<Arrival> arrivals_;  // for memory of the host that is not pinned
  absl::Status status_;
};

// Bytes that are free, for messages.
std::string FreeMemory() {
  size_t free = 0;
  size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return "";
  return absl::StrCat(" (", free, " of ", total,
                      " bytes are free; other processes may use the GPU)");
}

class CudaDevice : public Device {
 public:
  CudaDevice(int ordinal, std::string name, CudaDeviceOptions options)
      : ordinal_(ordinal), name_(std::move(name)), options_(std::move(options)) {}

  std::string name() const override { return name_; }
  std::string DescribeProducts(kernels::Format) override { return ""; }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override {
    TERCIO_RETURN_IF_ERROR(Bind());
    void* data = nullptr;
    if (bytes == 0) return std::unique_ptr<DeviceMemory>(new CudaMemory(nullptr, 0));
    const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
    if (error != cudaSuccess) {
      cudaGetLastError();  // reported here
      return CudaStatus(error, absl::StrCat("allocating ", bytes, " bytes of ", name_, "'s memory",
                                            FreeMemory()));
    }
    // It has an owner before the next call can fail.
    auto memory = std::make_unique<CudaMemory>(static_cast<std::byte*>(data), bytes);
    // The caller may read the memory on any stream, so the clearing is waited for here.
    TERCIO_ASSIGN_OR_RETURN(const auto stream, NewStream(0));
    const cudaError_t cleared = cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream);
    const cudaError_t done = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    TERCIO_RETURN_IF_ERROR(CudaStatus(cleared != cudaSuccess ? cleared : done, "clearing memory"));
    return std::unique_ptr<DeviceMemory>(std::move(memory));
  }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateHost(int64_t bytes) override {
    TERCIO_RETURN_IF_ERROR(Bind());
    void* data = nullptr;
    if (bytes == 0) return std::unique_ptr<DeviceMemory>(new PinnedMemory(nullptr, 0, ranges_));
    const cudaError_t error = cudaMallocHost(&data, static_cast<size_t>(bytes));
    if (error != cudaSuccess) {
      cudaGetLastError();
      return CudaStatus(error, absl::StrCat("pinning ", bytes, " bytes of host memory"));
    }
    // The interface promises zeros, which CUDA does not.
    std::memset(data, 0, static_cast<size_t>(bytes));
    return std::unique_ptr<DeviceMemory>(
        new PinnedMemory(static_cast<std::byte*>(data), bytes, ranges_));
  }

  absl::StatusOr<int64_t> BytesInUse() override {
    TERCIO_RETURN_IF_ERROR(Bind());
    size_t free = 0;
    size_t total = 0;
    TERCIO_RETURN_IF_ERROR(
        CudaStatus(cudaMemGetInfo(&free, &total), "querying how much memory is in use"));
    return static_cast<int64_t>(total - free);
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind,
                                                       Workspace workspace) override {
    TERCIO_RETURN_IF_ERROR(Bind());
    int least = 0;
    int greatest = 0;
    TERCIO_RETURN_IF_ERROR(CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                      "querying stream priorities"));
    // Work that others wait for gets priority.
    TERCIO_ASSIGN_OR_RETURN(const cudaStream_t stream,
                            NewStream(kind == StreamKind::kCommunication ? greatest : least));
    return std::unique_ptr<Stream>(
        std::make_unique<CudaStream>(*this, stream, ranges_, fallbacks_, workspace, options_));
  }

  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    TERCIO_RETURN_IF_ERROR(Bind());
    // Events only order streams, and without times they cost less.
    cudaEvent_t event = nullptr;
    TERCIO_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event"));
    return std::unique_ptr<Event>(std::make_unique<CudaEvent>(event));
  }

  kernels::cuda::FallbackCounts fallbacks() { return fallbacks_->Read(); }

  // The device is the calling thread's from now on.
  absl::Status Bind() {
    return CudaStatus(cudaSetDevice(ordinal_), absl::StrCat("choosing GPU ", ordinal_));
  }

 private:
  absl::StatusOr<cudaStream_t> NewStream(int priority) {
    // Non-blocking, because work on the default stream would
    // otherwise wait for all streams, and they for it.
    cudaStream_t stream = nullptr;
    TERCIO_RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
                   "creating a stream"));
    return stream;
  }

  const int ordinal_;
  const std::string name_;
  const CudaDeviceOptions options_;
  const std::shared_ptr<PinnedRanges> ranges_ = std::make_shared<PinnedRanges>();
  const std::shared_ptr<FallbackTotals> fallbacks_ = std::make_shared<FallbackTotals>();
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int ordinal, CudaDeviceOptions options) {
  int count = 0;
  TERCIO_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "looking for GPUs"));
  // CUDA's own error would not say how many GPUs there are, nor what hides the others.
  if (ordinal < 0 || ordinal >= count) {
    return absl::FailedPreconditionError(absl::StrCat(
        "there is no GPU ", ordinal, ": the driver sees ", count, "; see CUDA_VISIBLE_DEVICES"));
  }
  cudaDeviceProp properties = {};
  TERCIO_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, ordinal), "querying the GPU's properties"));
  // A job on the wrong node ends here, with advice, instead of at its first product.
  if (options.fp8 && 10 * properties.major + properties.minor < kFp8Capability) {
    return absl::FailedPreconditionError(
        absl::StrCat("training.fp8 needs a GPU of compute capability 8.9 or higher, but ",
                     properties.name, " has ", properties.major, ".", properties.minor,
                     "; use other nodes, or resume the job with training.fp8=false"));
  }
  auto device = std::make_unique<CudaDevice>(ordinal, properties.name, std::move(options));
  TERCIO_RETURN_IF_ERROR(device->Bind());
  return std::unique_ptr<Device>(std::move(device));
}

cudaStream_t HandleOf(Stream& stream) { return static_cast<CudaStream&>(stream).handle(); }

kernels::cuda::FallbackCounts FallbacksOf(Device& device) {
  return static_cast<CudaDevice&>(device).fallbacks();
}

void FailStream(Stream& stream, const absl::Status& status) {
  static_cast<CudaStream&>(stream).Fail(status);
}

void Watch(Stream& stream, const std::shared_ptr<StreamWatch*>& watch) {
  static_cast<CudaStream&>(stream).Watch(watch);
}

}  // namespace tercio::device
