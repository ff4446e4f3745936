// State of a rank that lies in no buffer of its arena: the step guard's, and the scales of FP8.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/blocks/fp8_scaling.h"
#include "worker/engine/state_slices.h"
#include "worker/engine/step_guard.h"

namespace tercio::engine {

bool IsHostState(StateKind kind);

// The values of a slice. REQUIRES: IsHostState(state.kind).
std::vector<float> HostState(const StateSlice& state, const StepGuard& guard,
                             const blocks::Fp8Scaling& scaling);

// INVALID_ARGUMENT if `values` are not a possible result of HostState. REQUIRES: as there.
absl::Status RestoreHostState(const StateSlice& state, absl::Span<const float> values,
                              StepGuard& guard, blocks::Fp8Scaling& scaling);

}  // namespace tercio::engine
