// The calls that rates.h times: each operation on memory of its own, at the sizes of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "tests/bench/kernels/rates.h"

namespace tercio::bench {

// Hands out parts of one block of device memory, each at a multiple of 256 bytes. Without a block
// (null) it only counts.
class Arena {
 public:
  explicit Arena(std::byte* memory) : memory_(memory) {}

  std::byte* Take(int64_t bytes);
  kernels::Values Values(int64_t count) {
    return {Take(count * 2), kernels::Format::kBfloat16, kernels::Format::kBfloat16};
  }
  float* Floats(int64_t count) { return reinterpret_cast<float*>(Take(count * 4)); }
  // All that is taken from now on lies where it lay before: cases use the same memory.
  void Reuse() { at_ = 0; }
  int64_t most() const { return most_; }

 private:
  std::byte* memory_;
  int64_t at_ = 0;
  int64_t most_ = 0;
};

struct Case {
  std::string operation;
  int64_t bytes = 0;
  double flops = 0;
  std::function<void(kernels::Ops&)> call;
  bool own_attention = false;  // computed by our own kernel, whatever library there is
};

// `indices`: as many as there are tokens, each within the vocabulary; `distinct` of them differ.
std::vector<Case> MakeCases(const Sizes& sizes, const int32_t* indices, int64_t distinct,
                            Arena& arena);

}  // namespace tercio::bench
