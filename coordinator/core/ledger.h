// The ledger of a job's time. Every microsecond from submission to now belongs to exactly one
// kind, so the parts sum to the whole: time is only ever closed into a kind, or moved between
// kinds.
//
// Steps count as productive (or degraded) when they are done, and become lost work when the attempt
// breaks before a checkpoint holds them. Times are seconds since 1970; one that lies before the
// last is taken for the last.
#pragma once

#include <array>
#include <cstdint>

#include "proto/tercio/v1/state.pb.h"

namespace tercio::coordinator {

void OpenLedger(v1::TimeLedger& ledger, v1::TimeKind kind, double now);

// Time since the last switch belongs to the previous kind; from `now` on, time is `kind`.
void SwitchLedger(v1::TimeLedger& ledger, v1::TimeKind kind, double now);

// Closes what has run so far, of the same kind.
void CloseLedger(v1::TimeLedger& ledger, double now);

// `seconds` of the productive or degraded time were spent waiting for a snapshot.
void ChargeStall(v1::TimeLedger& ledger, double seconds);

// A checkpoint holds this share, in [0, 1], of the work that no checkpoint held before.
void CommitWork(v1::TimeLedger& ledger, double share);

// Work that no checkpoint holds is lost.
void LoseWork(v1::TimeLedger& ledger);

// Microseconds by kind up to `now`.
std::array<int64_t, v1::TimeKind_ARRAYSIZE> LedgerTotals(const v1::TimeLedger& ledger, double now);

}  // namespace tercio::coordinator
