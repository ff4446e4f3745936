// What saving and loading of checkpoints needs of the coordinator: who may, and whom to tell.
//
// Threads: any.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/store.h"
#include "coordinator/service/coordinator.h"
#include "proto/tercio/v1/node_service.pb.h"

namespace tercio::coordinator {

class CheckpointHost {
 public:
  virtual ~CheckpointHost() = default;

  virtual checkpoint::Store& store() = 0;
  // Whether (job, attempt, token) is the present attempt.
  virtual bool IsPresent(const v1::RunId& run, const std::string& token) const = 0;
  // v1::ModelSpec as JSON.
  virtual absl::StatusOr<std::string> ModelOf(const std::string& job) const = 0;
  // Waits until they are durable.
  virtual absl::Status Record(StepsDone steps) = 0;
  // Waits likewise, but not for a disk that takes nothing: it is recorded then when there is room.
  // UNAVAILABLE when the coordinator is stopping: the next one must be told.
  virtual absl::Status Record(CheckpointCommitted committed) = 0;
  virtual void Tell(CheckpointCommitted committed) = 0;
  virtual void Tell(CheckpointFailed failed) = 0;
};

// The coordinator must outlive it.
std::unique_ptr<CheckpointHost> HostOf(Coordinator& coordinator);

}  // namespace tercio::coordinator
