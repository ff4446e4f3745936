// The interface that saving and loading checkpoints needs from the coordinator: permissions and
// notifications.
//
// Threads: any. None of these calls waits for a disk with checkpoints.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "checkpoint/store.h"
#include "coordinator/service/coordinator.h"
#include "proto/tercio/v1/node_service.pb.h"

namespace tercio::coordinator {

// The properties of a valid save of an attempt, according to the job and its plan, whatever senders
// claim.
struct SaveTerms {
  int ranks = 0;
  absl::Duration timeout = absl::Minutes(10);
  std::string model_json;  // v1::ModelSpec
  bool own_files = false;  // ranks write their parts themselves (CheckpointSpec.path)
};

class CheckpointHost {
 public:
  virtual ~CheckpointHost() = default;

  // The store of the job's checkpoints; lives as long as the host.
  virtual checkpoint::Store& StoreOf(const std::string& job) = 0;
  // Whether (job, attempt, token) is the present attempt.
  virtual bool IsPresent(const v1::RunId& run, const std::string& token) const = 0;
  // Whether a rank of this attempt has said that it gave up its part of this save: it comes no
  // more.
  virtual bool IsGivenUp(const v1::RunId& run, int64_t step) const = 0;
  virtual absl::StatusOr<SaveTerms> TermsOf(const v1::RunId& run) const = 0;
  // Whether parts of all ranks together are the state of the job's model: every tensor of it, in
  // its shape. DATA_LOSS names what is missing.
  virtual absl::Status CheckWhole(const std::string& job,
                                  const std::vector<checkpoint::Manifest>& parts) const = 0;
  // Whether the job's record says that this attempt has committed this step.
  virtual bool HasCommitted(const v1::RunId& run, int64_t step) const = 0;
  // Waits until they are durable.
  virtual absl::Status Record(StepsDone steps) = 0;
  // Waits likewise, but not while the disk is full: then it is recorded when there is space.
  // UNAVAILABLE when the coordinator is stopping: the next one must be notified.
  virtual absl::Status Record(CheckpointCommitted committed) = 0;
  virtual void Notify(CheckpointCommitted committed) = 0;
  virtual void Notify(CheckpointFailed failed) = 0;
};

// The coordinator must outlive it.
std::unique_ptr<CheckpointHost> HostOf(Coordinator& coordinator);

}  // namespace tercio::coordinator
