// How long a rank's exchanges of the training state take, and how much of that its computing waits
// for; the rest is hidden behind it. Only on ranks whose devices are CPUs: on a GPU a clock of the
// host would tell when work is enqueued.
//
// Threads: any, but each kind of time is added to by one thread.
#pragma once

#include <array>
#include <atomic>

#include "absl/time/time.h"
#include "common/steady_time.h"

namespace tercio::progress {

class ExchangeClock {
 public:
  enum What { kGather, kReduce };  // weights, gradients

  void AddTaken(What what, double seconds) { Add(taken_[what], seconds); }
  void AddWaited(What what, double seconds) { Add(waited_[what], seconds); }
  double taken(What what) const { return taken_[what].load(std::memory_order_relaxed); }
  double waited(What what) const { return waited_[what].load(std::memory_order_relaxed); }

 private:
  static void Add(std::atomic<double>& sum, double seconds) {
    sum.store(sum.load(std::memory_order_relaxed) + seconds, std::memory_order_relaxed);
  }

  std::array<std::atomic<double>, 2> taken_{};
  std::array<std::atomic<double>, 2> waited_{};
};

}  // namespace tercio::progress
