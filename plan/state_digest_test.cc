#include "plan/state_digest.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tercio::plan {
namespace {

TEST(StateDigest, PartsAddUp) {
  std::vector<float> values;
  for (int i = 0; i < 1000; ++i) values.push_back(1.0f / static_cast<float>(i + 1));
  const absl::Span<const float> all(values);
  const uint64_t whole = DigestOfElements(all, 77);
  for (const size_t cut : {0, 1, 499, 1000}) {
    EXPECT_EQ(DigestOfElements(all.first(cut), 77) +
                  DigestOfElements(all.subspan(cut), 77 + static_cast<int64_t>(cut)),
              whole);
  }
  // By the formula: 1.0f is 0x3f800000.
  EXPECT_EQ(DigestOfElements(all.first(1), 0), uint64_t{0x3f800000} * 0x9e3779b1u);
  EXPECT_EQ(DigestOfElements(all.first(1), 2), uint64_t{0x3f800000} * (5 * 0x9e3779b1u));
}

TEST(StateDigest, TensorsHaveFactorsOfTheirOwn) {
  std::set<uint64_t> factors;
  for (int layer = 0; layer < 1000; ++layer) {
    for (const char* kind : {"", "adamw.m.", "adamw.v."}) {
      const uint64_t factor =
          FactorOfTensor(absl::StrCat(kind, "layers.", layer, ".mlp.up.weight"));
      EXPECT_EQ(factor % 2, 1u);
      factors.insert(factor);
    }
  }
  EXPECT_EQ(factors.size(), 3000u);
  // Recorded digests stay comparable only as long as this holds.
  EXPECT_EQ(StateDigestText(FactorOfTensor("embedding.token.weight")), "a3461e99253ccfe5");
}

TEST(StateDigest, TextsAreReadBack) {
  for (const uint64_t digest :
       {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{0x0123456789abcdef}}) {
    EXPECT_EQ(ParseStateDigest(StateDigestText(digest)), digest);
  }
  EXPECT_EQ(StateDigestText(255), "00000000000000ff");
  for (const char* text : {"", "1", "00000000000000fg", "00000000000000FF", "00000000000000ff0"}) {
    EXPECT_EQ(ParseStateDigest(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tercio::plan
