// What a node computes on, and with which trainer program.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker/agent/runs/run_manager.h"

namespace tercio {

// Fills in what is open: trainer, device_kind, gpus, slots. `wanted` is "auto", "cpu" or "cuda";
// auto is cuda where there are a GPU and a trainer for it. FAILED_PRECONDITION | UNAVAILABLE when
// "cuda" is wanted and cannot be.
absl::Status ChooseDevice(const std::string& wanted, AgentOptions* options);

}  // namespace tercio
