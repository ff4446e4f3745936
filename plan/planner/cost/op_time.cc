#include "plan/planner/cost/op_time.h"

#include <algorithm>

namespace tercio::plan::cost {
namespace {

constexpr double kSmall = 1e-30;
// The inner dimension is not cut into shorter parts than this.
constexpr double kLeastDepth = 512;
// The channels of a head whose products take as long as the exponentials of its scores.
constexpr double kExponentialChannels = 32;

// Tiles of a product's result that kernels compute, and the share of the best rate that their
// inner loops reach: a smaller tile reads more for each operation.
struct Tile {
  int64_t rows;
  int64_t columns;
  double share;
};
constexpr Tile kTiles[] = {{256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.93},
                           {128, 64, 0.75}, {64, 64, 0.55},  {64, 32, 0.35}};

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool IsAligned(const ProductSize& size, Factor factor) {
  // Vectors of 16 bytes.
  const int64_t unit = factor == Factor::k8 ? 16 : factor == Factor::k16 ? 8 : 4;
  return size.k % unit == 0 && size.n % unit == 0;
}

double BytesOf(Factor factor) {
  switch (factor) {
    case Factor::k8:
      return 1;
    case Factor::k16:
      return 2;
    case Factor::kTf32:
    case Factor::kFp32:
      break;
  }
  return 4;
}

// Part of all pairs of queries and keys that are computed for blocks of `block` queries.
double SeenPart(const AttentionSize& size, bool skips, double block) {
  if (!skips) return 1;
  const auto keys = static_cast<double>(size.keys);
  const double edge = block / 2 / keys;
  if (size.window > 0 && size.window < size.keys) {
    const double window = static_cast<double>(size.window) / keys;
    return std::min(1.0, (size.causal ? window * (1 - window / 2) : window) + edge);
  }
  return size.causal ? std::min(1.0, 0.5 + edge) : 1;
}

}  // namespace

OpTime::OpTime(const Accelerator& accelerator, const Constants& constants, Factor factor)
    : accelerator_(accelerator), constants_(constants), factor_(factor) {}

double OpTime::value_bytes() const {
  if (accelerator_.value_bytes > 0) return accelerator_.value_bytes;
  return factor_ == Factor::kTf32 || factor_ == Factor::kFp32 ? 4 : 2;
}

double OpTime::Rate(Factor factor) const {
  const double share = accelerator_.product_share * accelerator_.sustained_share;
  switch (factor) {
    case Factor::k8:
      if (accelerator_.flops_8 > 0) return accelerator_.flops_8 * share * constants_.fp8_share;
      break;
    case Factor::k16:
      break;
    case Factor::kTf32:
      return accelerator_.flops_tf32 * share;
    case Factor::kFp32:
      return accelerator_.flops_fp32 * share;
  }
  return accelerator_.flops_16 * share;
}

// Operations of a processor that computes whole tiles, in waves of one tile for each processor.
double OpTime::TiledFlops(const ProductSize& size) const {
  const auto k = static_cast<double>(size.k);
  if (!accelerator_.tiles_products) {
    return 2 * k * static_cast<double>(size.m) * static_cast<double>(size.n) *
           static_cast<double>(size.batch);
  }
  const int64_t processors = std::max(1, accelerator_.processors);
  double least = 0;
  for (const Tile& tile : kTiles) {
    const int64_t tiles = DivideUp(size.m, tile.rows) * DivideUp(size.n, tile.columns) * size.batch;
    // Where there are fewer tiles than processors, kernels cut the inner dimension as well.
    const double waves =
        tiles < processors ? std::max(static_cast<double>(tiles) / static_cast<double>(processors),
                                      std::min(1.0, kLeastDepth / k))
                           : static_cast<double>(DivideUp(tiles, processors));
    const double flops = waves * static_cast<double>(processors) * 2 *
                         static_cast<double>(tile.rows * tile.columns) *
                         (k + constants_.product_depth) / tile.share;
    if (least == 0 || flops < least) least = flops;
  }
  return least;
}

double OpTime::Product(const ProductSize& size, Factor factor) const {
  if (size.m <= 0 || size.n <= 0 || size.k <= 0) return 0;
  const auto m = static_cast<double>(size.m);
  const auto n = static_cast<double>(size.n);
  const auto k = static_cast<double>(size.k);
  const auto batch = static_cast<double>(size.batch);
  // Rows that are no whole vectors do not reach the tensor cores.
  double rate = Rate(factor);
  if (accelerator_.unaligned_share > 0 && !IsAligned(size, factor)) {
    rate = std::min(rate, accelerator_.flops_16 * accelerator_.unaligned_share);
  }
  const double seconds = TiledFlops(size) / (rate + kSmall);
  if (!accelerator_.tiles_products && accelerator_.product_element_seconds > 0) {
    const double elements = batch * (m * k + k * n + m * n);
    return seconds + elements * accelerator_.product_element_seconds + accelerator_.product_seconds;
  }
  const double bytes = batch * (BytesOf(factor) * (m * k + k * n) + size.result_bytes * m * n);
  const double memory =
      bytes / (accelerator_.memory_bytes_per_second * constants_.memory_share + kSmall);
  return std::max(seconds, memory) + constants_.kernel_seconds;
}

double OpTime::KernelRate(KernelKind kind) const {
  double rate = 0;
  switch (kind) {
    case KernelKind::kPlain:
      rate = accelerator_.kernels.plain;
      break;
    case KernelKind::kActivation:
      rate = accelerator_.kernels.activation;
      break;
    case KernelKind::kLoss:
      rate = accelerator_.kernels.loss;
      break;
    case KernelKind::kUpdate:
      rate = accelerator_.kernels.update;
      break;
  }
  return rate > 0 ? rate : accelerator_.memory_bytes_per_second * constants_.memory_share;
}

double OpTime::Elementwise(double bytes, int kernels, KernelKind kind) const {
  if (bytes <= 0) return 0;
  return bytes / (KernelRate(kind) + kSmall) + kernels * constants_.kernel_seconds;
}

// Scores are stored; softmax and dropout are passes over them.
double OpTime::Scores(const AttentionSize& size, const Recipe& recipe, bool backward) const {
  const int64_t batch = size.sequences * size.heads;
  const int64_t keys = size.window > 0 ? std::min(size.window, size.keys) : size.keys;
  const double scores =
      static_cast<double>(batch) * static_cast<double>(size.queries) * static_cast<double>(keys);
  const ProductSize score{size.queries, keys, size.head_dim, batch};
  const ProductSize value{size.queries, size.head_dim, keys, batch};
  const ProductSize of_key{keys, size.head_dim, size.queries, batch};
  const bool fused = recipe.attention == AttentionKernel::kFusedSoftmax;
  const double v = value_bytes();
  if (!backward) {
    // One kernel reads and writes the scores once; separate ones scale, mask and normalise.
    double bytes = scores * (fused ? 2 * v : 6 * v);
    if (size.drops) bytes += scores * (2 * v + 1);
    return Product(score, factor_) + Product(value, factor_) + Elementwise(bytes, fused ? 2 : 4);
  }
  double bytes = scores * (fused ? 3 * v : 7 * v);
  if (size.drops) bytes += scores * (2 * v + 1);
  return Product(score, factor_) + Product(value, factor_) + 2 * Product(of_key, factor_) +
         Elementwise(bytes, fused ? 2 : 4);
}

double OpTime::AttentionShare(AttentionKernel kernel, bool backward) const {
  switch (kernel) {
    case AttentionKernel::kUnfused:
    case AttentionKernel::kFusedSoftmax:
      break;
    case AttentionKernel::kFlash:
      return backward ? constants_.flash_backward : constants_.flash_forward;
    case AttentionKernel::kFlash2:
      return backward ? constants_.flash2_backward : constants_.flash2_forward;
    case AttentionKernel::kHopper:
      return backward ? constants_.hopper_backward : constants_.hopper_forward;
    case AttentionKernel::kFlash3:
      return backward ? constants_.flash3_backward : constants_.flash3_forward;
  }
  return 1;
}

double OpTime::Flash(const AttentionSize& size, const Recipe& recipe, bool backward) const {
  const double pairs = static_cast<double>(size.sequences * size.heads) *
                       static_cast<double>(size.queries) * static_cast<double>(size.keys) *
                       SeenPart(size, recipe.skips_masked, constants_.attention_block);
  const auto head = static_cast<double>(size.head_dim);
  // Two products forward; backward five, for scores are computed again (Dao et al. 2022).
  const double flops = (backward ? 10 : 4) * pairs * head;
  double share = AttentionShare(recipe.attention, backward);
  if (recipe.attention != AttentionKernel::kFlash) {
    // Narrow heads leave the tensor cores waiting for exponentials.
    share *= std::min(1.0, head / (head + kExponentialChannels) * 1.25);
  }
  const bool legacy =
      recipe.attention == AttentionKernel::kFlash || recipe.attention == AttentionKernel::kFlash2;
  if (legacy) share *= accelerator_.legacy_share;
  const double rows = static_cast<double>(size.sequences) *
                      static_cast<double>(size.queries * size.heads + size.keys * size.key_heads);
  return flops / (Rate(factor_) * share + kSmall) +
         Elementwise((backward ? 4 : 2) * rows * head * value_bytes());
}

double OpTime::AttentionForward(const AttentionSize& size, const Recipe& recipe) const {
  return StoresScores(recipe.attention) ? Scores(size, recipe, false) : Flash(size, recipe, false);
}

double OpTime::AttentionBackward(const AttentionSize& size, const Recipe& recipe) const {
  return StoresScores(recipe.attention) ? Scores(size, recipe, true) : Flash(size, recipe, true);
}

}  // namespace tercio::plan::cost
