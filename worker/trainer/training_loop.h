// One rank of one attempt, from assignment to exit.
#pragma once

#include "absl/status/statusor.h"
#include "worker/trainer/agent_link.h"
#include "worker/trainer/checkpoint_client.h"

namespace tercio {

enum class TrainingOutcome { kFinished, kStoppedAfterSave };

// Runs the assignment of `link` to its end. On an error `*permanent` says whether a restart cannot
// help, since the fault is in the job's data or configuration.
absl::StatusOr<TrainingOutcome> RunTraining(AgentLink& link, const CheckpointIdentity& identity,
                                            bool* permanent);

}  // namespace tercio
