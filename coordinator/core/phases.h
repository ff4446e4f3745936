// The phases of a job and the table of the changes between them. SetPhase is the only place that
// changes the phase of a job, and it makes no change that is not in the table.
//
// Pure.
#pragma once

#include "absl/status/status.h"
#include "proto/tercio/v1/state.pb.h"

namespace tercio::coordinator {

struct PhaseChange {
  v1::JobPhase from = v1::JOB_PHASE_UNSPECIFIED;
  v1::JobPhase to = v1::JOB_PHASE_UNSPECIFIED;
};

// Every legal change, and what brings it about. A fresh record is in the unspecified phase.
inline constexpr PhaseChange kPhaseChanges[] = {
    // The job is submitted.
    {v1::JOB_PHASE_UNSPECIFIED, v1::JOB_PHASE_QUEUED},

    // It gets devices.
    {v1::JOB_PHASE_QUEUED, v1::JOB_PHASE_PREPARING},
    // It is cancelled before it had any.
    {v1::JOB_PHASE_QUEUED, v1::JOB_PHASE_CANCELLED},

    // Data and checkpoint are known: the ranks are started.
    {v1::JOB_PHASE_PREPARING, v1::JOB_PHASE_STARTING},
    // A node is lost, is drained or leaves, or a GPU fails: no rank has to be stopped.
    {v1::JOB_PHASE_PREPARING, v1::JOB_PHASE_QUEUED},
    // The data is refused, no checkpoint can be read, or there is no plan for these devices.
    {v1::JOB_PHASE_PREPARING, v1::JOB_PHASE_FAILED},
    {v1::JOB_PHASE_PREPARING, v1::JOB_PHASE_CANCELLED},

    // All ranks train.
    {v1::JOB_PHASE_STARTING, v1::JOB_PHASE_RUNNING},
    // A fault, a move or a cancellation.
    {v1::JOB_PHASE_STARTING, v1::JOB_PHASE_STOPPING},
    // The ranks have all ended before every one of them was heard to train: the job resumed after
    // its last step.
    {v1::JOB_PHASE_STARTING, v1::JOB_PHASE_SUCCEEDED},
    // They have all ended, and too early.
    {v1::JOB_PHASE_STARTING, v1::JOB_PHASE_BACKING_OFF},
    // The same, and no restarts are left.
    {v1::JOB_PHASE_STARTING, v1::JOB_PHASE_FAILED},

    // A fault, a move or a cancellation.
    {v1::JOB_PHASE_RUNNING, v1::JOB_PHASE_STOPPING},
    // The last step is done and the ranks have all ended.
    {v1::JOB_PHASE_RUNNING, v1::JOB_PHASE_SUCCEEDED},
    // They have all ended, and too early.
    {v1::JOB_PHASE_RUNNING, v1::JOB_PHASE_BACKING_OFF},
    // The same, and no restarts are left.
    {v1::JOB_PHASE_RUNNING, v1::JOB_PHASE_FAILED},

    // A cancellation overtakes another reason to stop, or a second one hastens the first.
    {v1::JOB_PHASE_STOPPING, v1::JOB_PHASE_STOPPING},
    // No node runs anything of the attempt any more. It is tried again,
    {v1::JOB_PHASE_STOPPING, v1::JOB_PHASE_BACKING_OFF},
    // continues elsewhere,
    {v1::JOB_PHASE_STOPPING, v1::JOB_PHASE_QUEUED},
    // had finished nevertheless,
    {v1::JOB_PHASE_STOPPING, v1::JOB_PHASE_SUCCEEDED},
    // cannot be mended by a restart, or has none left,
    {v1::JOB_PHASE_STOPPING, v1::JOB_PHASE_FAILED},
    // or was to be cancelled.
    {v1::JOB_PHASE_STOPPING, v1::JOB_PHASE_CANCELLED},

    // The back-off is over.
    {v1::JOB_PHASE_BACKING_OFF, v1::JOB_PHASE_QUEUED},
    {v1::JOB_PHASE_BACKING_OFF, v1::JOB_PHASE_CANCELLED},

    // A person resumes the job: there is no other way on from an end.
    {v1::JOB_PHASE_SUCCEEDED, v1::JOB_PHASE_QUEUED},
    {v1::JOB_PHASE_FAILED, v1::JOB_PHASE_QUEUED},
    {v1::JOB_PHASE_CANCELLED, v1::JOB_PHASE_QUEUED},
};

constexpr bool MayChange(v1::JobPhase from, v1::JobPhase to) {
  for (const PhaseChange& change : kPhaseChanges) {
    if (change.from == from && change.to == to) return true;
  }
  return false;
}

constexpr bool IsTerminal(v1::JobPhase phase) {
  return phase == v1::JOB_PHASE_SUCCEEDED || phase == v1::JOB_PHASE_FAILED ||
         phase == v1::JOB_PHASE_CANCELLED;
}

// INTERNAL, with the job and both phases, where the table has no such change. Then a job that has
// ended keeps its end, and any other one has failed: what is wrong with one job must not end the
// coordinator of all of them.
absl::Status SetPhase(v1::JobRecord& record, v1::JobPhase to);

}  // namespace tercio::coordinator
