// Seconds of single operations on one accelerator: products, attention, elementwise kernels. A
// roofline (Williams et al. 2009) with what keeps kernels below it. Pure.
#pragma once

#include <cstdint>

#include "plan/planner/cost/constants.h"
#include "plan/planner/cost/hardware.h"
#include "plan/planner/cost/recipe.h"

namespace tercio::plan::cost {

enum class Factor { k16, k8, kTf32, kFp32 };  // the format of a product's factors

// `batch` products of (m x k) times (k x n).
struct ProductSize {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;
  double result_bytes = 2;  // of an element, read and written
};

struct AttentionSize {
  int64_t sequences = 0;
  int64_t queries = 0;  // rows of a sequence on this device
  int64_t keys = 0;     // rows of the whole sequence
  int64_t heads = 0;    // on this device
  int64_t key_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // most keys that a query sees; 0: all
  bool causal = true;
  bool drops = false;
};

// Kernels whose rates may differ (KernelRates).
enum class KernelKind { kPlain, kActivation, kLoss, kUpdate };

class OpTime {
 public:
  OpTime(const Accelerator& accelerator, const Constants& constants, Factor factor);

  double Product(const ProductSize& size) const { return Product(size, factor_); }
  double Product(const ProductSize& size, Factor factor) const;
  // A kernel that moves so many bytes, in so many launches.
  double Elementwise(double bytes, int kernels = 1, KernelKind kind = KernelKind::kPlain) const;
  double AttentionForward(const AttentionSize& size, const Recipe& recipe) const;
  double AttentionBackward(const AttentionSize& size, const Recipe& recipe) const;
  // Bytes of an activation.
  double value_bytes() const;
  Factor factor() const { return factor_; }

 private:
  double Rate(Factor factor) const;
  double KernelRate(KernelKind kind) const;
  double TiledFlops(const ProductSize& size) const;
  double AttentionShare(AttentionKernel kernel, bool backward) const;
  double Scores(const AttentionSize& size, const Recipe& recipe, bool backward) const;
  double Flash(const AttentionSize& size, const Recipe& recipe, bool backward) const;

  Accelerator accelerator_;
  Constants constants_;
  Factor factor_;
};

}  // namespace tercio::plan::cost
