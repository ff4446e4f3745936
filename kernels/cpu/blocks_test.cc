// Numbers of few bits in blocks (kernels/block_format.h) against the plain reference, and what the
// definition promises of them.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"

namespace tercio::kernels {
namespace {

constexpr uint64_t kSeed = 20261128;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr BlockFormat kFormats[] = {BlockFormat::kInt8, BlockFormat::kInt4};
constexpr int64_t kCounts[] = {0, 1, 2, 3, 15, 255, 256, 257, 511, 512, 513, 1000, 40961};

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

int64_t SizeOf(const Floats& x) { return static_cast<int64_t>(x.size()); }

Floats Round(const Floats& x, BlockFormat format, Format rounded = Format::kFloat32,
             int threads = 1) {
  Floats result(x.size() + 1, 77.0f);
  CreateCpuOps(threads)->RoundBlocks({result.data(), rounded}, x.data(), SizeOf(x), format);
  EXPECT_EQ(result.back(), 77.0f) << "written behind the end";
  result.pop_back();
  return result;
}

Bytes Pack(const Floats& x, BlockFormat format, int threads = 1) {
  // Bytes of a float are aligned to 4.
  const int64_t size = PackedBytes(format, SizeOf(x));
  std::vector<uint32_t> memory(static_cast<size_t>(size) / 4 + 2, 0xabababab);
  const auto* bytes = reinterpret_cast<std::byte*>(memory.data());
  CreateCpuOps(threads)->PackBlocks(reinterpret_cast<std::byte*>(memory.data()), x.data(),
                                    SizeOf(x), format);
  EXPECT_EQ(bytes[size], std::byte{0xab}) << "written behind the end";
  return {bytes, bytes + size};
}

Floats Unpack(const Bytes& packed, int64_t count, BlockFormat format,
              Format rounded = Format::kFloat32, int threads = 1) {
  Floats result(static_cast<size_t>(count) + 1, 77.0f);
  CreateCpuOps(threads)->UnpackBlocks({result.data(), rounded}, packed.data(), count, format);
  EXPECT_EQ(result.back(), 77.0f) << "written behind the end";
  result.pop_back();
  return result;
}

float ScaleOf(const Bytes& packed, size_t block) {
  float scale = 0;
  std::memcpy(&scale, packed.data() + block * 4, sizeof(scale));
  return scale;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// The packed form of what the reference has without any layout.
Bytes Layout(const reference::Blocks& blocks, BlockFormat format) {
  Bytes packed;
  for (const double scale : blocks.scales) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(scale));
    for (int i = 0; i < 4; ++i) packed.push_back(static_cast<std::byte>(bits >> 8 * i));
  }
  for (size_t i = 0; i < blocks.codes.size(); ++i) {
    const int code = blocks.codes[i];
    if (format == BlockFormat::kInt8) {
      packed.push_back(static_cast<std::byte>(code));
    } else if (i % 2 == 0) {
      packed.push_back(static_cast<std::byte>(code & 15));
    } else {
      packed.back() |= static_cast<std::byte>((code & 15) << 4);
    }
  }
  return packed;
}

class Blocks : public ::testing::Test {
 protected:
  void SetUp() override { RecordProperty("seed", std::to_string(kSeed)); }

  // Elements up to `largest`, in every block one of that magnitude.
  Floats UpTo(const Floats& largest_of_blocks) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    Floats x;
    for (const float largest : largest_of_blocks) {
      const size_t at = random_() % kBlockElements;
      for (size_t i = 0; i < kBlockElements; ++i) {
        x.push_back(i == at ? std::copysign(largest, uniform(random_))
                            : largest * uniform(random_));
      }
    }
    return x;
  }
  // Normal numbers, in blocks of different sizes.
  Floats Normal(int64_t count) {
    std::normal_distribution<float> normal;
    Floats x;
    float size = 1;
    for (int64_t i = 0; i < count; ++i) {
      if (i % kBlockElements == 0) size = std::ldexp(1.0f, static_cast<int>(random_() % 60) - 40);
      x.push_back(size * normal(random_));
    }
    return x;
  }

