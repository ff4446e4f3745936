// The lengths of samples of span corruption: those of the published models, and limits.
#include "plan/span_lengths.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::MaskingSpec Masking(double probability, double mean_span) {
  v1::MaskingSpec masking;
  masking.set_probability(probability);
  masking.set_mean_span(mean_span);
  return masking;
}

std::string FaultOf(int64_t context, const v1::MaskingSpec& masking) {
  return std::string(SpanLengthsOf(context, masking).status().message());
}

TEST(SpanLengths, OfThePublishedModels) {
  const auto lengths = SpanLengthsOf(512, {});
  ASSERT_TRUE(lengths.ok()) << lengths.status();
  EXPECT_EQ(lengths->raw, 568);
  EXPECT_EQ(lengths->noise, 85);
  EXPECT_EQ(lengths->spans, 28);
  EXPECT_EQ(lengths->inputs, 512);
  EXPECT_EQ(lengths->targets, 114);
}

TEST(SpanLengths, EveryContextIsFilledExactly) {
  for (const double probability : {0.01, 0.15, 0.3}) {
    for (const double mean_span : {1.0, 3.0, 10.0}) {
      for (int64_t context = 4; context < 700; ++context) {
        const auto lengths = SpanLengthsOf(context, Masking(probability, mean_span));
        ASSERT_TRUE(lengths.ok()) << lengths.status();
        const double noise = std::nearbyint(static_cast<double>(lengths->raw) * probability);
        EXPECT_EQ(lengths->noise, std::max(1.0, noise));
        EXPECT_EQ(lengths->inputs, context);
        EXPECT_EQ(lengths->inputs, lengths->raw - lengths->noise + lengths->spans + 1);
        EXPECT_EQ(lengths->targets, lengths->noise + lengths->spans + 1);
        EXPECT_LE(lengths->spans, lengths->noise);
        EXPECT_LE(lengths->spans, lengths->raw - lengths->noise);
      }
    }
  }
}

TEST(SpanLengths, HalvesAreRoundedToEven) {
  // 10 and 30 raw tokens have 2.5 and 7.5 masked ones.
  const auto down = SpanLengthsOf(10, Masking(0.25, 2));
  ASSERT_TRUE(down.ok()) << down.status();
  EXPECT_EQ(down->raw, 10);
  EXPECT_EQ(down->noise, 2);
  const auto up = SpanLengthsOf(25, Masking(0.25, 4));
  ASSERT_TRUE(up.ok()) << up.status();
  EXPECT_EQ(up->raw, 30);
  EXPECT_EQ(up->noise, 8);
}

TEST(SpanLengths, TheShortestSample) {
  const auto lengths = SpanLengthsOf(3, {});
  ASSERT_TRUE(lengths.ok()) << lengths.status();
  EXPECT_EQ(lengths->raw, 2);
  EXPECT_EQ(lengths->noise, 1);
  EXPECT_EQ(lengths->spans, 1);
}

TEST(SpanLengths, ImpossibleOnesAreRefused) {
  EXPECT_THAT(FaultOf(2, {}), HasSubstr("model.context is 2, but a sample of masked spans has"));
  EXPECT_THAT(FaultOf(1 << 30, {}), HasSubstr("model.context is 1073741824"));
  EXPECT_THAT(FaultOf(64, Masking(1, 3)), HasSubstr("expected a probability below 1"));
  EXPECT_THAT(FaultOf(64, Masking(std::nan(""), 0.5)), HasSubstr("mean_span 0.5"));
  EXPECT_THAT(FaultOf(64, Masking(0.15, INFINITY)), HasSubstr("mean_span inf"));
  // Each kept token is followed by a span: every second length is missing.
  EXPECT_THAT(FaultOf(64, Masking(0.9, 3)),
              AllOf(HasSubstr("no sample has that length"), HasSubstr("use a context of 63")));
  EXPECT_TRUE(SpanLengthsOf(63, Masking(0.9, 3)).ok());
  EXPECT_THAT(FaultOf((1 << 20) - 1, Masking(0.999, 3)),
              HasSubstr("tokens in the decoder, at most"));
}

}  // namespace
}  // namespace tercio::plan
