// A trainer program's report about itself and the devices of its kind, for agents and operators:
// the answers to --version and --doctor. Linked with one implementation, as the backend is.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/figures.pb.h"

namespace tercio::trainer {

// A JSON object on one line. "device": "cpu" | "cuda". With CUDA also "cuda_runtime" (a number such
// as 13020), "nccl", "cublas" and "cudnn" (versions such as "2.28.9"; absent if there is none).
std::string DescribeLibraries();

// DescribeLibraries and "gpus", a list with, for each GPU that the driver shows: "gpu" (CUDA's
// number), "name", "compute_capability", "multiprocessors", memory ("memory_total_bytes",
// "memory_free_bytes"), and measurements: products ("bf16_flops", "fp32_flops", operations per
// second), copies ("host_to_device_bytes_per_second", "device_to_host_bytes_per_second"); an
// "error" in place of a measurement that failed. "peers" is a list of pairs: "from", "to", "direct"
// (without the host between them), "bytes_per_second". "error" if CUDA cannot be used at all. Takes
// seconds. "memory_plan", with CUDA for each GPU: how much of its planned memory a small model has
// used (worker/trainer/memory_trial.h).
std::string ExamineDevices();

// The answer to --measure: what predictions of steps on this machine start from. `threads` (CPUs
// only): how many cores to measure, 0 for all that this process may use. Takes some ten seconds.
// INVALID_ARGUMENT: more cores than there are; FAILED_PRECONDITION: no GPU; errors of the devices.
absl::StatusOr<v1::MachineFigures> MeasureDevices(int threads);

}  // namespace tercio::trainer
