// One `tercio-trainer --prepare`: a process with a trainer's rights, bounded memory and an
// environment without secrets, in which the data, tokenizers and models of a job are read. What
// they do to it, the agent survives.
//
// Threads: Cancel from any thread; all else, destruction included, by the thread that asks, with
// which the process ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/tercio/v1/prepare.pb.h"
#include "worker/agent/runs/trainer_user.h"

namespace tercio {

// How the process ended that owed an answer.
struct PreparationEnd {
  int exit_code = 0;  // valid when signal == 0
  int signal = 0;
  bool out_of_memory = false;  // killed by the kernel (memory_kill.h)
  std::string last_words;      // the end of what it printed
};

// What people are told of it. RESOURCE_EXHAUSTED: for memory; ABORTED: all else. Pure.
absl::Status WhyNoAnswer(const PreparationEnd& end, int64_t most_memory);

class PreparationProcess {
 public:
  struct Options {
    std::string program;              // tercio-trainer
    std::optional<TrainerUser> user;  // nullopt: the agent's
    int64_t most_memory = 0;          // that it may take, without files that it maps; 0: any
  };
  explicit PreparationProcess(Options options) : options_(std::move(options)) {}
  // Kills it and waits.
  ~PreparationProcess();
  PreparationProcess(const PreparationProcess&) = delete;
  PreparationProcess& operator=(const PreparationProcess&) = delete;

  // Starts the process and returns its answer; takes as long as it does. Called once. The process
  // lives on, and holds the entries of the cache that it has read, until this is destroyed.
  // CANCELLED | INTERNAL (it cannot be started) | as WhyNoAnswer says.
  absl::StatusOr<v1::PrepareAnswer> Ask(const v1::PrepareRequest& request);

  // Makes Ask return soon, also one that is still to be called.
  void Cancel();

 private:
  class Ends;
  absl::StatusOr<pid_t> Start(Ends& ends);
  bool cancelled();
  bool Kill();
  // Until it has ended, or for as long as it may take; then it is killed.
  PreparationEnd WaitForEnd();

  const Options options_;
  std::mutex mutex_;
  bool cancelled_ = false;
  pid_t pid_ = 0;  // 0: there is none, or it was waited for
  int socket_ = -1;
};

}  // namespace tercio
