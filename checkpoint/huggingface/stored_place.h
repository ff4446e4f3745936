// Where the values of a canonical tensor are in a mapped file of transformers or peft. Values only.
#pragma once

#include <cstdint>

#include "checkpoint/float_format.h"
#include "checkpoint/huggingface/names.h"

namespace tercio::checkpoint {

// The values of output r and input c are at element part.OutputOf(r) * inputs + c of `data`, or,
// where the matrix is transposed, at c * outputs + part.OutputOf(r).
struct StoredPlace {
  const char* data = nullptr;
  FloatFormat format = FloatFormat::kF32;
  HuggingFacePart part;
  bool transposed = false;
  bool is_vector = false;
  int64_t inputs = 1;
  int64_t outputs = 0;
};

}  // namespace tercio::checkpoint
