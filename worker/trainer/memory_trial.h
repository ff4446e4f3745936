// Compares the memory plan with actual use: trains a small model for some steps on a device, in an
// arena that begins as a pattern (worker/engine/memory_use.h), and measures which of it was written
// and how much was taken outside it. For --doctor.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "proto/tercio/v1/job.pb.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"

namespace tercio::trainer {

// The model of --doctor.
v1::JobSpec TrialJob(v1::DeviceKind kind);

// Makes communicators for memory of the device from those for memory of the host; null: no
// adaptation is needed.
using CommunicatorAdapter = std::function<std::unique_ptr<collective::Communicator>(
    std::unique_ptr<collective::Communicator>)>;

// `job` is for one rank.
//
// An object: "planned_bytes" of all buffers, "touched_bytes" up to their high-water marks,
// "unused", a list of lines about buffers that were not written to their ends, "outside_bytes", the
// memory that was taken outside the arena, and "most_outside_bytes", its bound. The workspace of a
// GPU's libraries ("workspace.device") is a budget and not in "unused".
absl::StatusOr<nlohmann::json> TryMemoryPlan(device::Device& device, const v1::JobSpec& job,
                                             const CommunicatorAdapter& adapt);

// Median seconds of a step of such a job on a device whose compute stream has so many threads.
// `now`: a clock that never goes back.
absl::StatusOr<double> SecondsOfTrialStep(device::Device& device, const v1::JobSpec& job,
                                          const CommunicatorAdapter& adapt, int threads,
                                          const std::function<absl::Time()>& now);

}  // namespace tercio::trainer
