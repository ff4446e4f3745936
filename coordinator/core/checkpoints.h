// What the coordinator knows of a job's checkpoints (JobRecord.checkpoints), and what follows from
// it: which of them an attempt may start from, and which need not be kept. Pure.
//
// Checkpoints are ordered by their commits. A later attempt may have gone back, so the newest is
// not always the one of the highest step; what it has gone back over belongs to no history any
// more.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "proto/tercio/v1/state.pb.h"

namespace tercio::coordinator {

// Whether the checkpoint is of the job's history: no later attempt has started before it.
bool Counts(const v1::JobRecord& record, const v1::CheckpointRecord& checkpoint);

// Those that count, newest first.
std::vector<v1::CheckpointRecord> CheckpointsThatCount(const v1::JobRecord& record);

// Null: nothing is known of one of this step.
v1::CheckpointRecord* FindCheckpointRecord(v1::JobRecord& record, int64_t step);

// Adds it behind the others; one of the same step gives way.
void AddCheckpointRecord(v1::JobRecord& record, v1::CheckpointRecord checkpoint);
void RemoveCheckpointRecord(v1::JobRecord& record, int64_t step);

// For a record of a version that did not keep them: what it says of the last one.
void AddUnrecordedCheckpoint(v1::JobRecord& record);

// What may be removed, oldest first: all that was committed before the newest `keep_last` (at least
// one) whose bytes were verified, but for multiples of `keep_every` steps (0: none). One that is
// damaged, not verified yet, or of no history any more takes no other's place.
std::vector<v1::CheckpointRecord> SuperfluousCheckpoints(const v1::JobRecord& record, int keep_last,
                                                         int64_t keep_every);
// Whether the job's own retention removes that one, or has begun to.
bool IsSuperfluous(const v1::JobRecord& record, int64_t step);

// The one whose bytes have gone unverified for longest, those that never were first; null: there is
// none. What is known to be damaged is left alone.
const v1::CheckpointRecord* NextToVerify(const v1::JobRecord& record);

// Every checkpoint that was looked at and why it was not taken, one sentence each.
std::string DescribeFindings(const std::vector<CheckpointFinding>& findings);

}  // namespace tercio::coordinator
