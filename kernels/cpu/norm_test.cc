// Norms on the CPU against the double-precision reference, and their gradients against finite
// differences.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/testing/cpu_ops_case.h"
#include "kernels/reference/reference_ops.h"

namespace tercio::kernels {
namespace {

using reference::Values;

TEST_F(CpuOpsTest, LayerNormAndItsGradients) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {5, 16}, {9, 33}, {4, 100}}) {
    const Floats x = Random(rows * columns);
    const Floats weight = Random(columns);
    const Floats bias = Random(columns);
    Floats y(x.size());
    Floats mean(static_cast<size_t>(rows));
    Floats rstd(static_cast<size_t>(rows));
    ops_->LayerNorm({.x = x.data(),
                     .weight = weight.data(),
                     .bias = bias.data(),
                     .y = y.data(),
                     .mean = mean.data(),
                     .rstd = rstd.data(),
                     .rows = rows,
                     .columns = columns,
                     .eps = 1e-5f});
    const auto norm = [&, r = rows, c = columns](const Values& in) {
      return reference::LayerNorm(in, Exact(weight), Exact(bias), r, c, 1e-5);
    };
    ExpectRows(y, norm(Exact(x)), columns, 1e-6, "norm");
    if (columns == 1) continue;  // its gradient is zero but for the epsilon
    const Floats dy = Random(rows * columns);
    Floats dx(x.size());
    Floats dweight(static_cast<size_t>(columns), 0.0f);
    Floats dbias(static_cast<size_t>(columns), 0.0f);
    ops_->LayerNormBackward({.dy = dy.data(),
                             .x = x.data(),
                             .weight = weight.data(),
                             .mean = mean.data(),
                             .rstd = rstd.data(),
                             .dx = dx.data(),
                             .dweight = dweight.data(),
                             .dbias = dbias.data(),
                             .rows = rows,
                             .columns = columns,
                             .rows_per_leaf = rows,
                             .accumulate = false});
    ExpectRows(dx, reference::NumericGradient(norm, Exact(x), Exact(dy)), columns, 2e-6, "dx");
    const auto by_weight = [&, r = rows, c = columns](const Values& w) {
      return reference::LayerNorm(Exact(x), w, Exact(bias), r, c, 1e-5);
    };
    ExpectRows(dweight, reference::NumericGradient(by_weight, Exact(weight), Exact(dy)), columns,
               2e-6, "dweight");
  }
}

TEST_F(CpuOpsTest, RmsNormAndItsGradients) {
  for (const int64_t columns : {1, 7, 64, 300}) {
    const int64_t rows = 3;
    const Floats x = Random(rows * columns);
    const Floats weight = Random(columns);
    Floats y(x.size()), mean(3, 9.0f), rstd(3);
    LayerNormArgs args{.x = x.data(),
                       .weight = weight.data(),
                       .bias = nullptr,
                       .y = y.data(),
                       .mean = mean.data(),
                       .rstd = rstd.data(),
                       .rows = rows,
                       .columns = columns};
    args.eps = 1e-6f;
    args.rms = true;
    ops_->LayerNorm(args);
    const auto norm = [&](const Values& values, const Values& w) {
      return reference::RmsNorm(values, w, rows, columns, 1e-6);
    };
    ExpectRows(y, norm(Exact(x), Exact(weight)), columns, 1e-6, "norm");
    EXPECT_EQ(mean, (Floats{0, 0, 0}));
    if (columns == 1) continue;  // its gradient is zero but for the epsilon
    const Floats dy = Random(rows * columns);
    Floats dx(x.size()), dweight(static_cast<size_t>(columns));
    LayerNormBackwardArgs back{.dy = dy.data(),
                               .x = x.data(),
                               .weight = weight.data(),
                               .mean = mean.data(),
                               .rstd = rstd.data(),
                               .dx = dx.data(),
                               .dweight = dweight.data(),
                               .dbias = nullptr,
                               .rows = rows,
                               .columns = columns,
                               .rows_per_leaf = rows};
    back.rms = true;
    ops_->LayerNormBackward(back);
    ExpectRows(dx,
               reference::NumericGradient([&](const Values& v) { return norm(v, Exact(weight)); },
                                          Exact(x), Exact(dy)),
               rows * columns, 2e-6, "dx");
    ExpectRows(dweight,
               reference::NumericGradient([&](const Values& w) { return norm(Exact(x), w); },
                                          Exact(weight), Exact(dy)),
               columns, 2e-6, "dweight");
  }
}

// 1 + weight in the place of weight: of either norm what weights that are greater by 1 give, which
// these numbers are to the bit.
TEST_F(CpuOpsTest, NormsWithAnOffsetAreThoseOfGreaterWeights) {
  const int64_t rows = 5, columns = 37;
  const Floats x = Random(rows * columns), dy = Random(rows * columns), bias = Random(columns);
  Floats weight, greater;
  for (int64_t c = 0; c < columns; ++c) {
    weight.push_back(static_cast<float>(c - 20) / 16);
    greater.push_back(weight.back() + 1);
  }
  struct Results {
    Floats y, dx, dweight;
    bool operator==(const Results&) const = default;
  };
  for (const bool rms : {false, true}) {
    const auto run = [&](const Floats& weights, bool unit_offset) {
      Results results{Floats(x.size()), Floats(x.size()), Floats(static_cast<size_t>(columns))};
      Floats mean(static_cast<size_t>(rows)), rstd(mean.size());
      ops_->LayerNorm({.x = x.data(),
                       .weight = weights.data(),
                       .bias = bias.data(),
                       .y = results.y.data(),
                       .mean = mean.data(),
                       .rstd = rstd.data(),
                       .rows = rows,
                       .columns = columns,
                       .rms = rms,
                       .unit_offset = unit_offset});
      ops_->LayerNormBackward({.dy = dy.data(),
                               .x = x.data(),
                               .weight = weights.data(),
                               .mean = mean.data(),
                               .rstd = rstd.data(),
                               .dx = results.dx.data(),
                               .dweight = results.dweight.data(),
                               .dbias = nullptr,
                               .rows = rows,
                               .columns = columns,
                               .rows_per_leaf = rows,
                               .rms = rms,
                               .unit_offset = unit_offset});
      return results;
    };
    EXPECT_TRUE(run(weight, true) == run(greater, false));
    EXPECT_FALSE(run(weight, true) == run(weight, false));
  }
}

