// training.fp8: which products of a layer have factors of 8 bits, and what memory they need. Pure.
//
// In each layer these are the linear parts: forward, input gradient and weight gradient. A
// product whose sizes the hardware does not take (kernels::kScaledUnit) stays in the job's
// precision. How factors are scaled: worker/blocks/fp8_scaling.h; docs/numerics.md has the whole.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "plan/stage_units.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

// INVALID_ARGUMENT where a job asks for FP8 without meeting its requirements.
absl::Status CheckFp8(const v1::JobSpec& job);

// Whether a product of m x k and n x k values is one of 8 bits.
bool TakesFp8(const StageShape& shape, int64_t m, int64_t n, int64_t k);

// Whether a layer's product is, if its rows fit.
inline bool TakesFp8(const StageShape& shape, const model::Product& product) {
  return TakesFp8(shape, kernels::kScaledUnit, product.outputs, product.inputs);
}

// Where the weights of the stage's products lie in 8 bits, each as it is and transposed: layer by
// layer, in the order of their products. Those that are not of 8 bits take no room.
struct Fp8Weight {
  int64_t plain;
  int64_t transposed;
};
struct Fp8Weights {
  std::vector<Fp8Weight> products;
  int64_t bytes = 0;
};
Fp8Weights Fp8WeightsOf(const StageShape& shape, const StageUnits& units);

// The largest of the products: of x, of dy.
int64_t MostFp8Inputs(const StageUnits& units);
int64_t MostFp8Outputs(const StageUnits& units);

// Products of each layer: more or fewer are not supported by jobs with FP8.
inline constexpr int kFp8ProductsOfLayer = 4;

// The values scaled by statistics of the steps before: the input and the output's gradient of each
// linear part.
enum class Fp8Role { kInput, kGradient };
inline constexpr int kFp8Roles = 2;
inline constexpr int kFp8SlotsOfLayer = kFp8ProductsOfLayer * kFp8Roles;
constexpr int Fp8Slot(int product, Fp8Role role) {
  return product * kFp8Roles + static_cast<int>(role);
}

// Steps remembered for each factor, and the numbers that a layer needs for them in a checkpoint.
inline constexpr int kFp8History = 16;
inline constexpr int64_t kFp8StateOfLayer = kFp8SlotsOfLayer * kFp8History;

}  // namespace tercio::plan
