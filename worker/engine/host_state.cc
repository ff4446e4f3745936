#include "worker/engine/host_state.h"

#include "common/check.h"

namespace tercio::engine {

bool IsHostState(StateKind kind) {
  switch (kind) {
    case StateKind::kGuard:
    case StateKind::kSpikes:
    case StateKind::kFp8:
      return true;
    case StateKind::kParameter:
    case StateKind::kFirstMoment:
    case StateKind::kSecondMoment:
      break;
  }
  return false;
}

std::vector<float> HostState(const StateSlice& state, const StepGuard& guard,
                             const blocks::Fp8Scaling& scaling) {
  TERCIO_CHECK(IsHostState(state.kind));
  if (state.kind == StateKind::kSpikes) return guard.spikes().state();
  if (state.kind == StateKind::kGuard) {
    const StepGuard::State values = guard.state();
    return {values.begin(), values.end()};
  }
  const absl::Span<const float> values = scaling.state(static_cast<int>(state.offset));
  return {values.begin(), values.begin() + state.elements};
}

absl::Status RestoreHostState(const StateSlice& state, absl::Span<const float> values,
                              StepGuard& guard, blocks::Fp8Scaling& scaling) {
  TERCIO_CHECK(IsHostState(state.kind));
  if (state.kind == StateKind::kSpikes) return guard.spikes().Restore(values);
  if (state.kind == StateKind::kGuard) return guard.Restore(values);
  return scaling.Restore(static_cast<int>(state.offset), values);
}

}  // namespace tercio::engine
