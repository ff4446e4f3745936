#include "config/quantity.h"

#include "gtest/gtest.h"

namespace tercio::config {
namespace {

TEST(Quantity, Bytes) {
  EXPECT_EQ(ParseBytes("80GB"), 80e9);
  EXPECT_EQ(ParseBytes("80 GiB"), 80.0 * (int64_t{1} << 30));
  EXPECT_EQ(ParseBytes("1e9"), 1e9);
  EXPECT_EQ(ParseBytes("1.5TB"), 1.5e12);
  EXPECT_EQ(ParseBytes("512"), 512);
  for (const char* text : {"", "GB", "80Gb", "80GB/s", "80 gigabytes", "1e999", "nan"}) {
    EXPECT_EQ(ParseBytes(text), std::nullopt) << text;
  }
}

TEST(Quantity, BytesPerSecond) {
  EXPECT_EQ(ParseBytesPerSecond("300GB/s"), 300e9);
  EXPECT_EQ(ParseBytesPerSecond("200Gb/s"), 25e9);
  EXPECT_EQ(ParseBytesPerSecond("200 Gbit/s"), 25e9);
  EXPECT_EQ(ParseBytesPerSecond("400Gbps"), 50e9);
  EXPECT_EQ(ParseBytesPerSecond("2e12"), 2e12);
  for (const char* text : {"300GB", "fast", "300FLOPS"}) {
    EXPECT_EQ(ParseBytesPerSecond(text), std::nullopt) << text;
  }
}

TEST(Quantity, FlopsAndTimes) {
  EXPECT_EQ(ParseFlops("312TFLOPS"), 312e12);
  EXPECT_EQ(ParseFlops("312 TFLOP/s"), 312e12);
  EXPECT_EQ(ParseFlops("1.979P"), 1.979e15);
  EXPECT_EQ(ParseFlops("312e12"), 312e12);
  EXPECT_EQ(ParseFlops("312GB"), std::nullopt);
  EXPECT_EQ(ParseShortTime("5us"), 5e-6);
  EXPECT_EQ(ParseShortTime("0.25ms"), 0.25e-3);
  EXPECT_EQ(ParseShortTime("1e-6"), 1e-6);
  EXPECT_EQ(ParseShortTime("5min"), std::nullopt);
}

TEST(Quantity, Durations) {
  EXPECT_EQ(ParseDuration("45"), 45);
  EXPECT_EQ(ParseDuration("500ms"), 0.5);
  EXPECT_EQ(ParseDuration("30s"), 30);
  EXPECT_EQ(ParseDuration("10m"), 600);
  EXPECT_EQ(ParseDuration("1.5 h"), 5400);
  EXPECT_EQ(ParseDuration("30d"), 30 * 86400);
  EXPECT_EQ(ParseDuration("5y"), 5 * 365.25 * 86400);
  for (const char* text : {"", "d", "5 weeks", "5min", "1e999d"}) {
    EXPECT_EQ(ParseDuration(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tercio::config
