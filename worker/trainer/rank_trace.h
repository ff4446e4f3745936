// A rank's trace of a step, as it is reported.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "proto/tercio/v1/events.pb.h"
#include "worker/engine/training_engine.h"

namespace tercio::trainer {

// `wall_offset`: seconds from the monotonic clock of the events to wall time.
v1::RankTrace TraceOfRank(int attempt, int64_t step, int rank,
                          absl::Span<const engine::TraceEvent> events, double wall_offset);

}  // namespace tercio::trainer
