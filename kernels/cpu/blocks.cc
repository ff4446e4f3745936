#include "kernels/cpu/blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "common/check.h"
#include "kernels/cpu/parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/blocks.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/rounding-inl.h"

// Highway includes this file once for each target, and this part shall be there once.
#ifndef TERCIO_KERNELS_CPU_BLOCKS_RUNS_
#define TERCIO_KERNELS_CPU_BLOCKS_RUNS_
namespace tercio::kernels {

// Elements, and the blocks [begin, end) of them that a call is about.
struct BlockRange {
  int64_t count;
  int64_t begin, end;

  static int64_t First(int64_t block) { return block * kBlockElements; }
  int64_t Length(int64_t block) const {
    return std::min<int64_t>(kBlockElements, count - First(block));
  }
};

// The parts of a packed run. Byte: as in BasicValues.
template <typename Byte>
struct PackedRun {
  PackedRun(Byte* packed, int64_t count, BlockFormat of_run)
      : format(of_run), scales(packed), codes(packed + BlocksOf(count) * 4) {}

  Byte* ScaleOf(int64_t block) const { return scales + block * 4; }
  Byte* CodesOf(int64_t block) const { return codes + block * CodeBytes(format, kBlockElements); }

  BlockFormat format;
  Byte* scales;
  Byte* codes;
};

}  // namespace tercio::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace tercio::kernels::HWY_NAMESPACE {

using Integers = hn::RebindToSigned<Tag>;
using Pairs = hn::ScalableTag<uint16_t>;

// The sum of this and a number of magnitude below 2^22 has a step of 1: the addition rounds to an
// integer, ties to even, whose lowest bits are those of the sum, and a subtraction gives it back.
// That is cheaper than conversions, and has no negative zero.
constexpr float kRounder = 0x1.8p23f;

// Infinite or NaN where an element is.
HWY_INLINE float LargestOfBlock(const float* x) {
  // Bits of magnitudes are ordered as the numbers are, and NaNs are above all of them.
  const Integers d;
  const auto bits_at = [&](int64_t i) HWY_ATTR {
    return hn::And(hn::BitCast(d, hn::LoadU(Tag(), x + i)), hn::Set(d, 0x7fffffff));
  };
  const int64_t lanes = Lanes();
  // Four maxima do not wait for each other. An array of them would not stay in registers.
  auto first = hn::Zero(d);
  auto second = first;
  auto third = first;
  auto fourth = first;
  for (int64_t i = 0; i < kBlockElements; i += 4 * lanes) {
    first = hn::Max(first, bits_at(i));
    second = hn::Max(second, bits_at(i + lanes));
    third = hn::Max(third, bits_at(i + 2 * lanes));
    fourth = hn::Max(fourth, bits_at(i + 3 * lanes));
  }
  const auto largest = hn::Max(hn::Max(first, second), hn::Max(third, fourth));
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(d, largest)));
}

// Code plus kRounder.
HWY_INLINE Vector RaisedCode(Vector x, Vector inverse) {
  return hn::Add(hn::Mul(x, inverse), hn::Set(Tag(), kRounder));
}

// A block of full length. `to` may be `from`.
template <Format kFormat>
HWY_INLINE void RoundBlock(const float* from, BlockFormat format, float* to) {
  const Tag d;
  const float scale = BlockScale(format, LargestOfBlock(from));
  const Vector scales = hn::Set(d, scale);
  if (!(scale > 0)) {
    // An infinite element times 0 would be a NaN of other bits than an unpacked one.
    const Vector all = RoundTo<kFormat>(scales);
    ForVectors(kBlockElements, [&](auto, auto store) HWY_ATTR { store(all, to); });
    return;
  }
  const Vector inverse = hn::Set(d, 1.0f / scale);
  ForVectors(kBlockElements, [&](auto load, auto store) HWY_ATTR {
    const Vector code = hn::Sub(RaisedCode(load(from), inverse), hn::Set(d, kRounder));
    store(RoundTo<kFormat>(hn::Mul(code, scales)), to);
  });
}

// The elements of a block: where they are, or, if they are fewer than a block's, in `padded`, with
// zeros behind them, which change neither scale nor codes.
HWY_INLINE const float* Padded(const float* from, int64_t length, float* padded) {
  if (length == kBlockElements) return from;
  std::copy_n(from, length, padded);
  std::fill_n(padded + length, kBlockElements - length, 0.0f);
  return padded;
}

// Calls body.operator()<kFormat>().
template <typename Body>
HWY_INLINE void ByRounding(Format format, const Body& body) {
  switch (format) {
    case Format::kFloat32:
      return body.template operator()<Format::kFloat32>();
    case Format::kBfloat16:
      return body.template operator()<Format::kBfloat16>();
    case Format::kFloat16:
      return body.template operator()<Format::kFloat16>();
    case Format::kE4m3:
    case Format::kE5m2:
      // Numbers of 8 bits are factors of scaled products, and nothing else.
      TERCIO_CHECK(false);
  }
}

