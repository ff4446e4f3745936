#include "worker/engine/memory_use.h"

#include <cmath>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::byte> Patterned(size_t bytes) {
  std::vector<std::byte> memory(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    memory[i] = static_cast<std::byte>(kPatternWord >> (8 * (i % 4)));
  }
  return memory;
}

TEST(MemoryUse, CountsTheWordsThatWereWritten) {
  std::vector<std::byte> memory = Patterned(64);
  EXPECT_EQ(TouchedOf(memory, kPatternWord).high_water, 0);
  EXPECT_EQ(TouchedOf(memory, kPatternWord).bytes, 0);
  memory[41] = std::byte{0};
  EXPECT_EQ(TouchedOf(memory, kPatternWord).high_water, 44);
  EXPECT_EQ(TouchedOf(memory, kPatternWord).bytes, 4);
  memory[0] = std::byte{0};
  EXPECT_EQ(TouchedOf(memory, kPatternWord).high_water, 44);
  EXPECT_EQ(TouchedOf(memory, kPatternWord).bytes, 8);
}

TEST(MemoryUse, TheLastWordMayBeShort) {
  std::vector<std::byte> memory = Patterned(6);
  EXPECT_EQ(TouchedOf(memory, kPatternWord).high_water, 0);
  memory[4] = std::byte{0};
  EXPECT_EQ(TouchedOf(memory, kPatternWord).high_water, 6);
  EXPECT_EQ(TouchedOf(memory, kPatternWord).bytes, 2);
}

TEST(MemoryUse, ThePatternIsNoNumber) {
  const std::vector<std::byte> memory = Patterned(8);
  double wide = 0;
  float single = 0;
  int32_t index = 0;
  std::memcpy(&wide, memory.data(), sizeof(wide));
  std::memcpy(&single, memory.data(), sizeof(single));
  std::memcpy(&index, memory.data(), sizeof(index));
  EXPECT_TRUE(std::isnan(wide));
  EXPECT_TRUE(std::isnan(single));
  EXPECT_LT(index, 0);
  // fp16 and bf16: all bits of the exponent, and some of the fraction.
  constexpr uint32_t kHalf = kPatternWord & 0xffff;
  EXPECT_EQ(kHalf & 0x7c00, 0x7c00u);
  EXPECT_NE(kHalf & 0x03ff, 0u);
  EXPECT_EQ(kHalf & 0x7f80, 0x7f80u);
  EXPECT_NE(kHalf & 0x007f, 0u);
}

TEST(MemoryUse, NamesABufferThatIsNeverTouchedAndOneThatIsTooLarge) {
  EXPECT_EQ(UnusedText({}), "");
  EXPECT_EQ(UnusedText({{{"full", 8, 8, 8}, {"empty", 0, 0, 0}}}), "");
  const std::string text =
      UnusedText({{{"full", 8, 8, 8}, {"bogus", 4096, 0, 0}, {"large", 4096, 100, 4}}});
  EXPECT_THAT(text, HasSubstr("bogus: 4096 bytes are planned, none is touched\n"));
  EXPECT_THAT(text, HasSubstr("large: 4096 bytes are planned, the first 100 are touched\n"));
  EXPECT_THAT(text, Not(HasSubstr("full")));
}

}  // namespace
}  // namespace tercio::engine
