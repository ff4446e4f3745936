// Each operation against plain loops and the CPU's operations: odd sizes, unaligned starts, every
// storage type, several orders of threads. Everything has the same bits.
#include "kernels/cuda/elementwise.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <type_traits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/testing/device_test.h"

namespace tercio::kernels::cuda {
namespace {

constexpr uint64_t kSeed = 20261122;
constexpr int64_t kSizes[] = {0, 1, 2, 7, 8, 31, 257, 1024, 5003};
constexpr int64_t kMaxShortSize = 5003;
constexpr int64_t kDigestSizes[] = {0, 1, 31, 257, 5003, 262500};  // the last: more than a grid

float Load(float x) { return x; }
float Load(__nv_bfloat16 x) { return __bfloat162float(x); }
float Load(__half x) { return __half2float(x); }

template <typename T>
T Store(float x) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(x);
  if constexpr (std::is_same_v<T, __half>) return __float2half_rn(x);
  if constexpr (std::is_same_v<T, float>) return x;
}

template <typename T>
std::vector<T> RandomValues(int64_t count, uint64_t seed) {
  std::mt19937_64 random(kSeed + seed);
  std::normal_distribution<float> normal(0, 100);
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(Store<T>(normal(random)));
  return values;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T>
class Elementwise : public DeviceTest {};
using StorageTypes = ::testing::Types<float, __nv_bfloat16, __half>;
TYPED_TEST_SUITE(Elementwise, StorageTypes);

TYPED_TEST(Elementwise, AddsAndRounds) {
  using T = TypeParam;
  for (const int64_t size : kSizes) {
    for (const auto& [a_offset, b_offset] : {std::pair{0, 0}, {1, 1}, {3, 0}}) {
      const auto a = RandomValues<T>(size, 1);
      const auto b = RandomValues<T>(size, 2);
      std::vector<T> expected = a;
      for (size_t i = 0; i < a.size(); ++i) expected[i] = Store<T>(Load(a[i]) + Load(b[i]));
      const auto sum = this->SameInEveryOrder([&, a_start = a_offset, b_start = b_offset] {
        DeviceBuffer<T> x(a, a_start), y(b, b_start);
        Add(x.data(), y.data(), size, this->stream_);
        return x.Read(this->stream_);
      });
      EXPECT_TRUE(SameBits(sum, expected))
          << size << " elements at " << a_offset << ", " << b_offset;
    }
  }
}

TYPED_TEST(Elementwise, MultipliesAndRounds) {
  using T = TypeParam;
  const float factor = 1.0f / 3;
  for (const int64_t size : kSizes) {
    for (const int64_t offset : {0, 1, 3}) {
      const auto a = RandomValues<T>(size, 4);
      std::vector<T> expected;
      for (const T value : a) expected.push_back(Store<T>(Load(value) * factor));
      const auto product = this->SameInEveryOrder([&] {
        DeviceBuffer<T> x(a, offset);
        MultiplyBy(x.data(), factor, size, this->stream_);
        return x.Read(this->stream_);
      });
      EXPECT_TRUE(SameBits(product, expected)) << size << " elements at " << offset;
    }
  }
}

TYPED_TEST(Elementwise, CopiesConvertsAndZeroes) {
  using T = TypeParam;
  for (const int64_t size : kSizes) {
    for (const int64_t offset : {0, 1, 5}) {
      const auto wide = RandomValues<float>(size, 3);
      std::vector<T> narrow;
      std::vector<float> widened;
      for (const float value : wide) {
        narrow.push_back(Store<T>(value));
        widened.push_back(Load(narrow.back()));
      }
      const auto rounded = this->SameInEveryOrder([&] {
        DeviceBuffer<float> from(wide, offset);
        DeviceBuffer<T> to(size, 2), copy(size, offset);
        Convert(to.data(), from.data(), size, this->stream_);
        Copy(copy.data(), to.data(), size, this->stream_);
        return copy.Read(this->stream_);
      });
      EXPECT_TRUE(SameBits(rounded, narrow)) << size << " elements at " << offset;
      DeviceBuffer<T> from(narrow, 1);
      DeviceBuffer<float> to(size, offset);
      Convert(to.data(), from.data(), size, this->stream_);
      EXPECT_TRUE(SameBits(to.Read(this->stream_), widened)) << size << " elements at " << offset;
      Zero(to.data(), size, this->stream_);
      EXPECT_TRUE(SameBits(to.Read(this->stream_), std::vector<float>(wide.size())));
    }
  }
}

TYPED_TEST(Elementwise, DigestsFollowTheFormula) {
  using T = TypeParam;
  for (const int64_t size : kDigestSizes) {
    if (size > kMaxShortSize && sizeof(T) != sizeof(float)) continue;
    const auto values = RandomValues<T>(size, 5);
    uint64_t expected = 0;
    for (int64_t i = 0; i < size; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, &values[static_cast<size_t>(i)], sizeof(T));
      expected += uint64_t{bits} * ((2 * static_cast<uint32_t>(i) + 1) * 0x9e3779b1u);
    }
    if constexpr (std::is_same_v<T, float>) {
      uint64_t of_cpu = 0;
      CreateCpuOps(1)->Digest({.values = values.data(), .columns = size, .digest = &of_cpu});
      EXPECT_EQ(of_cpu, expected);
    }
    const auto digest = this->SameInEveryOrder([&] {
      DeviceBuffer<T> a(values, 3);
      DeviceBuffer<uint64_t> scratch(DigestBytes(size) / 8), result(1);
      Digest(a.data(), size, {.columns = size, .first = 0, .stride = 0},
             {.scratch = scratch.data(), .digest = result.data()}, this->stream_);
      return result.Read(this->stream_);
    });
    EXPECT_EQ(digest[0], expected) << size;
  }
}

class Special : public DeviceTest {};

// More than 1,024 blocks of 256 threads, each with 16 bytes.
TEST_F(Special, LongBuffersGoSeveralTimesRoundTheGrid) {
  constexpr int64_t kSize = 2'100'003;
  const auto values = RandomValues<float>(kSize, 6);
  std::vector<float> expected = values;
  for (float& value : expected) value += value;
  DeviceBuffer<float> a(values, 1), b(values, 1), c(kSize, 2);
  Add(a.data(), b.data(), kSize, stream_);
  Copy(c.data(), a.data(), kSize, stream_);
  EXPECT_TRUE(SameBits(c.Read(stream_), expected));
}

TEST_F(Special, InfinityAndNanStay) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {infinity, -infinity, std::nanf(""), 1e30f, -1e-30f, 65519.f};
  DeviceBuffer<float> from(values, 0);
  DeviceBuffer<__half> to(6);
  Convert(to.data(), from.data(), 6, stream_);
  const std::vector<__half> halves = to.Read(stream_);
  EXPECT_EQ(__half2float(halves[0]), infinity);
  EXPECT_EQ(__half2float(halves[1]), -infinity);
  EXPECT_TRUE(std::isnan(__half2float(halves[2])));
  EXPECT_EQ(__half2float(halves[3]), infinity);
  EXPECT_TRUE(__half2float(halves[4]) == 0 && std::signbit(__half2float(halves[4])));
  EXPECT_EQ(__half2float(halves[5]), 65504);
}

}  // namespace
}  // namespace tercio::kernels::cuda
