#include "worker/device/cpu_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/mutex.h"
#include "kernels/cpu/bf16_products.h"
#include "kernels/cpu/cpu_ops.h"

namespace tercio::device {
namespace {

class CpuMemory : public DeviceMemory {
 public:
  CpuMemory(void* data, int64_t size) : data_(data), size_(size) {}
  ~CpuMemory() override {
    // A block of no bytes was never mapped.
    if (size_ > 0) munmap(data_, static_cast<size_t>(size_));
  }
  std::byte* data() override { return static_cast<std::byte*>(data_); }
  int64_t size_bytes() const override { return size_; }
  bool IsOnHost() const override { return true; }
  std::optional<int64_t> ResidentBytes(int64_t begin, int64_t bytes) const override;

 private:
  void* data_;
  int64_t size_;
};

// The block begins with a page.
std::optional<int64_t> CpuMemory::ResidentBytes(int64_t begin, int64_t bytes) const {
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::array<unsigned char, 4096> resident{};  // one flag for each page
  const int64_t end = begin + bytes;
  int64_t sum = 0;
  for (int64_t at = begin / page * page; at < end;) {
    const auto pages = std::min<int64_t>(resident.size(), (end - at + page - 1) / page);
    if (mincore(static_cast<std::byte*>(data_) + at, static_cast<size_t>(pages * page),
                resident.data()) != 0) {
      return std::nullopt;
    }
    for (int64_t i = 0; i < pages; ++i, at += page) {
      if ((resident[static_cast<size_t>(i)] & 1) == 0) continue;
      // The first and the last page may belong to the range in part.
      sum += std::min(end, at + page) - std::max(begin, at);
    }
  }
  return sum;
}

// No heap: the measurement must not change what it measures.
absl::StatusOr<int64_t> ProcessBytesInUse() {
  // The file is one line of seven numbers.
  std::array<char, 256> text{};
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  const ssize_t count = file < 0 ? -1 : read(file, text.data(), text.size() - 1);
  // close() may change it.
  const int error = errno;
  if (file >= 0) close(file);
  long long size = 0;
  long long resident = 0;
  long long shared = 0;
  if (count <= 0 || std::sscanf(text.data(), "%lld %lld %lld", &size, &resident, &shared) != 3) {
    return absl::UnavailableError(absl::StrCat("cannot read /proc/self/statm: ",
                                               count < 0 ? std::strerror(error) : "no numbers"));
  }
  // Shared pages are those of files, which the kernel takes back when it needs them.
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

class CpuEvent : public Event {
 public:
  // A recording that has not happened yet makes waiters wait.
  void StartRecording() {
    MutexLock lock(mutex_);
    done_ = false;
  }
  void Finish() {
    MutexLock lock(mutex_);
    done_ = true;
    changed_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(mutex_);
    while (!done_) changed_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  // As in CUDA, an event that was never recorded makes nobody wait.
  bool done_ TERCIO_GUARDED_BY(mutex_) = true;
};

// Runs everything immediately in the calling thread.
class CpuStream : public Stream {
 public:
  // There is nothing to gain, since work runs when it is enqueued.
  std::unique_ptr<WorkGraph> RecordGraph(const std::function<void()>&) override { return nullptr; }
  void Launch(WorkGraph&) override {}
  bool RunsOnHost() const override { return true; }
};

class InlineStream : public CpuStream {
 public:
  explicit InlineStream(int threads) : ops_(kernels::CreateCpuOps(threads)) {}

  kernels::Ops& ops() override { return *ops_; }
  void RunOnHost(std::function<absl::Status()> function) override {
    if (status_.ok()) status_ = function();
  }
  void CopyToHost(void* host, const void* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void CopyFromHost(void* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void SetZero(void* device, int64_t bytes) override {
    std::memset(device, 0, static_cast<size_t>(bytes));
  }
  // All work before it has run already.
  void Record(Event& event) override { static_cast<CpuEvent&>(event).Finish(); }
  void Wait(Event& event) override { static_cast<CpuEvent&>(event).Wait(); }
  void Join(Stream& other) override {
    RunOnHost([&other] { return other.Synchronize(); });
  }
  absl::Status Synchronize() override { return status_; }

 private:
  std::unique_ptr<kernels::Ops> ops_;
  absl::Status status_;
};

// Runs everything in order in a thread of its own. Its operations run when called, not in stream
// order: only the functions given to RunOnHost may use them.
class ThreadStream : public CpuStream {
 public:
  // One thread, since the compute stream's pool has the cores.
  ThreadStream() : ops_(kernels::CreateCpuOps(1)), thread_([this] { Work(); }) {}
  ~ThreadStream() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }

  kernels::Ops& ops() override { return *ops_; }
  void RunOnHost(std::function<absl::Status()> function) override {
    Enqueue({std::move(function), /*always=*/false});
  }
  void RunOperations(const std::function<void(kernels::Ops&)>& work) override {
    RunOnHost([this, work] {
      work(*ops_);
      return absl::OkStatus();
    });
  }
  void CopyToHost(void* host, const void* device, int64_t bytes) override {
    RunOnHost([=] {
      std::memcpy(host, device, static_cast<size_t>(bytes));
      return absl::OkStatus();
    });
  }
  void CopyFromHost(void* device, const void* host, int64_t bytes) override {
    const auto* from = static_cast<const std::byte*>(host);
    // The caller may change its bytes as soon as this returns.
    RunOnHost([device, bytes = std::vector<std::byte>(from, from + bytes)] {
      std::memcpy(device, bytes.data(), bytes.size());
      return absl::OkStatus();
    });
  }
  void SetZero(void* device, int64_t bytes) override {
    RunOnHost([=] {
      std::memset(device, 0, static_cast<size_t>(bytes));
      return absl::OkStatus();
    });
  }
  void Record(Event& event) override {
    auto& recorded = static_cast<CpuEvent&>(event);
    recorded.StartRecording();
    // Also recorded after an error: the other stream must not wait for ever.
    Enqueue({[&recorded] {
               recorded.Finish();
               return absl::OkStatus();
             },
             /*always=*/true});
  }
  void Wait(Event& event) override {
    auto& awaited = static_cast<CpuEvent&>(event);
    RunOnHost([&awaited] {
      awaited.Wait();
      return absl::OkStatus();
    });
  }
  void Join(Stream& other) override {
    RunOnHost([&other] { return other.Synchronize(); });
  }
  absl::Status Synchronize() override {
    MutexLock lock(mutex_);
    // A function that runs has left the queue.
    while (!queue_.empty() || busy_) idle_.Wait(mutex_);
    return status_;
  }

 private:
  struct Item {
    std::function<absl::Status()> function;
    bool always;
  };

  void Enqueue(Item item) {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(item));
    changed_.NotifyAll();
  }

  void Work() {
    MutexLock lock(mutex_);
    while (true) {
      while (!stopping_ && queue_.empty()) changed_.Wait(mutex_);
      // The thread ends with an empty queue: other streams may wait for events in it.
      if (queue_.empty()) return;
      const Item item = std::move(queue_.front());
      queue_.pop_front();
      // After an error the queue still empties, or Synchronize would never return.
      if (!item.always && !status_.ok()) {
        if (queue_.empty()) idle_.NotifyAll();
        continue;
      }
      busy_ = true;
      // A function may wait for other ranks, and the engine must be able to enqueue meanwhile.
      lock.Unlock();
      const absl::Status result = item.function();
      lock.Lock();
      busy_ = false;
      if (status_.ok()) status_ = result;
      if (queue_.empty()) idle_.NotifyAll();
    }
  }

  std::unique_ptr<kernels::Ops> ops_;
  Mutex mutex_;
  ConditionVariable changed_;
  ConditionVariable idle_;
  std::deque<Item> queue_ TERCIO_GUARDED_BY(mutex_);
  bool busy_ TERCIO_GUARDED_BY(mutex_) = false;
  bool stopping_ TERCIO_GUARDED_BY(mutex_) = false;
  absl::Status status_ TERCIO_GUARDED_BY(mutex_);
  // The thread uses all members above, so it starts last and is joined before they end.
  std::thread thread_;
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads) {}

  std::string name() const override { return "cpu"; }

  std::string DescribeProducts(kernels::Format format) override {
    if (format != kernels::Format::kBfloat16) return "";
    return kernels::DescribeBf16Products(kernels::Bf16FactsOfProcess());
  }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(int64_t bytes) override {
    if (bytes == 0) return std::unique_ptr<DeviceMemory>(new CpuMemory(nullptr, 0));
    // Pages of an anonymous mapping are zero, and none takes memory before it is touched.
    void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot allocate ", bytes, " bytes of memory: ", std::strerror(errno)));
    }
    // Large pages save address translation in the big products; without them everything still
    // works.
    madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return std::unique_ptr<DeviceMemory>(new CpuMemory(data, bytes));
  }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateHost(int64_t bytes) override {
    return Allocate(bytes);
  }

  absl::StatusOr<int64_t> BytesInUse() override { return ProcessBytesInUse(); }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind, Workspace) override {
    if (kind == StreamKind::kCompute) {
      return std::unique_ptr<Stream>(std::make_unique<InlineStream>(threads_));
    }
    // A thread of its own lets sums over ranks overlap with the engine's work.
    return std::unique_ptr<Stream>(std::make_unique<ThreadStream>());
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::unique_ptr<Event>(std::make_unique<CpuEvent>());
  }

 private:
  int threads_;
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice(int threads) {
  TERCIO_CHECK_GE(threads, 1);
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace tercio::device
