// Queries on the records of a job's checkpoints (JobRecord.checkpoints): which of them an attempt
// may start from, and which need not be kept. Pure.
//
// Checkpoints are ordered by their commits. A later attempt may have gone back, so the newest is
// not always the one of the highest step; the steps it went back over are no longer part of the
// history.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "proto/tercio/v1/state.pb.h"

namespace tercio::coordinator {

// Whether the checkpoint is of the job's history: no later attempt has started before it.
bool Counts(const v1::JobRecord& record, const v1::CheckpointRecord& checkpoint);

// Those that count, newest first.
std::vector<v1::CheckpointRecord> CheckpointsThatCount(const v1::JobRecord& record);

// Null: no checkpoint of this step is known.
v1::CheckpointRecord* FindCheckpointRecord(v1::JobRecord& record, int64_t step);

// Appends it, replacing one of the same step.
void AddCheckpointRecord(v1::JobRecord& record, v1::CheckpointRecord checkpoint);
void RemoveCheckpointRecord(v1::JobRecord& record, int64_t step);

// For a record written by a version that did not keep a list: adds the last checkpoint it names.
void AddUnrecordedCheckpoint(v1::JobRecord& record);

// The best evaluated step (evaluate.keep_best) among the checkpoints that count and are not known
// to be damaged; the first of equally good ones. nullopt: there is none.
std::optional<v1::BestEvaluation> BestCheckpoint(const v1::JobRecord& record);

// The checkpoints that may be removed, oldest first: all that were committed before the newest
// `keep_last` (at least one) whose bytes were verified, but for multiples of `keep_every` steps (0:
// none), for the best one, and, until the bytes of that one were verified, for the best of those
// whose bytes were. One that is damaged, not verified yet, or no longer part of the history does
// not count towards these.
std::vector<v1::CheckpointRecord> SuperfluousCheckpoints(const v1::JobRecord& record, int keep_last,
                                                         int64_t keep_every);
// Whether the job's own retention removes that one, or has begun to.
bool IsSuperfluous(const v1::JobRecord& record, int64_t step);

// The one whose bytes have gone unverified for longest, those that never were first; null: there is
// none. Checkpoints known to be damaged are skipped.
const v1::CheckpointRecord* NextToVerify(const v1::JobRecord& record);

// Every checkpoint that was examined and why it was not used, one sentence each.
std::string DescribeFindings(const std::vector<CheckpointFinding>& findings);

}  // namespace tercio::coordinator
