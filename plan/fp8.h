// training.fp8: which products of a layer have factors of 8 bits, and what memory they need. Pure.
//
// In each layer these are the four linear parts: forward, input gradient and weight gradient. A
// product whose sizes the hardware does not take (kernels::kScaledUnit) stays in the job's
// precision. How factors are scaled: worker/engine/fp8_scaling.h; docs/numerics.md has the whole.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "plan/memory_map.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// INVALID_ARGUMENT where a job asks for FP8 without meeting its requirements.
absl::Status CheckFp8(const v1::JobSpec& job);

enum class Linear { kQkv, kOutput, kUp, kDown };
inline constexpr std::array<Linear, 4> kLinears = {Linear::kQkv, Linear::kOutput, Linear::kUp,
                                                   Linear::kDown};

// y (rows x n) = x (rows x k) times a weight (n x k)
struct LinearSize {
  int64_t n;
  int64_t k;
};
LinearSize SizeOfLinear(const StageShape& shape, Linear linear);

// Whether a product of m x k and n x k values is one of 8 bits.
bool TakesFp8(const StageShape& shape, int64_t m, int64_t n, int64_t k);

// Whether a linear part has any such products, if its rows fit.
inline bool TakesFp8(const StageShape& shape, Linear linear) {
  const LinearSize size = SizeOfLinear(shape, linear);
  return TakesFp8(shape, kernels::kScaledUnit, size.n, size.k);
}

// Bytes of a layer's weights in 8 bits, each as it is and transposed, and where one of them lies.
struct Fp8Weight {
  int64_t plain;
  int64_t transposed;
};
int64_t Fp8LayerBytes(const StageShape& shape);
Fp8Weight Fp8WeightOf(const StageShape& shape, Linear linear);

// The largest of the linear parts: of x, of dy.
int64_t MostFp8Inputs(const StageShape& shape);
int64_t MostFp8Outputs(const StageShape& shape);

// The values scaled by statistics of the steps before: the input and the output's gradient of each
// linear part.
enum class Fp8Role { kInput, kGradient };
inline constexpr int kFp8Roles = 2;
inline constexpr int kFp8SlotsOfLayer = static_cast<int>(kLinears.size()) * kFp8Roles;
constexpr int Fp8Slot(Linear linear, Fp8Role role) {
  return static_cast<int>(linear) * kFp8Roles + static_cast<int>(role);
}

// Steps remembered for each factor, and the numbers that a layer needs for them in a checkpoint.
inline constexpr int kFp8History = 16;
inline constexpr int64_t kFp8StateOfLayer = kFp8SlotsOfLayer * kFp8History;

}  // namespace tercio::plan
