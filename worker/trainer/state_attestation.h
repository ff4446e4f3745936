// When a trainer measures the digest of the state of all ranks (plan/state_digest.h), and what it
// is compared with: steps record it, checkpoints carry it, and a run that resumes shows that it has
// what was saved, in whichever layout.
//
// Threads: that of the training loop; the methods that measure are collective.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/tercio/v1/trainer.pb.h"
#include "worker/engine/training_engine.h"

namespace tercio::trainer {

class StateAttestation {
 public:
  // The assignment outlives it.
  explicit StateAttestation(const v1::TrainerAssignment& assignment) : assignment_(assignment) {}

  // Whether the step's record has the digest: every fault_tolerance.check_replicas_every steps, and
  // after the last.
  bool IsRecorded(int64_t step) const;
  // The digest after `step`, which is the last one of the engine: measured once.
  absl::StatusOr<uint64_t> After(int64_t step, engine::TrainingEngine& engine);
  // After loading: DATA_LOSS if the state is not what the checkpoint's trainers had. Nothing where
  // the checkpoint does not tell.
  absl::Status CheckLoaded(engine::TrainingEngine& engine);

 private:
  const v1::TrainerAssignment& assignment_;
  int64_t step_ = -1;  // of digest_; -1: none
  uint64_t digest_ = 0;
};

// "training_state" of a checkpoint's manifest (docs/formats.md).
std::string TrainingStateJson(const v1::TrainerAssignment& assignment, int64_t step, int64_t tokens,
                              uint64_t digest);

}  // namespace tercio::trainer
