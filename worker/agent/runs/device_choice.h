// Chooses the device that a node computes on, and the trainer program for it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker/agent/runs/run_manager.h"

namespace tercio::agent {

// Fills in what is open: trainer, device_kind, gpus, slots. `wanted` is "auto", "cpu" or "cuda";
// auto is cuda if there are a GPU and a trainer for it. FAILED_PRECONDITION | UNAVAILABLE if "cuda"
// is wanted but impossible.
absl::Status ChooseDevice(const std::string& wanted, AgentOptions* options);

}  // namespace tercio::agent