template <Format kFormat>
HWY_INLINE void RoundAllBlocks(const BlockRange& range, const float* from, BlockFormat format,
                               float* to) {
  HWY_ALIGN float padded[kBlockElements];
  for (int64_t block = range.begin; block < range.end; ++block) {
    const int64_t first = BlockRange::First(block);
    const int64_t length = range.Length(block);
    const float* x = Padded(from + first, length, padded);
    RoundBlock<kFormat>(x, format, x == padded ? padded : to + first);
    if (x == padded) std::copy_n(padded, length, to + first);
  }
}

void RoundRangeOfBlocks(const BlockRange& range, const float* from, BlockFormat format, Values to) {
  ByRounding(to.format(), [&]<Format kFormat>() HWY_ATTR {
    RoundAllBlocks<kFormat>(range, from, format, to.floats());
  });
}

// Codes of a block of full length as bytes. Returns its scale.
HWY_INLINE float EncodeBlock(const float* from, BlockFormat format, uint8_t* codes) {
  const float scale = BlockScale(format, LargestOfBlock(from));
  if (!(scale > 0)) {
    std::fill_n(codes, kBlockElements, uint8_t{0});
    return scale;
  }
  const Vector inverse = hn::Set(Tag(), 1.0f / scale);
  const hn::Rebind<uint8_t, Tag> bytes;
  for (int64_t i = 0; i < kBlockElements; i += Lanes()) {
    const Vector code = RaisedCode(hn::LoadU(Tag(), from + i), inverse);
    hn::StoreU(hn::TruncateTo(bytes, hn::BitCast(Bits(), code)), bytes, codes + i);
  }
  return scale;
}

// In place: of each two bytes, the lower halves in one.
HWY_INLINE void JoinHalves(uint8_t* codes) {
  const Pairs d;
  const hn::Rebind<uint8_t, Pairs> bytes;
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < kBlockElements / 2; i += step) {
    const auto pair = hn::LoadU(d, reinterpret_cast<const uint16_t*>(codes) + i);
    const auto first = hn::And(pair, hn::Set(d, uint16_t{0x0f}));
    const auto second = hn::And(hn::ShiftRight<4>(pair), hn::Set(d, uint16_t{0xf0}));
    hn::StoreU(hn::TruncateTo(bytes, hn::Or(first, second)), bytes, codes + i);
  }
}

// The reverse, from other memory. Upper halves of results are 0.
HWY_INLINE void SplitHalves(const uint8_t* joined, uint8_t* codes) {
  const Pairs d;
  const hn::Rebind<uint8_t, Pairs> bytes;
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < kBlockElements / 2; i += step) {
    const auto both = hn::PromoteTo(d, hn::LoadU(bytes, joined + i));
    const auto first = hn::And(both, hn::Set(d, uint16_t{0x0f}));
    const auto second = hn::And(hn::ShiftLeft<4>(both), hn::Set(d, uint16_t{0x0f00}));
    hn::StoreU(hn::Or(first, second), d, reinterpret_cast<uint16_t*>(codes) + i);
  }
}

void PackRange(const BlockRange& range, const float* from, const PackedRun<std::byte>& to) {
  HWY_ALIGN float padded[kBlockElements];
  HWY_ALIGN uint8_t codes[kBlockElements];
  for (int64_t block = range.begin; block < range.end; ++block) {
    const int64_t length = range.Length(block);
    const float* x = Padded(from + BlockRange::First(block), length, padded);
    const float scale = EncodeBlock(x, to.format, codes);
    if (to.format == BlockFormat::kInt4) JoinHalves(codes);
    std::memcpy(to.ScaleOf(block), &scale, sizeof(scale));
    std::memcpy(to.CodesOf(block), codes, static_cast<size_t>(CodeBytes(to.format, length)));
  }
}

// Codes of kCodeBits bits, one in each byte.
template <int kCodeBits, Format kFormat>
HWY_INLINE void DecodeBlock(const uint8_t* codes, float scale, float* to) {
  const Tag d;
  const hn::Rebind<uint8_t, Tag> bytes;
  const Integers integers;
  const Vector scales = hn::Set(d, scale);
  for (int64_t i = 0; i < kBlockElements; i += Lanes()) {
    const auto wide = hn::PromoteTo(integers, hn::LoadU(bytes, codes + i));
    // The highest bit of a code is its sign.
    const auto code = hn::ShiftRight<32 - kCodeBits>(hn::ShiftLeft<32 - kCodeBits>(wide));
    hn::StoreU(RoundTo<kFormat>(hn::Mul(hn::ConvertTo(d, code), scales)), d, to + i);
  }
}

