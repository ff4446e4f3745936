// Figures of GPUs from NVIDIA's data sheets, for plans and for utilisation. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

struct GpuFigures {
  double flops_per_second = 0;       // dense products of 16-bit values with fp32 sums
  double tf32_flops_per_second = 0;  // products of TF32 values
  double fp32_flops_per_second = 0;  // products of fp32 values, without tensor cores
  double memory_bytes_per_second = 0;
  double link_bytes_per_second = 0;  // one direction to the GPUs of its node
  int capability = 0;                // major number of its compute capability
};

// Looked up by the driver's name of the GPU ("NVIDIA H200"); nullopt: not in the list.
std::optional<GpuFigures> FiguresOf(std::string_view model);

// The most products that it can compute in the job's precision.
double PeakFlops(const GpuFigures& figures, const v1::TrainingSpec& training);

// What a plan assumes where there is no GPU to look at, or one that says too little.
inline constexpr char kAssumedGpu[] = "NVIDIA A100-SXM4-80GB";
inline constexpr int64_t kAssumedGpuBytes = int64_t{80} << 30;

}  // namespace tercio::plan
