#include "plan/fp8.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "plan/precision.h"

namespace tercio::plan {
namespace {

// The same as in the memory map: vectors and products want their matrices aligned.
constexpr int64_t kScaleAlignment = 256;

int64_t RoundUpToAlignment(int64_t value) {
  return (value + kScaleAlignment - 1) / kScaleAlignment * kScaleAlignment;
}

}  // namespace

absl::Status CheckFp8(const v1::JobSpec& job) {
  if (!HasFp8(job)) return absl::OkStatus();
  // Scaled products exist on tensor cores only, and their results are rounded to bf16.
  if (!OnGpu(job) || FormatOf(job.training()) != kernels::Format::kBfloat16) {
    return absl::InvalidArgumentError(
        "training.fp8 needs resources.device: cuda and training.precision: bf16");
  }
  for (const model::Layer& kind : model::ArchitectureOf(job.model()).kinds) {
    if (model::Describe(kind, job.model().hidden(), 1).products.size() != kFp8ProductsOfLayer) {
      return absl::InvalidArgumentError(
          absl::StrCat("training.fp8 is supported for models with ", kFp8ProductsOfLayer,
                       " products in each layer; leave it out for this one"));
    }
  }
  return absl::OkStatus();
}

bool TakesFp8(const StageShape& shape, int64_t m, int64_t n, int64_t k) {
  // The sizes are or-ed: all are multiples of the unit exactly if their bits below it are zero.
  return shape.fp8 && m > 0 && (m | n | k) % kernels::kScaledUnit == 0;
}

Fp8Weights Fp8WeightsOf(const StageShape& shape, const StageUnits& units) {
  Fp8Weights weights;
  for (size_t i = 0; i < units.layers.size(); ++i) {
    for (const model::Product& product : units.layer(i).products) {
      // A matrix that stays in the job's precision takes no room here.
      const int64_t bytes =
          TakesFp8(shape, product) ? RoundUpToAlignment(product.outputs * product.inputs) : 0;
      weights.products.push_back({weights.bytes, weights.bytes + bytes});
      weights.bytes += 2 * bytes;
    }
  }
  return weights;
}

int64_t MostFp8Inputs(const StageUnits& units) {
  int64_t most = 0;
  for (const model::LayerDescription& kind : units.kinds) {
    for (const model::Product& product : kind.products) most = std::max(most, product.inputs);
  }
  return most;
}

int64_t MostFp8Outputs(const StageUnits& units) {
  int64_t most = 0;
  for (const model::LayerDescription& kind : units.kinds) {
    for (const model::Product& product : kind.products) most = std::max(most, product.outputs);
  }
  return most;
}

}  // namespace tercio::plan
