#include "plan/fp8.h"

#include <algorithm>

#include "plan/precision.h"

namespace tercio::plan {
namespace {

// The same as in the memory map: vectors and products want their matrices aligned.
constexpr int64_t kScaleAlignment = 256;

int64_t RoundUpToAlignment(int64_t value) {
  return (value + kScaleAlignment - 1) / kScaleAlignment * kScaleAlignment;
}

int64_t MatrixBytes(const StageShape& shape, Linear linear) {
  const LinearSize size = SizeOfLinear(shape, linear);
  // A matrix that stays in the job's precision takes no room here.
  return TakesFp8(shape, linear) ? RoundUpToAlignment(size.n * size.k) : 0;
}

}  // namespace

absl::Status CheckFp8(const v1::JobSpec& job) {
  // Scaled products exist on tensor cores only, and their results are rounded to bf16.
  if (!HasFp8(job) || (OnGpu(job) && FormatOf(job.training()) == kernels::Format::kBfloat16)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "training.fp8 needs resources.device: cuda and training.precision: bf16");
}

LinearSize SizeOfLinear(const StageShape& shape, Linear linear) {
  switch (linear) {
    case Linear::kQkv:
      return {shape.qkv, shape.hidden};
    case Linear::kOutput:
      return {shape.hidden, shape.attention};
    case Linear::kUp:
      return {shape.up, shape.hidden};
    case Linear::kDown:
      return {shape.hidden, shape.ffn};
  }
  return {0, 0};
}

bool TakesFp8(const StageShape& shape, int64_t m, int64_t n, int64_t k) {
  // The sizes are or-ed: all are multiples of the unit exactly if their bits below it are zero.
  return shape.fp8 && m > 0 && (m | n | k) % kernels::kScaledUnit == 0;
}

int64_t Fp8LayerBytes(const StageShape& shape) {
  int64_t bytes = 0;
  // Each weight is there twice, for the factors of the forward and of the backward product.
  for (const Linear linear : kLinears) bytes += 2 * MatrixBytes(shape, linear);
  return bytes;
}

Fp8Weight Fp8WeightOf(const StageShape& shape, Linear linear) {
  int64_t at = 0;
  for (const Linear before : kLinears) {
    if (before == linear) break;
    // The order of kLinears is that of the memory, which Fp8LayerBytes sums up.
    at += 2 * MatrixBytes(shape, before);
  }
  return {at, at + MatrixBytes(shape, linear)};
}

int64_t MostFp8Inputs(const StageShape& shape) {
  int64_t most = 0;
  // Inputs of the linear parts are used one after the other, so the widest sizes the buffer.
  for (const Linear linear : kLinears) most = std::max(most, SizeOfLinear(shape, linear).k);
  return most;
}

int64_t MostFp8Outputs(const StageShape& shape) {
  int64_t most = 0;
  for (const Linear linear : kLinears) most = std::max(most, SizeOfLinear(shape, linear).n);
  return most;
}

}  // namespace tercio::plan
