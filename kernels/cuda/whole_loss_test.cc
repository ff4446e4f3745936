// Cross-entropy of a whole vocabulary, which a device computes in one pass over the logits, has the
// bits of the four operations that it stands for.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/testing/both_backends.h"

namespace tercio::kernels::cuda {
namespace {

struct Case {
  int64_t rows, valid, stride;
  float amount;
  int64_t first_row, rows_per_sum;
  float softcap = 0;
};

class WholeLoss : public BothBackendsTest {
 protected:
  CrossEntropyArgs ArgsOf(const Case& c, const Bound& t) const {
    return {.logits = t.values(logits_),
            .targets = t.ints(targets_),
            .stats = t.floats(stats_),
            .lse = t.floats(lse_),
            .loss = t.floats(loss_),
            .sums = t.doubles(sums_),
            .rows = c.rows,
            .valid = c.valid,
            .stride = c.stride,
            .scale = 0.125f,
            .smoothing = {.amount = c.amount, .vocabulary = c.valid},
            .first_row = c.first_row,
            .rows_per_sum = c.rows_per_sum,
            .softcap = c.softcap};
  }

  void AddTensors(Format format, const Case& c) {
    Begin(format, std::to_string(c.rows) + " x " + std::to_string(c.valid));
    logits_ = AddValues("logits", c.rows * c.stride, c.stride, 4);
    targets_ = AddInts("targets", c.rows, 0, static_cast<int32_t>(c.valid) - 1);
    stats_ = AddFloats("stats", c.rows * kCrossEntropyStats, kCrossEntropyStats);
    lse_ = AddFloats("lse", c.rows);
    loss_ = AddFloats("loss", c.rows);
    sums_ = AddDoubles("sums", (c.first_row + c.rows) / c.rows_per_sum + 1);
    Near(1e-4, {logits_, lse_, loss_, sums_});
    Near(std::numeric_limits<double>::infinity(), {stats_});  // scratch
  }

  // `one`: what CrossEntropy gave.
  void ExpectBitsOfFour(const Case& c, const std::vector<Tensor>& one) {
    const auto bytes = RunOnDevice(
        [&](Ops& ops, const Bound& t) { ops.Ops::CrossEntropy(ArgsOf(c, t)); }, /*offset=*/0);
    const std::vector<Tensor> four = Unpack(bytes);
    for (const int id : {logits_, lse_, loss_, sums_}) {
      const auto& expected = four[static_cast<size_t>(id)].data;
      const auto& actual = one[static_cast<size_t>(id)].data;
      ASSERT_EQ(actual.size(), expected.size());
      EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(double)), 0)
          << name_ << ": " << four[static_cast<size_t>(id)].name;
    }
  }

  void CheckBits(const Case& c) {
    ExpectBitsOfFour(c, Check([&](Ops& ops, const Bound& t) { ops.CrossEntropy(ArgsOf(c, t)); }));
  }

  int logits_ = 0, targets_ = 0, stats_ = 0, lse_ = 0, loss_ = 0, sums_ = 0;
};

// The last two do not fit into shared memory beside another row, in fp32 and in 16 bits.
const Case kCases[] = {{1, 1, 3, 0.0f, 0, 1},
                       {5, 13, 16, 0.1f, 3, 4},
                       {40, 300, 303, 0.0f, 6, 7},
                       {600, 9, 16, 0.0f, 17, 310},
                       {3, 9000, 9016, 0.1f, 0, 3},
                       {2, 30000, 30008, 0.0f, 1, 2},
                       {1, 60001, 60003, 0.0f, 0, 1},
                       // Some logits are beyond this cap, where the slope has the other sign: what
                       // counts is the formula.
                       {40, 300, 303, 0.1f, 6, 7, 9.0f}};

TEST_F(WholeLoss, HasTheBitsOfFourOperations) {
  for (const Format format : {Format::kFloat32, Format::kBfloat16, Format::kFloat16}) {
    for (const Case& c : kCases) {
      AddTensors(format, c);
      CheckBits(c);
    }
  }
}

TEST_F(WholeLoss, KeepsInfinitiesAndNaN) {
  const Case c{4, 40, 40, 0.0f, 0, 2};
  AddTensors(Format::kFloat32, c);
  std::vector<double>& logits = At(logits_).data;
  logits[3] = INFINITY;
  logits[41] = NAN;
  for (size_t column = 80; column < 120; ++column) logits[column] = -INFINITY;
  const auto bytes =
      RunOnDevice([&](Ops& ops, const Bound& t) { ops.CrossEntropy(ArgsOf(c, t)); }, /*offset=*/0);
  ExpectBitsOfFour(c, Unpack(bytes));
}

TEST_F(WholeLoss, SoftCapsAreNearTheCpus) {
  for (const Format format : {Format::kFloat32, Format::kBfloat16, Format::kFloat16}) {
    for (const int64_t count : {1, 7, 1000, 5003}) {
      Begin(format, "soft cap of " + std::to_string(count));
      const int x = AddValues("x", count, 1, 20);
      Near(2e-6, {x});
      Check([&](Ops& ops, const Bound& t) {
        ops.SoftCap({.x = t.values(x), .count = count, .cap = 30});
      });
    }
  }
}

// Losses so different in size that another order of additions has other bits, even in double.
TEST_F(WholeLoss, SumsOfLossesHaveTheirOrder) {
  const int64_t rows = 1300;
  Begin(Format::kFloat32, "AddLosses");
  const int loss = AddFloats("loss", rows);
  const int sums = AddDoubles("sums", 3);
  int64_t i = 0;
  for (double& value : At(loss).data) value = std::ldexp(value, static_cast<int>(i++ % 7) * 12);
  Check([&](Ops& ops, const Bound& t) {
    ops.AddLosses({.loss = t.floats(loss),
                   .sums = t.doubles(sums),
                   .rows = rows,
                   .first_row = 17,
                   .rows_per_sum = 600});
  });
}

TEST_F(WholeLoss, NoRowsChangeNothing) {
  const Case c{0, 13, 16, 0.1f, 3, 4};
  AddTensors(Format::kFloat32, c);
  Near(-1, {sums_});
  CheckBits(c);
}

}  // namespace
}  // namespace tercio::kernels::cuda