  // Elements halfway between two codes, and the floats beside them: any other order of operations,
  // or one rounding less, gives other codes.
  Floats NearTies(BlockFormat format, int64_t count) {
    const int most = LargestCode(format);
    std::uniform_int_distribution<int> code(-most, most - 1);
    std::uniform_real_distribution<float> fraction(1, 2);
    Floats x;
    float scale = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (i % kBlockElements == 0) {
        x.push_back(std::ldexp(fraction(random_), static_cast<int>(random_() % 60) - 40));
        scale = BlockScale(format, x.back());
        continue;
      }
      const float tie = (static_cast<float>(code(random_)) + 0.5f) * scale;
      const float nearby[] = {tie, std::nextafter(tie, kInfinity), std::nextafter(tie, -kInfinity)};
      x.push_back(nearby[random_() % 3]);
    }
    return x;
  }

  std::mt19937_64 random_{kSeed};
};

void ExpectTheDefinition(const Floats& x, BlockFormat format, int threads = 1) {
  const auto blocks =
      reference::ToBlocks(reference::Values(x.begin(), x.end()), LargestCode(format));
  const Bytes packed = Pack(x, format, threads);
  EXPECT_TRUE(SameBits(packed, Layout(blocks, format))) << x.size() << " elements";
  Floats expected;
  for (const double value : reference::FromBlocks(blocks)) {
    expected.push_back(static_cast<float>(value));
  }
  EXPECT_TRUE(SameBits(Round(x, format, Format::kFloat32, threads), expected)) << x.size();
  EXPECT_TRUE(SameBits(Unpack(packed, SizeOf(x), format, Format::kFloat32, threads), expected))
      << x.size();
}

