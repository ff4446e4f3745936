// The digest of a buffer's bits, at the speed of memory.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/cpu/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/digest.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

constexpr uint32_t kFactor = 0x9e3779b1u;

// Digests whole vectors from `begin` on, up to *reached; returns their part of the digest. The
// first element of `a` has the number `first`.
uint64_t DigestVectors([[maybe_unused]] const float* a, [[maybe_unused]] int64_t first,
                       int64_t begin, [[maybe_unused]] int64_t end, int64_t* reached) {
  *reached = begin;
#if HWY_TARGET == HWY_SCALAR
  return 0;
#else
  const hn::RebindToUnsigned<Tag> d32;
  const hn::RepartitionToWide<decltype(d32)> d64;
  // MulEven takes the even lanes, so the odd ones move there.
  const auto odd = [&](auto v) HWY_ATTR {
    return hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, v)));
  };
  const auto lanes = static_cast<uint32_t>(Lanes());
  // k(first + begin), k(first + begin + 1), ...
  auto k = hn::Mul(hn::Iota(d32, 0), hn::Set(d32, 2 * kFactor));
  k = hn::Add(k, hn::Set(d32, (2 * static_cast<uint32_t>(first + begin) + 1) * kFactor));
  const auto step = hn::Set(d32, 2 * lanes * kFactor);
  auto even_sum = hn::Zero(d64);
  auto odd_sum = hn::Zero(d64);
  for (; *reached + lanes <= end; *reached += lanes) {
    const auto bits = hn::BitCast(d32, hn::LoadU(Tag(), a + *reached));
    even_sum = hn::Add(even_sum, hn::MulEven(bits, k));
    odd_sum = hn::Add(odd_sum, hn::MulEven(odd(bits), odd(k)));
    k = hn::Add(k, step);
  }
  // The largest vectors have eight sums of 64 bits.
  uint64_t parts[8] = {};
  hn::StoreU(hn::Add(even_sum, odd_sum), d64, parts);
  uint64_t sum = 0;
  for (const uint64_t part : parts) sum += part;
  return sum;
#endif
}

// The part of elements [begin, end) in the digest of the whole.
uint64_t DigestRange(const float* a, int64_t first, int64_t begin, int64_t end) {
  // The rest has the same formula, so the digest does not depend on the vectors.
  int64_t i = begin;
  uint64_t sum = DigestVectors(a, first, begin, end, &i);
  for (; i < end; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, a + i, sizeof(bits));
    sum += uint64_t{bits} * ((2 * static_cast<uint32_t>(first + i) + 1) * kFactor);
  }
  return sum;
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(DigestRange);

uint64_t DigestCpu(const DigestArgs& args, ThreadPool& pool) {
  // Blocks of this size keep the threads busy without many additions to the shared sum.
  constexpr int64_t kBlock = 65536;
  std::atomic<uint64_t> sum{0};  // modulo 2^64 no order matters
  if (args.rows == 1 || args.stride == args.columns) {
    const int64_t count = args.rows * args.columns;
    pool.ParallelFor((count + kBlock - 1) / kBlock, [&](int64_t block, int) {
      const int64_t begin = block * kBlock;
      sum += HWY_DYNAMIC_DISPATCH(DigestRange)(args.values, args.first, begin,
                                               std::min(count, begin + kBlock));
    });
    return sum;
  }
  const int64_t of_block = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, args.columns));
  pool.ParallelFor((args.rows + of_block - 1) / of_block, [&](int64_t block, int) {
    const int64_t end = std::min(args.rows, (block + 1) * of_block);
    uint64_t part = 0;
    for (int64_t row = block * of_block; row < end; ++row) {
      part += HWY_DYNAMIC_DISPATCH(DigestRange)(args.values + row * args.columns,
                                                args.first + row * args.stride, 0, args.columns);
    }
    sum += part;
  });
  return sum;
}

}  // namespace tercio::kernels
#endif
