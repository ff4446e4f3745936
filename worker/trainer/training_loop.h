// One rank of one attempt, from assignment to exit.
#pragma once

#include "absl/status/statusor.h"
#include "worker/progress/progress_page.h"
#include "worker/trainer/agent_link.h"
#include "worker/trainer/checkpoint_client.h"

namespace tercio::trainer {

enum class TrainingOutcome { kFinished, kStoppedAfterSave };

// Runs the assignment of `link` to its end. `page`, which may be null, shows where the rank is. On
// an error `*failure` holds what else is known: whether a restart cannot help, since the fault is
// in the job's data or configuration; which rank's weights differ from its replicas'; whether the
// run is to go back. Its message is left to the caller. Threads that hang in a file system are
// abandoned: the caller ends the process by _exit.
absl::StatusOr<TrainingOutcome> RunTraining(AgentLink& link, const CheckpointIdentity& identity,
                                            progress::ProgressPage* page,
                                            v1::TrainerFailure* failure);

}  // namespace tercio::trainer