TEST_F(Blocks, AreThoseOfTheDefinitionInEveryTarget) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target > HWY_AVX2) continue;  // older ones: Tercio needs AVX2
    hwy::SetSupportedTargetsForTest(target);
    for (const BlockFormat format : kFormats) {
      for (const int64_t count : kCounts) ExpectTheDefinition(Normal(count), format);
      ExpectTheDefinition(Normal(100'003), format, 3);
      ExpectTheDefinition(NearTies(format, 100'003), format);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

// A block by hand: the scale is 1/8.
TEST_F(Blocks, TiesGoToTheEvenCode) {
  const Floats x = {127.0f / 8, 0.5f / 8,  -0.5f / 8, 1.5f / 8,
                    2.5f / 8,   -2.5f / 8, -3.5f / 8, 0.49f / 8};
  EXPECT_TRUE(SameBits(Round(x, BlockFormat::kInt8),
                       {127.0f / 8, 0, 0, 2.0f / 8, 2.0f / 8, -2.0f / 8, -4.0f / 8, 0}));
  const Floats y = {-7.0f / 8, 0.5f / 8, 1.5f / 8, -2.5f / 8, 6.5f / 8};
  EXPECT_TRUE(
      SameBits(Round(y, BlockFormat::kInt4), {-7.0f / 8, 0, 2.0f / 8, -2.0f / 8, 6.0f / 8}));
  const Bytes packed = Pack(y, BlockFormat::kInt4);
  const uint8_t expected[] = {0, 0, 0, 0x3e, 0x09, 0xe2, 0x06};
  EXPECT_EQ(std::memcmp(packed.data(), expected, sizeof(expected)), 0);
}

// What has been rounded has the same scales and codes, whatever the largest number of a block.
void ExpectAProjection(const Floats& x, BlockFormat format) {
  const Floats once = Round(x, format);
  ASSERT_TRUE(SameBits(Round(once, format), once));
  const Bytes packed = Pack(x, format);
  ASSERT_TRUE(SameBits(Pack(once, format), packed));
  ASSERT_TRUE(SameBits(Unpack(packed, SizeOf(x), format), once));
  for (const float value : once) ASSERT_TRUE(std::isfinite(value));
}

TEST_F(Blocks, RoundingTwiceIsRoundingOnce) {
  for (const BlockFormat format : kFormats) {
    Floats largest;
    for (int i = 0; i < 8000; ++i) {
      // Every magnitude from 2^-110 up, of any fraction.
      const auto exponent = static_cast<uint32_t>(17 + random_() % 238);
      const auto fraction = static_cast<uint32_t>(random_() & 0x7fffff);
      largest.push_back(std::bit_cast<float>(exponent << 23 | fraction));
    }
    ExpectAProjection(UpTo(largest), format);
  }
}

// Largest numbers next to each other: at the end of floats, around the least block that is not
// zero, and around scales that are floats of 15 bits.
TEST_F(Blocks, RoundingTwiceIsRoundingOnceAtTheEnds) {
  for (const BlockFormat format : kFormats) {
    const auto q = static_cast<float>(LargestCode(format));
    Floats largest;
    for (const float middle : {kLargest, q * 0x1p-100f, 0x1p-100f, q * 0x1.0002p3f, q * 0x1p5f,
                               q * 0x1.fffep-7f, std::nextafter(q * 0x1.0004p90f, 0.0f)}) {
      uint32_t bits = std::bit_cast<uint32_t>(middle) - 400;
      for (int i = 0; i < 800 && bits <= std::bit_cast<uint32_t>(kLargest); ++i, ++bits) {
        largest.push_back(std::bit_cast<float>(bits));
      }
    }
    const Floats x = UpTo(largest);
    ExpectAProjection(x, format);
    ExpectTheDefinition(x, format);
  }
}

TEST_F(Blocks, ErrorsAreHalfAStepAtMost) {
  for (const BlockFormat format : kFormats) {
    const Floats x = Normal(100'000);
    const Floats rounded = Round(x, format);
    const Bytes packed = Pack(x, format);
    for (size_t i = 0; i < x.size(); ++i) {
      const double scale = ScaleOf(packed, i / kBlockElements);
      const double error = std::abs(static_cast<double>(x[i]) - rounded[i]);
      ASSERT_LE(error, scale / 2 * (1 + 0x1p-14)) << x[i];
    }
  }
}

TEST_F(Blocks, SmallBlocksAreZeros) {
  for (const BlockFormat format : kFormats) {
    Floats x = {0x1.fffffep-101f, -0x1p-101f, 0x1p-130f, -0x1p-149f, 0.0f, -0.0f};
    x.resize(kBlockElements, -0x1p-149f);
    // In another block the same numbers are too small for a code.
    x.push_back(1);
    x.insert(x.end(), x.begin(), x.begin() + 100);
    Floats expected(x.size(), 0.0f);
    expected[kBlockElements] = static_cast<float>(LargestCode(format)) * BlockScale(format, 1.0f);
    EXPECT_TRUE(SameBits(Round(x, format), expected));
    EXPECT_EQ(ScaleOf(Pack(x, format), 0), 0.0f);
    ExpectTheDefinition(x, format);
    EXPECT_TRUE(SameBits(Round(Floats(300, -0.0f), format), Floats(300, 0.0f)));
  }
}

TEST_F(Blocks, WhatIsNotFiniteMakesItsBlockNaN) {
  for (const BlockFormat format : kFormats) {
    for (const float bad : {kInfinity, -kInfinity, kNan, -kNan}) {
      for (const size_t at : {size_t{256}, size_t{300}, size_t{511}, size_t{999}}) {
        Floats x = Normal(1000);
        const Floats before = Round(x, format);
        x[at] = bad;
        const Floats rounded = Round(x, format);
        const Bytes packed = Pack(x, format);
        EXPECT_TRUE(SameBits(Unpack(packed, 1000, format), rounded));
        for (size_t i = 0; i < x.size(); ++i) {
          if (i / kBlockElements == at / kBlockElements) {
            ASSERT_TRUE(std::isnan(rounded[i])) << i;
          } else {
            ASSERT_EQ(rounded[i], before[i]) << i;
          }
        }
        ExpectTheDefinition(x, format);
        for (const Format rounding : {Format::kBfloat16, Format::kFloat16}) {
          EXPECT_TRUE(std::isnan(Round(x, format, rounding)[at]));
        }
      }
    }
  }
}

TEST_F(Blocks, ARunThatIsCutHasTheBlocksOfTheWhole) {
  const int64_t count = 256 * 5 + 77;
  for (const BlockFormat format : kFormats) {
    const Floats x = Normal(count);
    const Bytes whole = Pack(x, format);
    for (const int64_t cut : {int64_t{256}, int64_t{768}, int64_t{1280}}) {
      const Floats first(x.begin(), x.begin() + cut);
      const Floats second(x.begin() + cut, x.end());
      Floats joined = Round(first, format);
      const Floats rest = Round(second, format);
      joined.insert(joined.end(), rest.begin(), rest.end());
      EXPECT_TRUE(SameBits(joined, Round(x, format)));
      // Scales of both, then codes of both.
      Bytes packed;
      for (const bool codes : {false, true}) {
        for (const Floats& part : {first, second}) {
          const Bytes bytes = Pack(part, format);
          const auto middle = bytes.begin() + BlocksOf(SizeOf(part)) * 4;
          packed.insert(packed.end(), codes ? middle : bytes.begin(), codes ? bytes.end() : middle);
        }
      }
      EXPECT_TRUE(SameBits(packed, whole));
    }
  }
}

TEST_F(Blocks, PowersOfTwoPassThrough) {
  for (const BlockFormat format : kFormats) {
    const Floats x = Normal(5000);
    const Floats rounded = Round(x, format);
    for (const int power : {-30, -1, 1, 50, 90}) {
      Floats scaled = x;
      for (float& value : scaled) value = std::ldexp(value, power);
      Floats expected = rounded;
      for (float& value : expected) value = std::ldexp(value, power);
      EXPECT_TRUE(SameBits(Round(scaled, format), expected)) << power;
    }
  }
}

TEST_F(Blocks, AreRoundedToTheFormatOfTheResult) {
  for (const BlockFormat format : kFormats) {
    for (const Format rounding : {Format::kBfloat16, Format::kFloat16}) {
      for (const int64_t count : kCounts) {
        const Floats x = Normal(count);
        Floats expected = Round(x, format);
        CreateCpuOps(1)->Copy({expected.data(), rounding}, expected.data(), count);
        EXPECT_TRUE(SameBits(Round(x, format, rounding), expected));
        EXPECT_TRUE(SameBits(Unpack(Pack(x, format), count, format, rounding), expected));
      }
    }
  }
}

TEST_F(Blocks, AreRoundedInPlace) {
  for (const BlockFormat format : kFormats) {
    Floats x = Normal(1003);
    const Floats expected = Round(x, format);
    CreateCpuOps(2)->RoundBlocks(x.data(), x.data(), SizeOf(x), format);
    EXPECT_TRUE(SameBits(x, expected));
  }
}

TEST_F(Blocks, WithoutAFormatAreCopies) {
  const Floats x = Normal(1003);
  EXPECT_TRUE(SameBits(Round(x, BlockFormat::kNone), x));
  const Bytes packed = Pack(x, BlockFormat::kNone);
  ASSERT_EQ(packed.size(), x.size() * 4);
  EXPECT_EQ(std::memcmp(packed.data(), x.data(), packed.size()), 0);
  EXPECT_TRUE(SameBits(Unpack(packed, SizeOf(x), BlockFormat::kNone), x));
  Floats expected = x;
  CreateCpuOps(1)->Copy({expected.data(), Format::kBfloat16}, expected.data(), SizeOf(x));
  EXPECT_TRUE(SameBits(Round(x, BlockFormat::kNone, Format::kBfloat16), expected));
  EXPECT_TRUE(SameBits(Unpack(packed, SizeOf(x), BlockFormat::kNone, Format::kBfloat16), expected));
}

}  // namespace
}  // namespace tercio::kernels
