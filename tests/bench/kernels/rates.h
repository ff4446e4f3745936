// How fast the operations of kernels/ops.h are on a GPU at the sizes of a transformer, each alone:
// to be held against the GPU's memory bandwidth and its rate of products.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio::bench {

// Sizes of a step's micro-batch and its model; values are bf16.
struct Sizes {
  int64_t tokens = 32768;  // all of the micro-batch; a multiple of context
  int64_t context = 1024;
  int64_t hidden = 768;  // a multiple of heads and 16
  int64_t heads = 12;
  int64_t vocabulary = 50304;
  int repeats = 20;  // in a round of timing
};

struct Rate {
  std::string operation;
  // What docs/kernels.md says the operation moves; 0 of products and attention, which are bound by
  // multiply-adds.
  int64_t bytes = 0;
  double flops = 0;  // a multiply-add is two; 0 of what memory bounds
  double seconds = 0;
};

struct Rates {
  std::vector<Rate> rates;
  std::vector<std::string> notes;  // which library computes attention
};

// On the GPU that CUDA calls 0. INVALID_ARGUMENT: sizes that no model has; INTERNAL: the device, or
// an operation, and which.
absl::StatusOr<Rates> MeasureRates(const Sizes& sizes);

}  // namespace tercio::bench