template <Format kFormat>
HWY_INLINE void UnpackAllBlocks(const BlockRange& range, const PackedRun<const std::byte>& from,
                                float* to) {
  HWY_ALIGN float padded[kBlockElements];
  HWY_ALIGN uint8_t packed[kBlockElements] = {};
  HWY_ALIGN uint8_t codes[kBlockElements];
  for (int64_t block = range.begin; block < range.end; ++block) {
    const int64_t length = range.Length(block);
    float scale = 0;
    std::memcpy(&scale, from.ScaleOf(block), sizeof(scale));
    std::memcpy(packed, from.CodesOf(block), static_cast<size_t>(CodeBytes(from.format, length)));
    float* const own = to + BlockRange::First(block);
    float* const out = length == kBlockElements ? own : padded;
    if (from.format == BlockFormat::kInt4) {
      SplitHalves(packed, codes);
      DecodeBlock<4, kFormat>(codes, scale, out);
    } else {
      DecodeBlock<8, kFormat>(packed, scale, out);
    }
    if (out == padded) std::copy_n(padded, length, own);
  }
}

void UnpackRange(const BlockRange& range, const PackedRun<const std::byte>& from, Values to) {
  ByRounding(to.format(), [&]<Format kFormat>()
                              HWY_ATTR { UnpackAllBlocks<kFormat>(range, from, to.floats()); });
}

// A block's scale, and the numbers of the table times it, as the results hold them: each is made
// once, and then only looked up.
template <size_t kCodes>
HWY_INLINE void ScaleTable(const std::array<float, kCodes>& table, float scale, Format format,
                           float* scaled) {
  for (size_t i = 0; i < kCodes; ++i) scaled[i] = table[i] * scale;
  RoundRow(scaled, static_cast<int64_t>(kCodes), format);
}

HWY_INLINE void DequantizeNf4(const uint8_t* codes, float scale, Format format, float* to) {
  HWY_ALIGN float scaled[16];
  ScaleTable(kNf4Table, scale, format, scaled);
  for (int64_t i = 0; i < kBaseBlock; i += 2) {
    to[i] = scaled[codes[i / 2] >> 4];
    to[i + 1] = scaled[codes[i / 2] & 15];
  }
}

HWY_INLINE void DequantizeInt8(const uint8_t* codes, float scale, Format format, float* to) {
  for (int64_t i = 0; i < kBaseBlock; ++i) to[i] = kDynamicMap[codes[i]] * scale;
  RoundRow(to, kBaseBlock, format);
}

void DequantizeRows(const DequantizeBlocksArgs& a, int64_t begin, int64_t end) {
  const int64_t blocks = a.columns / kBaseBlock;
  const auto* codes = reinterpret_cast<const uint8_t*>(a.codes);
  const auto* scales = reinterpret_cast<const uint8_t*>(a.scales);
  const Format format = a.to.format();
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t group = (a.first + row * a.stride + i) / kScalesOfGroup;
      const int64_t block = row * blocks + i;
      const float relative = kDynamicMap[scales[block]] * a.groups[1 + group];
      const float scale = relative + a.groups[0];
      const uint8_t* of_block = codes + CodesBytes(a.format, block * kBaseBlock);
      float* to = a.to.floats() + block * kBaseBlock;
      if (a.format == BaseFormat::kNf4) {
        DequantizeNf4(of_block, scale, format, to);
      } else {
        DequantizeInt8(of_block, scale, format, to);
      }
    }
  }
}

}  // namespace tercio::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tercio::kernels {

HWY_EXPORT(RoundRangeOfBlocks);
HWY_EXPORT(PackRange);
HWY_EXPORT(UnpackRange);
HWY_EXPORT(DequantizeRows);

namespace {

template <typename Body>
void OverBlocks(int64_t count, ThreadPool& pool, const Body& body) {
  OverRows(BlocksOf(count), kBlockElements, pool, [&](int64_t begin, int64_t end) {
    body(BlockRange{.count = count, .begin = begin, .end = end});
  });
}

}  // namespace

void RoundBlocksCpu(Values to, const float* from, int64_t count, BlockFormat format,
                    ThreadPool& pool) {
  OverBlocks(count, pool, [&](const BlockRange& range) {
    HWY_DYNAMIC_DISPATCH(RoundRangeOfBlocks)(range, from, format, to);
  });
}

void PackBlocksCpu(std::byte* packed, const float* from, int64_t count, BlockFormat format,
                   ThreadPool& pool) {
  const PackedRun<std::byte> run(packed, count, format);
  OverBlocks(count, pool, [&](const BlockRange& range) {
    HWY_DYNAMIC_DISPATCH(PackRange)(range, from, run);
  });
}

void UnpackBlocksCpu(Values to, const std::byte* packed, int64_t count, BlockFormat format,
                     ThreadPool& pool) {
  const PackedRun<const std::byte> run(packed, count, format);
  OverBlocks(count, pool, [&](const BlockRange& range) {
    HWY_DYNAMIC_DISPATCH(UnpackRange)(range, run, to);
  });
}

void DequantizeBlocksCpu(const DequantizeBlocksArgs& args, ThreadPool& pool) {
  TERCIO_CHECK(args.format != BaseFormat::kNone);
  TERCIO_CHECK_EQ(args.columns % kBaseBlock, 0);
  OverRows(args.rows, args.columns, pool, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(DequantizeRows)(args, begin, end);
  });
}

}  // namespace tercio::kernels
#endif
