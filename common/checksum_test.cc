#include "common/checksum.h"

#include "gtest/gtest.h"

namespace tercio {
namespace {

// Expected values from `xxhsum -H128` of xxHash 0.8.
TEST(ChecksumTest, IsThatOfTheTool) {
  EXPECT_EQ(ChecksumHex(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(ChecksumHex("a"), "a96faf705af16834e6c632b61e964e1f");
}

TEST(ChecksumTest, IsOfTheBytesHoweverTheyAreDivided) {
  const std::string bytes(100'000, 'x');
  Checksum checksum;
  checksum.Update(std::string_view(bytes).substr(0, 7));
  checksum.Update(std::string_view(bytes).substr(7, 70'000));
  checksum.Update(std::string_view(bytes).substr(70'007));
  EXPECT_EQ(checksum.Hex(), ChecksumHex(bytes));
}

TEST(ChecksumTest, SeesOneBit) {
  std::string bytes(5000, 'x');
  const std::string before = ChecksumHex(bytes);
  bytes[4321] ^= 1;
  EXPECT_NE(ChecksumHex(bytes), before);
}

}  // namespace
}  // namespace tercio
