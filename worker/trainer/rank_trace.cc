#include "worker/trainer/rank_trace.h"

namespace tercio::trainer {

v1::RankTrace TraceOfRank(int attempt, int64_t step, int rank,
                          absl::Span<const engine::TraceEvent> events, double wall_offset) {
  v1::RankTrace trace;
  trace.set_attempt(attempt);
  trace.set_step(step);
  trace.set_rank(rank);
  for (const engine::TraceEvent& event : events) {
    v1::TraceEvent* out = trace.add_events();
    out->set_name(event.name);
    out->set_micro_batch(event.micro_batch);
    out->set_chunk(event.chunk);
    out->set_start_seconds(event.start + wall_offset);
    out->set_seconds(event.seconds);
    out->set_communication(event.communication);
  }
  return trace;
}

}  // namespace tercio::trainer
