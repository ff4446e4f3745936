// Numbers of few bits in blocks (kernels/block_format.h) on CUDA against the CPU's: the same bits,
// in all storages of results, at all addresses.
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/cuda/testing/both_backends.h"

namespace tercio::kernels::cuda {
namespace {

constexpr Format kStored[] = {Format::kFloat32, Format::kBfloat16, Format::kFloat16};
constexpr BlockFormat kFormats[] = {BlockFormat::kNone, BlockFormat::kInt8, BlockFormat::kInt4};

class BlocksTest : public BothBackendsTest {
 protected:
  // All operations on tensor `x`, which are floats.
  void CheckBlocks(int x, BlockFormat format) {
    const int64_t count = At(x).size();
    const int rounded = AddValues("rounded", count);
    const int in_place = AddFloats("in place", count);
    // Integers show every bit, also those behind the end, which stay.
    const int packed = AddInts("packed", PackedBytes(format, count) / 4 + 1, -9, 9);
    const int unpacked = AddValues("unpacked", count);
    At(in_place).data = At(x).data;
    Check([&](Ops& ops, const Bound& t) {
      auto* bytes = reinterpret_cast<std::byte*>(t.ints(packed));
      ops.RoundBlocks(t.values(rounded), t.floats(x), count, format);
      ops.RoundBlocks(t.floats(in_place), t.floats(in_place), count, format);
      ops.PackBlocks(bytes, t.floats(x), count, format);
      ops.UnpackBlocks(t.values(unpacked), bytes, count, format);
    });
  }
};

TEST_F(BlocksTest, HaveTheBitsOfTheCpu) {
  for (const Format stored : kStored) {
    for (const BlockFormat format : kFormats) {
      for (const int64_t count : {0, 1, 2, 7, 8, 31, 255, 256, 257, 1000, 2048, 5003}) {
        // Copies take addresses of something, and the tensors of none have none.
        if (count == 0 && format == BlockFormat::kNone) continue;
        Begin(stored, std::to_string(LargestCode(format)) + ", " + std::to_string(count));
        CheckBlocks(AddFloats("x", count, 0, 3), format);
      }
    }
  }
}

// Elements halfway between two codes, and the floats beside them: any other order of operations, or
// one rounding less, gives other codes.
TEST_F(BlocksTest, HaveTheBitsOfTheCpuNextToTies) {
  const float kInfinity = std::numeric_limits<float>::infinity();
  std::uniform_real_distribution<float> fraction(1, 2);
  for (const BlockFormat format : {BlockFormat::kInt8, BlockFormat::kInt4}) {
    Begin(Format::kFloat32, "ties of " + std::to_string(LargestCode(format)));
    const int x = AddFloats("x", kBlockElements * 60);
    const int most = LargestCode(format);
    std::uniform_int_distribution<int> code(-most, most - 1);
    float scale = 0;
    for (size_t i = 0; i < At(x).data.size(); ++i) {
      double& value = At(x).data[i];
      if (i % kBlockElements == 0) {
        value = fraction(random_);
        scale = BlockScale(format, static_cast<float>(value));
        continue;
      }
      const float tie = (static_cast<float>(code(random_)) + 0.5f) * scale;
      const float nearby[] = {tie, std::nextafter(tie, kInfinity), std::nextafter(tie, -kInfinity)};
      value = nearby[random_() % 3];
    }
    CheckBlocks(x, format);
  }
}

// Blocks of any size, around the least that is not zero and up to the largest float, and with
// elements that are not finite.
TEST_F(BlocksTest, HaveTheBitsOfTheCpuAtTheEnds) {
  const double kLargest = std::numeric_limits<float>::max();
  const double bad[] = {std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity(),
                        std::numeric_limits<double>::quiet_NaN()};
  for (const BlockFormat format : {BlockFormat::kInt8, BlockFormat::kInt4}) {
    Begin(Format::kFloat32, "ends");
    const int x = AddFloats("x", kBlockElements * 61 - 100);
    std::uniform_real_distribution<double> fraction(1, 2);
    double size = 1;
    for (size_t i = 0; i < At(x).data.size(); ++i) {
      const auto block = static_cast<int>(i / kBlockElements);
      if (i % kBlockElements == 0) size = std::ldexp(fraction(random_), block * 4 - 114);
      double& value = At(x).data[i];
      value = static_cast<float>(std::clamp(size * value, -kLargest, kLargest));
      if (block % 8 == 3 && i % 200 == 0) value = bad[i / 200 % 3];
    }
    CheckBlocks(x, format);
  }
}

}  // namespace
}  // namespace tercio::kernels::cuda
