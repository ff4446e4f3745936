// Rotary positions: element-wise, so that nothing depends on how rows are split.
#include <algorithm>

#include "common/check.h"
#include "kernels/cpu/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rotary.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

// A position's angles: `half` cosines, and as many sines.
struct Angles {
  const float* cosine;
  const float* sine;
  int64_t half;
};

// x and y become x c - y s and x s + y c.
HWY_INLINE void Turn(Vector c, Vector s, Vector& x, Vector& y) {
  const Vector turned = hn::NegMulAdd(y, s, hn::Mul(x, c));
  y = hn::MulAdd(x, s, hn::Mul(y, c));
  x = turned;
}

// Pairs (i, i + half), as in Llama's weights from Hugging Face.
HWY_INLINE void TurnHalves(const Angles& angles, Vector sign, float* low) {
  float* high = low + angles.half;
  ForVectors(angles.half, [&](auto load, auto store) HWY_ATTR {
    Vector x = load(low);
    Vector y = load(high);
    Turn(load(angles.cosine), hn::Mul(load(angles.sine), sign), x, y);
    store(x, low);
    store(y, high);
  });
}

// Pairs (2i, 2i + 1), which lie in two vectors, taken apart and put together again.
HWY_INLINE void TurnNeighbours(const Angles& angles, Vector sign, float* head) {
  const Tag d;
  const int64_t lanes = Lanes();
  HWY_ALIGN float rest[2 * 16] = {};
  for (int64_t i = 0; i < angles.half; i += lanes) {
    const int64_t count = std::min(lanes, angles.half - i);
    // The last pairs are turned in a buffer, where they do not fill a vector.
    float* pairs = count < lanes ? rest : head + 2 * i;
    if (count < lanes) std::copy_n(head + 2 * i, 2 * count, rest);
    Vector x, y;
    hn::LoadInterleaved2(d, pairs, x, y);
    Turn(LoadFirst(angles.cosine + i, count), hn::Mul(LoadFirst(angles.sine + i, count), sign), x,
         y);
    hn::StoreInterleaved2(x, y, d, pairs);
    if (count < lanes) std::copy_n(rest, 2 * count, head + 2 * i);
  }
}

void RotaryRows(const RotaryArgs& a, int64_t begin, int64_t end) {
  const int64_t half = a.turned() / 2;
  // The inverse of a rotation has the opposite sine, and is also its gradient.
  const Vector sign = hn::Set(Tag(), a.inverse ? -1.0f : 1.0f);
  for (int64_t i = begin; i < end; ++i) {
    // The table has one row for each position, cosines before sines.
    const int64_t position = a.positions == nullptr ? i % a.tokens : a.positions[i];
    const float* cosine = a.table + position * a.turned();
    const Angles angles{cosine, cosine + half, half};
    for (int64_t head = 0; head < a.heads; ++head) {
      float* x = a.x + i * a.stride + head * a.head_dim;
      a.interleaved ? TurnNeighbours(angles, sign, x) : TurnHalves(angles, sign, x);
    }
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(RotaryRows);

void RotaryCpu(const RotaryArgs& args, ThreadPool& pool) {
  TERCIO_CHECK_EQ(args.turned() % 2, 0);
  TERCIO_CHECK_LE(args.turned(), args.head_dim);
  OverRows(args.rows, args.heads * args.head_dim, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(RotaryRows)(args, begin, end);
  });
}

}  // namespace tercio::kernels
#endif
