#include "common/ordered_parts.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "common/check.h"
#include "common/mutex.h"

namespace tercio {
namespace {

// The number of parts beyond the number of working threads that may wait for their turn.
constexpr int64_t kWaitingParts = 4;

// Part i lives in slot i % slots, from when a maker begins it until the last taker is done.
class PartStream {
 public:
  PartStream(int64_t count, int makers, const MakePart& make, absl::Span<const TakePart> takers)
      : make_(make),
        takers_(takers),
        // A few parts more than makers keep these busy while a taker is slow.
        slots_(static_cast<size_t>(makers + kWaitingParts)),
        taken_(takers.size(), 0),
        end_(count) {}

  void MakeParts() {
    for (int64_t index = Claim(); index >= 0; index = Claim()) {
      Slot& slot = SlotOf(index);
      // The part is made without the lock, in a slot that nobody else has.
      const absl::Status status = make_(index, &slot.part);
      MutexLock lock(mutex_);
      if (!status.ok()) Fail(index, status);
      // A part that failed is marked as made, too: its takers see the end first.
      slot.made = index;
      changed_.NotifyAll();
    }
  }

  void TakeParts(size_t taker) {
    for (int64_t index = 0; Await(index); ++index) {
      const absl::Status status = takers_[taker](SlotOf(index).part.bytes);
      MutexLock lock(mutex_);
      if (!status.ok()) Fail(index, status);
      taken_[taker] = index + 1;
      changed_.NotifyAll();
    }
  }

  absl::Status status() {
    MutexLock lock(mutex_);
    return status_;
  }

 private:
  struct Slot {
    OutputPart part;
    int64_t made = -1;
  };

  Slot& SlotOf(int64_t index) { return slots_[static_cast<size_t>(index) % slots_.size()]; }

  // The next part to make, once its slot is free; -1 when there is none.
  int64_t Claim() {
    MutexLock lock(mutex_);
    // A slot is free when the slowest taker has left it.
    while (next_ < end_ && next_ >= FirstKept() + Window()) changed_.Wait(mutex_);
    return next_ < end_ ? next_++ : -1;
  }

  // Waits for part `index`; false if it will not come.
  bool Await(int64_t index) {
    MutexLock lock(mutex_);
    while (index < end_ && SlotOf(index).made != index) changed_.Wait(mutex_);
    return index < end_;
  }

  // Cancels all parts from this one on.
  void Fail(int64_t index, const absl::Status& status) TERCIO_REQUIRES(mutex_) {
    // An earlier part has failed already: its error is the one to report.
    if (index >= end_) return;
    end_ = index;
    status_ = status;
  }

  int64_t FirstKept() const TERCIO_REQUIRES(mutex_) {
    return *std::min_element(taken_.begin(), taken_.end());
  }
  int64_t Window() const { return static_cast<int64_t>(slots_.size()); }

  const MakePart& make_;
  const absl::Span<const TakePart> takers_;
  std::vector<Slot> slots_;

  Mutex mutex_;
  ConditionVariable changed_;
  // How many parts each taker is done with.
  std::vector<int64_t> taken_ TERCIO_GUARDED_BY(mutex_);
  int64_t next_ TERCIO_GUARDED_BY(mutex_) = 0;
  int64_t end_ TERCIO_GUARDED_BY(mutex_);
  absl::Status status_ TERCIO_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status StreamParts(int64_t count, int makers, const MakePart& make,
                         absl::Span<const TakePart> takers) {
  TERCIO_CHECK(makers >= 1 && !takers.empty());
  PartStream stream(count, makers, make, takers);
  std::vector<std::thread> threads;
  for (int i = 0; i < makers; ++i) threads.emplace_back([&] { stream.MakeParts(); });
  for (size_t i = 1; i < takers.size(); ++i) {
    threads.emplace_back([&stream, i] { stream.TakeParts(i); });
  }
  // The caller is a taker itself, so that one thread less is needed.
  stream.TakeParts(0);
  for (std::thread& thread : threads) thread.join();
  return stream.status();
}

void ForEachOnThreads(int64_t count, int threads, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::thread> others;
  for (int64_t i = 1; i < std::min<int64_t>(threads, count); ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
}

}  // namespace tercio
