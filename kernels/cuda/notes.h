// Notes for people on how operations are computed: which library is used, which of its results were
// not trusted, and what is computed in a slower way. The thread that synchronizes the stream logs
// them.
//
// Threads: thread-compatible; used by the thread that feeds the stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tercio::kernels::cuda {

struct OperationNote {
  bool warning;
  std::string text;
};

// What is computed in a slower way than was meant, since a library refused it.
enum class Fallback {
  kGelu,              // a pass of its own, behind the product
  kGeluGradient,      // likewise
  kBiasGradient,      // likewise
  kTableAlgorithm,    // of a product; the library chose another one
  kProductAlgorithm,  // of a product; another one of the library's
  kAttention,         // by our own kernel
};
inline constexpr int kFallbacks = 6;
// As labels of metrics name them.
inline const char* NameOf(Fallback what) {
  switch (what) {
    case Fallback::kGelu:
      return "gelu";
    case Fallback::kGeluGradient:
      return "gelu_gradient";
    case Fallback::kBiasGradient:
      return "bias_gradient";
    case Fallback::kTableAlgorithm:
      return "table_algorithm";
    case Fallback::kProductAlgorithm:
      return "product_algorithm";
    case Fallback::kAttention:
      return "attention";
  }
  return "";
}
// How often, by Fallback.
using FallbackCounts = std::array<int64_t, kFallbacks>;

class OperationNotes {
 public:
  void Info(std::string text) { notes_.push_back({false, std::move(text)}); }
  void Warn(std::string text) { notes_.push_back({true, std::move(text)}); }
  // Counts a shape of an operation.
  void Count(Fallback what) { ++fallbacks_[static_cast<size_t>(what)]; }
  // Counts it, too; `text`, which says why, is a warning for the first of a kind.
  void FellBack(Fallback what, std::string text) {
    Count(what);
    if (fallbacks_[static_cast<size_t>(what)] > 1) return;
    Warn(std::string("slower (") + NameOf(what) + "): " + std::move(text) +
         "; further ones of this kind are counted in tercio_gpu_fallbacks_total");
  }
  const FallbackCounts& fallbacks() const { return fallbacks_; }
  // The notes since the last call.
  std::vector<OperationNote> Take() { return std::exchange(notes_, {}); }

 private:
  std::vector<OperationNote> notes_;
  FallbackCounts fallbacks_ = {};
};

}  // namespace tercio::kernels::cuda
