// Which algorithm of the library computes which product. The bits of a product depend on it, so a
// run keeps to one for each shape: the planner may fill the table beforehand (from a file, or by
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

// Tables store the numbers: new kinds come last.
enum class ProductKind {
  kForward,
  kInputGradient,
  kWeightGradient,
  kScaled,      // of factors of 8 bits
  kScaledFast,  // the same with fast accumulation: another problem for the library
};
inline bool IsScaled(ProductKind kind) {
  return kind == ProductKind::kScaled || kind == ProductKind::kScaledFast;
}

// The operation on a result before it is written.
enum class ProductEpilogue {
  kNone,
  kGelu,          // forward: y is written as it is, and GELU of it beside it
  kGeluGradient,  // input gradient: times the slope of GELU
  kBiasGradient,  // weight gradient: the bias's beside it
};

// More alignment than this is not faster.
inline constexpr uint32_t kProductAlignment = 16;

// Everything that the choice depends on.
struct ProductShape {
  ProductKind kind = ProductKind::kForward;
  Format operands =
      Format::kFloat32;  // for a scaled product, its first factor's; the other's is E4M3
  Format result = Format::kFloat32;
  int64_t m = 0, n = 0, k = 0;  // sizes as in ops.h
  ProductEpilogue epilogue = ProductEpilogue::kNone;
  bool bias = false;
  bool accumulate = false;
  bool tf32 = false;  // factors of fp32 may be rounded to 10 bits behind the point
  // The largest powers of two, at most kProductAlignment, that divide the addresses of both factors
  // and the result.
  std::array<uint32_t, 3> alignment = {kProductAlignment, kProductAlignment, kProductAlignment};

  auto operator<=>(const ProductShape&) const = default;
};

struct ProductAlgorithm {
  std::array<uint64_t, 8> words = {};
  int64_t workspace_bytes = 0;

  bool operator==(const ProductAlgorithm&) const = default;
};
// Marks a shape whose epilogue the library lacks: it is computed separately.
inline constexpr ProductAlgorithm kNoAlgorithm = {{}, -1};
// Marks a shape whose epilogue is computed separately because that was measured to be faster.
inline constexpr ProductAlgorithm kSeparateEpilogue = {{}, -2};

using ProductAlgorithms = std::map<ProductShape, ProductAlgorithm>;

}  // namespace tercio::kernels::cuda
