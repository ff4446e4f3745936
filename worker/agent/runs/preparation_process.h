// One `tercio-trainer --prepare`: a process with a trainer's rights, bounded memory and an
// environment without secrets, in which the data, tokenizers and models of a job are read. The
// agent survives whatever they do to it.
//
// Threads: Cancel from any thread; all else, including destruction, from the thread that calls Ask;
// the process ends with that thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "proto/tercio/v1/prepare.pb.h"
#include "worker/agent/runs/trainer_user.h"

namespace tercio::agent {

// How a process ended that had not answered.
struct PreparationEnd {
  int exit_code = 0;  // valid when signal == 0
  int signal = 0;
  bool out_of_memory = false;  // killed by the kernel (memory_kill.h)
  std::string last_words;      // the end of its error output
};

// The message for people. RESOURCE_EXHAUSTED: out of memory; ABORTED: all else. Pure.
absl::Status WhyNoAnswer(const PreparationEnd& end, int64_t most_memory);

class PreparationProcess {
 public:
  struct Options {
    std::string program;              // tercio-trainer
    std::optional<TrainerUser> user;  // nullopt: the agent's
    int64_t most_memory = 0;          // its limit, not counting files that it maps; 0: none
  };
  explicit PreparationProcess(Options options) : options_(std::move(options)) {}
  // Kills it and waits.
  ~PreparationProcess();
  PreparationProcess(const PreparationProcess&) = delete;
  PreparationProcess& operator=(const PreparationProcess&) = delete;

  // Starts the process and returns its answer, however long that takes. Called once. The process
  // lives on, and holds the entries of the cache that it has read, until this is destroyed.
  // CANCELLED | INTERNAL (it cannot be started) | as WhyNoAnswer returns.
  absl::StatusOr<v1::PrepareAnswer> Ask(const v1::PrepareRequest& request);

  // Makes Ask return soon, even one that is called later.
  void Cancel();

 private:
  class Ends;
  absl::StatusOr<pid_t> Start(Ends& ends);
  bool cancelled();
  bool Kill();
  // Waits for its end, but not for long; then kills it.
  PreparationEnd WaitForEnd(pid_t pid);

  const Options options_;
  Mutex mutex_;
  bool cancelled_ TERCIO_GUARDED_BY(mutex_) = false;
  pid_t pid_ TERCIO_GUARDED_BY(mutex_) = 0;  // 0: there is none, or it was waited for
  int socket_ = -1;
};

}  // namespace tercio::agent
