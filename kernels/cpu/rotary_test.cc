// Rotary positions on the CPU against the double-precision reference: all channels of a head or
// some, in pairs of either kind.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/testing/cpu_ops_case.h"
#include "kernels/reference/reference_ops.h"

namespace tercio::kernels {
namespace {

using reference::Values;

constexpr int64_t kTokens = 5;
constexpr int64_t kRows = 2 * kTokens;
constexpr int64_t kHeads = 3;

struct Case {
  int64_t head_dim;
  int64_t turned;
};
// All channels; some, of which pairs fill no vector, one and several of them.
constexpr Case kCases[] = {{12, 0}, {12, 4}, {64, 64}, {80, 32}, {80, 34}, {96, 70}};

class RotaryTest : public CpuOpsTest {
 protected:
  void Turn(const Case& c, bool interleaved, bool inverse, const Floats& table, Floats& x) {
    ops_->Rotary({.x = x.data(),
                  .table = table.data(),
                  .rows = kRows,
                  .tokens = kTokens,
                  .stride = StrideOf(c),
                  .heads = kHeads,
                  .head_dim = c.head_dim,
                  .rotary_dim = c.turned,
                  .interleaved = interleaved,
                  .inverse = inverse});
  }
  static int64_t StrideOf(const Case& c) { return kHeads * c.head_dim + 7; }
  static int64_t TurnedOf(const Case& c) { return c.turned == 0 ? c.head_dim : c.turned; }
  // The row's numbers from `begin` on.
  static Values Part(const Floats& from, int64_t begin, int64_t count) {
    return Values(from.begin() + begin, from.begin() + begin + count);
  }
};

TEST_F(RotaryTest, TurnsPairsOfChannels) {
  for (const Case& c : kCases) {
    for (const bool interleaved : {false, true}) {
      SCOPED_TRACE(std::to_string(c.turned) + " of " + std::to_string(c.head_dim));
      const int64_t half = TurnedOf(c) / 2;
      const Floats table = Random(kTokens * 2 * half);
      const Floats before = Random(kRows * StrideOf(c));
      Floats x = before;
      Turn(c, interleaved, false, table, x);
      for (int64_t row = 0; row < kRows; ++row) {
        const int64_t angles = row % kTokens * 2 * half;
        for (int64_t head = 0; head < kHeads; ++head) {
          const int64_t at = row * StrideOf(c) + head * c.head_dim;
          const Values expected =
              reference::Rotary(Part(before, at, c.head_dim), Part(table, angles, half),
                                Part(table, angles + half, half), interleaved);
          for (int64_t d = 0; d < c.head_dim; ++d) {
            const auto i = static_cast<size_t>(at + d);
            ASSERT_NEAR(x[i], expected[static_cast<size_t>(d)], 2e-6) << row << " " << d;
            // What is not turned keeps its bits.
            ASSERT_TRUE(d < TurnedOf(c) || x[i] == before[i]) << row << " " << d;
          }
        }
        for (int64_t d = kHeads * c.head_dim; d < StrideOf(c); ++d) {
          const auto i = static_cast<size_t>(row * StrideOf(c) + d);
          ASSERT_EQ(x[i], before[i]) << "beyond the heads";
        }
      }
    }
  }
}

// The inverse is the gradient, and gives back what was there.
TEST_F(RotaryTest, PositionsMayRestart) {
  const std::vector<int32_t> positions = {0, 1, 2, 0, 1, 0, 0, 1, 2, 3};
  ASSERT_EQ(static_cast<int64_t>(positions.size()), kRows);
  for (const Case& c : kCases) {
    for (const bool interleaved : {false, true}) {
      const Floats table = Random(kTokens * TurnedOf(c));
      Floats x = Random(kRows * StrideOf(c));
      Floats expected = x;
      RotaryArgs args{.x = x.data(),
                      .table = table.data(),
                      .rows = kRows,
                      .tokens = kTokens,
                      .stride = StrideOf(c),
                      .heads = kHeads,
                      .head_dim = c.head_dim,
                      .rotary_dim = c.turned,
                      .interleaved = interleaved};
      args.positions = positions.data();
      ops_->Rotary(args);
      args.positions = nullptr;
      for (int64_t row = 0; row < kRows; ++row) {
        args.x = expected.data() + row * StrideOf(c);
        args.table = table.data() + positions[static_cast<size_t>(row)] * TurnedOf(c);
        args.rows = 1;
        ops_->Rotary(args);
      }
      EXPECT_EQ(x, expected) << c.turned << " of " << c.head_dim;
    }
  }
}

TEST_F(RotaryTest, TheInverseTurnsBack) {
  for (const Case& c : kCases) {
    for (const bool interleaved : {false, true}) {
      const int64_t half = TurnedOf(c) / 2;
      Floats table;  // a turn keeps lengths only where cos^2 + sin^2 = 1
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t i = 0; i < half; ++i) table.push_back(std::cos(static_cast<float>(t * i)));
        for (int64_t i = 0; i < half; ++i) table.push_back(std::sin(static_cast<float>(t * i)));
      }
      const Floats before = Random(kRows * StrideOf(c));
      Floats x = before;
      Turn(c, interleaved, false, table, x);
      Turn(c, interleaved, true, table, x);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], before[i], 1e-5);
    }
  }
}

}  // namespace
}  // namespace tercio::kernels
