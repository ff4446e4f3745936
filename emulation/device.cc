#include "emulation/device.h"

#include <algorithm>
#include <utility>

namespace tercio::emulation {
namespace {

// Both are about the work that this thread runs now, whichever device it belongs to.
thread_local bool runs_work = false;
thread_local bool waits_for_other_device = false;

}  // namespace

bool RunsWork() { return runs_work; }
void WaitsForOtherDevice() { waits_for_other_device = true; }

Device::Device(int number, const Settings& settings)
    : index(number),
      memory("device " + std::to_string(number)),
      order(settings.streams),
      // Each device draws its own numbers, so that an order on one does not repeat on another.
      random(settings.seed + static_cast<uint64_t>(number)),
      max_queued_(settings.max_queued) {}

bool Device::Idle() const {
  return std::all_of(streams.begin(), streams.end(),
                     [](const CUstream_st* stream) { return stream->queue.empty(); });
}

cudaError_t Device::Enqueue(CUstream_st& stream, Work work) {
  if (fault() != cudaSuccess) return fault();
  {
    // Appending does not wait for work that runs, which holds no lock meanwhile.
    std::lock_guard lock(mutex);
    stream.queue.push_back(std::move(work));
    ++stream.enqueued;
    if (stream.queue.size() <= max_queued_) return cudaSuccess;
  }
  return RunUntil(&stream, [&] { return stream.queue.size() <= max_queued_; });
}

cudaError_t Device::RunUntil(CUstream_st* waited, const std::function<bool()>& reached) {
  std::unique_lock lock(mutex);
  while (fault() == cudaSuccess && !reached()) {
    // Another thread runs work of this device. The timeout covers changes that nobody announces,
    // such as a fault of the device.
    if (running_) {
      changed_.wait_for(lock, std::chrono::milliseconds(1));
      continue;
    }
    waits_for_other_device = false;
    if (StepUnderLock(waited, lock)) continue;
    lock.unlock();
    bool helped = false;
    if (waits_for_other_device) {
      // The other device may have nobody who waits for it, and would never proceed by itself.
      for (const auto& other : Process::Get().devices) {
        if (other.get() != this) helped = other->RunOne(nullptr) || helped;
      }
    }
    // The work may wait for another process, which needs the processor.
    if (!helped) std::this_thread::sleep_for(std::chrono::microseconds(20));
    lock.lock();
  }
  if (fault() != cudaSuccess) DropAll();
  return fault();
}

bool Device::RunOne(CUstream_st* waited) {
  std::unique_lock lock(mutex);
  return fault() == cudaSuccess && !running_ && StepUnderLock(waited, lock);
}

// In the order in which they are to be tried.
std::vector<CUstream_st*> Device::Candidates(CUstream_st* waited) {
  std::vector<CUstream_st*> candidates;
  for (CUstream_st* stream : streams) {
    if (!stream->queue.empty()) candidates.push_back(stream);
  }
  // The order is drawn even where it is changed afterwards, so that the numbers that follow do not
  // depend on it.
  for (size_t i = candidates.size(); i > 1; --i) {
    std::swap(candidates[i - 1], candidates[NextRandom(random) % i]);
  }
  const auto is_waited = [&](const CUstream_st* stream) { return stream == waited; };
  if (order == StreamOrder::kWaitedFirst) {
    std::stable_partition(candidates.begin(), candidates.end(), is_waited);
  } else if (order == StreamOrder::kWaitedLast) {
    std::stable_partition(candidates.begin(), candidates.end(), std::not_fn(is_waited));
  }
  return candidates;
}

bool Device::StepUnderLock(CUstream_st* waited, std::unique_lock<std::mutex>& lock) {
  running_ = true;
  bool progress = false;
  for (CUstream_st* stream : Candidates(waited)) {
    Work& work = stream->queue.front();  // stays where it is while others append
    lock.unlock();
    runs_work = true;
    const Progress result = work.step();
    runs_work = false;
    lock.lock();
    if (result == Progress::kDone) FinishFront(*stream);
    // A fault counts as progress, so that whoever waits looks again.
    progress = result != Progress::kWaiting || fault() != cudaSuccess;
    if (progress) break;
  }
  running_ = false;
  if (progress) last_run = std::chrono::steady_clock::now();
  changed_.notify_all();
  return progress;
}

// The work is removed by the thread that ran it, under the lock.
void Device::FinishFront(CUstream_st& stream) {
  stream.queue.pop_front();
  ++stream.finished;
  Spend(1);
  ++Process::Get().works;
  if (stream.destroyed && stream.queue.empty()) streams.erase(&stream);
}

// A device that has failed runs nothing any more. Called under the lock.
void Device::DropAll() {
  if (running_) return;  // the thread that runs work comes here afterwards
  for (CUstream_st* stream : streams) {
    stream->queue.clear();
    stream->finished = stream->enqueued;
  }
}

}  // namespace tercio::emulation
