// Which algorithm of the library computes which product. The bits of a product depend on it, so a
// run keeps to one for each shape: who plans may fill the table beforehand (from a file, or by
// timing), and read afterwards what was chosen. Knows nothing of the library: an algorithm is eight
// words.
//
// Threads: thread-compatible.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>

#include "kernels/values.h"

namespace tercio::kernels::cuda {

enum class ProductKind { kForward, kInputGradient, kWeightGradient };

// Everything that the choice depends on.
struct ProductShape {
  ProductKind kind = ProductKind::kForward;
  Format operands = Format::kFloat32;
  Format result = Format::kFloat32;
  int64_t m = 0, n = 0, k = 0;  // of ops.h
  bool bias = false;
  bool accumulate = false;
  // The largest powers of two, at most 256, that divide the addresses of both factors and the
  // result.
  std::array<uint32_t, 3> alignment = {256, 256, 256};

  auto operator<=>(const ProductShape&) const = default;
};

struct ProductAlgorithm {
  std::array<uint64_t, 8> words = {};
  int64_t workspace_bytes = 0;

  bool operator==(const ProductAlgorithm&) const = default;
};

using ProductAlgorithms = std::map<ProductShape, ProductAlgorithm>;

}  // namespace tercio::kernels::cuda