struct HeadNormCase {
  int64_t rows, heads, head_dim;
  int64_t stride() const { return heads * head_dim + 5; }
};

struct HeadNormRun {
  Floats y, rstd, dx, dweight;
  bool operator==(const HeadNormRun&) const = default;
};

struct HeadNormInputs {
  Floats x, dy, weight;
};

// Rows [begin, end), whose weight gradient is added to `run`'s.
void RunHeadNorm(Ops& ops, const HeadNormCase& c, const HeadNormInputs& in, int64_t leaf,
                 int64_t begin, int64_t end, HeadNormRun& run) {
  const int64_t at = begin * c.stride();
  ops.HeadNorm({.x = in.x.data() + at,
                .weight = in.weight.data(),
                .y = run.y.data() + at,
                .rstd = run.rstd.data() + begin * c.heads,
                .rows = end - begin,
                .heads = c.heads,
                .head_dim = c.head_dim,
                .stride = c.stride(),
                .eps = 1e-6f});
  // The gradient comes in dx.
  std::copy_n(in.dy.begin() + at, (end - begin) * c.stride(), run.dx.begin() + at);
  ops.HeadNormBackward({.dy = run.dx.data() + at,
                        .x = in.x.data() + at,
                        .weight = in.weight.data(),
                        .rstd = run.rstd.data() + begin * c.heads,
                        .dx = run.dx.data() + at,
                        .dweight = run.dweight.data(),
                        .rows = end - begin,
                        .heads = c.heads,
                        .head_dim = c.head_dim,
                        .stride = c.stride(),
                        .rows_per_leaf = leaf});
}

HeadNormRun EmptyRun(const HeadNormCase& c) {
  const auto values = static_cast<size_t>(c.rows * c.stride());
  return {Floats(values, 7.0f), Floats(static_cast<size_t>(c.rows * c.heads)), Floats(values, 7.0f),
          Floats(static_cast<size_t>(c.head_dim))};
}

// The heads of all rows, one after the other.
Values Heads(const Floats& from, const HeadNormCase& c) {
  Values heads;
  for (int64_t row = 0; row < c.rows; ++row) {
    const auto at = from.begin() + row * c.stride();
    heads.insert(heads.end(), at, at + c.heads * c.head_dim);
  }
  return heads;
}

TEST_F(CpuOpsTest, NormsOfHeadsAndTheirGradients) {
  for (const HeadNormCase& c : {HeadNormCase{1, 1, 2}, {5, 3, 8}, {4, 2, 33}, {3, 4, 64}}) {
    const HeadNormInputs in{Random(c.rows * c.stride()), Random(c.rows * c.stride()),
                            Random(c.head_dim)};
    HeadNormRun run = EmptyRun(c);
    RunHeadNorm(*ops_, c, in, c.rows, 0, c.rows, run);
    const auto norm = [&](const Values& x, const Values& weight) {
      return reference::RmsNorm(x, weight, c.rows * c.heads, c.head_dim, 1e-6);
    };
    const auto floats = [](const Values& values) { return Floats(values.begin(), values.end()); };
    const Values x = Heads(in.x, c), dy = Heads(in.dy, c), weight = Exact(in.weight);
    ExpectRows(floats(Heads(run.y, c)), norm(x, weight), c.head_dim, 1e-6, "norm");
    ExpectRows(
        floats(Heads(run.dx, c)),
        reference::NumericGradient([&](const Values& at) { return norm(at, weight); }, x, dy),
        c.rows * c.heads * c.head_dim, 2e-6, "dx");
    ExpectRows(
        run.dweight,
        reference::NumericGradient([&](const Values& at) { return norm(x, at); }, weight, dy),
        c.head_dim, 2e-6, "dweight");
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t i = c.heads * c.head_dim; i < c.stride(); ++i) {
        const auto at = static_cast<size_t>(row * c.stride() + i);
        ASSERT_EQ(run.y[at], 7) << "beyond the heads";
        ASSERT_EQ(run.dx[at], in.dy[at]) << "beyond the heads";
      }
    }
  }
}

TEST_F(CpuOpsTest, NormsOfHeadsHaveTheSameBitsForAnyNumberOfRowsAndThreads) {
  const int64_t leaf = 300;  // two pieces each
  const HeadNormCase c{3 * leaf, 3, 40};
  const HeadNormInputs in{Random(c.rows * c.stride()), Random(c.rows * c.stride()),
                          Random(c.head_dim)};
  HeadNormRun whole = EmptyRun(c);
  RunHeadNorm(*ops_, c, in, leaf, 0, c.rows, whole);
  for (const int threads : {1, 3}) {
    const auto other = CreateCpuOps(threads);
    HeadNormRun parts = EmptyRun(c);
    for (int64_t i = 0; i < 3; ++i) {
      RunHeadNorm(*other, c, in, leaf, i * leaf, (i + 1) * leaf, parts);
    }
    EXPECT_TRUE(parts == whole) << threads;
  }
}

}  // namespace
}  // namespace tercio::kernels
