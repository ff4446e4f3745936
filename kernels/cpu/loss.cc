// Soft caps of logits, and cross-entropy over a vocabulary that may be cut over tensor ranks.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/loss.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

void SoftCapElements(const SoftCapArgs& a, int64_t begin, int64_t end) {
  float* x = a.x + begin;
  const Vector cap = hn::Set(Tag(), a.cap);
  ForVectors(end - begin, [&](auto load, auto store) HWY_ATTR { store(Capped(load(x), cap), x); });
}

void CrossEntropyLocalRows(const CrossEntropyLocalArgs& a, int64_t begin, int64_t end) {
  const Tag d;
  for (int64_t r = begin; r < end; ++r) {
    const float* logits = a.logits + r * a.stride;
    float* stats = a.stats + r * kCrossEntropyStats;
    // A rank without valid columns contributes nothing: its maximum is below all others.
    stats[0] = -std::numeric_limits<float>::infinity();
    stats[1] = 0;
    stats[2] = -std::numeric_limits<float>::infinity();
    stats[3] = 0;
    if (a.valid == 0) continue;
    // Only label smoothing needs the sum of all logits.
    if (a.sums) stats[3] = SumRow(a.valid, [&](auto load) HWY_ATTR { return load(logits); });
    // With the maximum subtracted no exponential overflows.
    stats[0] = MaxRow(logits, a.valid);
    const Vector max = hn::Set(d, stats[0]);
    stats[1] = SumRow(a.valid, [&](auto load) HWY_ATTR { return Exp(hn::Sub(load(logits), max)); });
    const int64_t target = a.targets[r] - a.vocabulary_begin;
    // The target lies on one rank only; the others keep minus infinity, which the maximum ignores.
    if (target >= 0 && target < a.valid) stats[2] = logits[target];
  }
}

void CrossEntropyBackwardRows(const CrossEntropyBackwardArgs& a, int64_t begin, int64_t end) {
  const Tag d;
  const Vector scale = hn::Set(d, a.scale);
  const float each = a.smoothing.amount / static_cast<float>(a.smoothing.vocabulary);
  const Vector shared = hn::Set(d, each);
  const bool capped = a.softcap > 0;
  const Vector cap = hn::Set(d, a.softcap);
  for (int64_t r = begin; r < end; ++r) {
    float* logits = a.logits + r * a.stride;
    const Vector lse = hn::Set(d, a.lse[r]);
    const int64_t target = a.targets[r] - a.vocabulary_begin;
    const bool mine = target >= 0 && target < a.valid;
    // The logit is read before the gradient takes its place.
    const float target_logit = mine ? logits[target] : 0.0f;
    ForVectors(a.valid, [&](auto load, auto store) HWY_ATTR {
      const Vector logit = load(logits);
      const Vector gradient = hn::Mul(hn::Sub(Exp(hn::Sub(logit, lse)), shared), scale);
      store(capped ? ThroughCap(gradient, logit, cap) : gradient, logits);
    });
    if (mine) {
      // The loop above has treated the target like the others, so its gradient is computed again.
      const float p = hn::GetLane(Exp(hn::Set(d, target_logit - a.lse[r])));
      const float gradient = (p - (1.0f - a.smoothing.amount) - each) * a.scale;
      logits[target] =
          capped ? hn::GetLane(ThroughCap(hn::Set(d, gradient), hn::Set(d, target_logit), cap))
                 : gradient;
    }
    // Padding must not contribute to the products that read whole rows.
    std::fill(logits + a.valid, logits + a.stride, 0.0f);
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(SoftCapElements);
HWY_EXPORT(CrossEntropyLocalRows);
HWY_EXPORT(CrossEntropyBackwardRows);

void SoftCapCpu(const SoftCapArgs& args, ThreadPool& pool) {
  OverRows(args.count, 1, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SoftCapElements)(args, begin, end);
  });
}

void CrossEntropyLocalCpu(const CrossEntropyLocalArgs& args, ThreadPool& pool) {
  const RowBlocks split = SplitRows(args.rows, args.stride, pool.threads());
  pool.ParallelFor(split.blocks, [&](int64_t block, int) {
    const int64_t begin = block * split.rows_per_block;
    HWY_DYNAMIC_DISPATCH(CrossEntropyLocalRows)
    (args, begin, std::min(args.rows, begin + split.rows_per_block));
  });
}

void CrossEntropyCombineCpu(const CrossEntropyCombineArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    float max = -std::numeric_limits<float>::infinity();
    float target = -std::numeric_limits<float>::infinity();
    double logits = 0;
    for (int64_t rank = 0; rank < args.ranks; ++rank) {
      const float* stats = args.stats + (rank * args.rows + r) * kCrossEntropyStats;
      // The maximum over ranks is exact in any order.
      max = std::max(max, stats[0]);
      target = std::max(target, stats[2]);
      logits += stats[3];
    }
    // Ranks are added in ascending order and in double, so that all of them get the same bits.
    double sum = 0;
    for (int64_t rank = 0; rank < args.ranks; ++rank) {
      const float* stats = args.stats + (rank * args.rows + r) * kCrossEntropyStats;
      // A rank without valid columns has sum 0 and maximum -inf: exp(-inf) * 0 = 0.
      sum += stats[1] * std::exp(static_cast<double>(stats[0]) - max);
    }
    args.lse[r] = static_cast<float>(max + std::log(sum));
    args.loss[r] = args.lse[r] - target;
    if (args.smoothing.amount > 0) {
      const double mean = logits / static_cast<double>(args.smoothing.vocabulary);
      args.loss[r] += static_cast<float>(args.smoothing.amount * (target - mean));
    }
  }
}

void CrossEntropyBackwardCpu(const CrossEntropyBackwardArgs& args, ThreadPool& pool) {
  const RowBlocks split = SplitRows(args.rows, args.stride, pool.threads());
  pool.ParallelFor(split.blocks, [&](int64_t block, int) {
    const int64_t begin = block * split.rows_per_block;
    HWY_DYNAMIC_DISPATCH(CrossEntropyBackwardRows)
    (args, begin, std::min(args.rows, begin + split.rows_per_block));
  });
}

}  // namespace tercio::kernels
#endif
