// Commands of the agent to a trainer that has just attached: its assignment comes before anything
// else. Commands that arrive while the assignment is still being written (a save, a stop) wait for
// it.
//
// Threads: Send from any; Open once.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "proto/tercio/v1/trainer.pb.h"

namespace tercio::agent {

class CommandStream {
 public:
  using Write = std::function<void(const v1::TrainerCommand&)>;
  // `write` is called by one thread at a time.
  explicit CommandStream(Write write) : write_(std::move(write)) {}

  // Writes `first`, then the commands that were sent meanwhile.
  void Open(const std::vector<v1::TrainerCommand>& first) {
    MutexLock lock(mutex_);
    for (const v1::TrainerCommand& command : first) write_(command);
    for (const v1::TrainerCommand& command : std::exchange(early_, {})) write_(command);
    open_ = true;
  }

  void Send(const v1::TrainerCommand& command) {
    MutexLock lock(mutex_);
    if (open_) {
      write_(command);
    } else {
      early_.push_back(command);
    }
  }

 private:
  const Write write_;
  Mutex mutex_;
  bool open_ TERCIO_GUARDED_BY(mutex_) = false;
  std::vector<v1::TrainerCommand> early_ TERCIO_GUARDED_BY(mutex_);
};

}  // namespace tercio::agent
