// What a trainer program says of itself and of the devices of its kind, for agents and operators:
// the answers to --version and --doctor. Linked with one implementation, as the backend is.
#pragma once

#include <string>

namespace tercio {

// A JSON object on one line. "device": "cpu" | "cuda". With CUDA also "cuda_runtime" (a number as
// 13020), "nccl", "cublas" and "cudnn" (versions, as "2.28.9"; absent where there is none).
std::string DescribeLibraries();

// That and "gpus", a list with, for each GPU that the driver shows: "gpu" (CUDA's number), "name",
// "compute_capability", "multiprocessors", memory ("memory_total_bytes", "memory_free_bytes"), and
// what was measured: products ("bf16_flops", "fp32_flops", operations per second), copies
// ("host_to_device_bytes_per_second", "device_to_host_bytes_per_second"); instead of what failed an
// "error". "peers" is a list of pairs: "from", "to", "direct" (without the host between them),
// "bytes_per_second". "error" where nothing can be asked of CUDA at all. Takes seconds.
// "memory_plan", with CUDA of each GPU: what a small model has used of its planned memory
// (worker/trainer/memory_trial.h).
std::string ExamineDevices();

}  // namespace tercio
