// The gradient of a norm on a device has the bits that its documented order of sums has: computed
// here one operation after the other, for rows that stay in registers and for those that do not.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/testing/both_backends.h"

namespace tercio::kernels::cuda {
namespace {

struct Case {
  int64_t rows, columns;
  bool rms, accumulate;
};

struct Inputs {
  std::vector<double> dy, x, weight, mean, rstd, dx, dweight, dbias;
};

struct Gradients {
  std::vector<float> dx, dweight, dbias;
};

// As primitives/reduce.cuh: lanes at the distances 16, 8, ... 1, then warps in ascending order.
float BlockSumOf(std::vector<float> threads) {
  float sum = 0;
  for (size_t warp = 0; warp < threads.size(); warp += 32) {
    for (size_t distance = 16; distance > 0; distance /= 2) {
      for (size_t lane = 0; lane < distance; ++lane) {
        threads[warp + lane] += threads[warp + lane + distance];
      }
    }
    sum += threads[warp];
  }
  return sum;
}

class NormOrder : public BothBackendsTest {
 protected:
  // The gradients of one row, and what it adds to `block`, that of its block of rows.
  void AddRow(const Case& c, const Inputs& in, int64_t row, Gradients& all, Gradients& block) {
    const int64_t width = format_ == Format::kFloat32 ? 4 : 8;
    const int64_t groups = (c.columns + width - 1) / width;
    const auto threads = static_cast<size_t>(
        groups > 512 ? 512 : std::clamp<int64_t>((groups + 31) / 32 * 32, 32, 256));
    const auto mean = static_cast<float>(in.mean[static_cast<size_t>(row)]);
    const auto rstd = static_cast<float>(in.rstd[static_cast<size_t>(row)]);
    std::vector<float> sums_h(threads), sums_hn(threads), h, n;
    for (size_t column = 0; column < static_cast<size_t>(c.columns); ++column) {
      const size_t at = static_cast<size_t>(row * c.columns) + column;
      const auto dy = static_cast<float>(in.dy[at]);
      h.push_back(dy * static_cast<float>(in.weight[column]));
      n.push_back((static_cast<float>(in.x[at]) - mean) * rstd);
      const size_t thread = column / static_cast<size_t>(width) % threads;
      sums_h[thread] += h.back();
      sums_hn[thread] = std::fma(h.back(), n.back(), sums_hn[thread]);
      block.dweight[column] = std::fma(dy, n.back(), block.dweight[column]);
      block.dbias[column] += dy;
    }
    const auto count = static_cast<float>(c.columns);
    const float mean_h = c.rms ? 0.0f : BlockSumOf(sums_h) / count;
    const float mean_hn = BlockSumOf(sums_hn) / count;
    for (size_t column = 0; column < static_cast<size_t>(c.columns); ++column) {
      const size_t at = static_cast<size_t>(row * c.columns) + column;
      const float before = c.accumulate ? static_cast<float>(in.dx[at]) : 0.0f;
      all.dx.push_back(
          RoundTo(format_, before + rstd * std::fma(-n[column], mean_hn, h[column] - mean_h)));
    }
  }

  // As primitives/add_parts.cu: blocks y, y + 8, ..., then the eight sums.
  static float AddBlocks(const std::vector<Gradients>& blocks, size_t column, bool weight) {
    std::array<float, 8> sums = {};
    for (size_t block = 0; block < blocks.size(); ++block) {
      sums[block % 8] += (weight ? blocks[block].dweight : blocks[block].dbias)[column];
    }
    float total = 0;
    for (const float sum : sums) total += sum;
    return total;
  }

  Gradients InOrder(const Case& c, const Inputs& in) {
    Gradients all;
    std::vector<Gradients> blocks;
    const RowBlocks cut = CutRows(c.rows, kLeastRowsOfNorm);
    const auto columns = static_cast<size_t>(c.columns);
    for (int64_t row = 0; row < c.rows; ++row) {
      if (row % cut.rows_per_block == 0) {
        blocks.push_back({{}, std::vector<float>(columns), std::vector<float>(columns)});
      }
      AddRow(c, in, row, all, blocks.back());
    }
    for (size_t column = 0; column < columns; ++column) {
      all.dweight.push_back(static_cast<float>(in.dweight[column]) +
                            AddBlocks(blocks, column, /*weight=*/true));
      all.dbias.push_back(static_cast<float>(in.dbias[column]) +
                          AddBlocks(blocks, column, /*weight=*/false));
    }
    return all;
  }

  static void ExpectBits(const std::vector<double>& actual, const std::vector<float>& expected,
                         const std::string& name) {
    ASSERT_EQ(actual.size(), expected.size()) << name;
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(static_cast<float>(actual[i]), expected[i]) << name << " at " << i;
    }
  }

  void CheckOrder(Format format, const Case& c) {
    scratch_ = {.rows = c.rows, .norm_columns = c.columns};
    Begin(format,
          "gradient of a norm " + std::to_string(c.rows) + " x " + std::to_string(c.columns));
    const int dy = AddValues("dy", c.rows * c.columns);
    const int x = AddValues("x", c.rows * c.columns);
    const int weight = AddValues("weight", c.columns);
    const int mean = AddFloats("mean", c.rows, 0, c.rms ? 0 : 0.1);
    const int rstd = AddFloats("rstd", c.rows, 0, 0.1, 1);
    const int dx = AddValues("dx", c.rows * c.columns, c.columns);
    const int dweight = AddFloats("dweight", c.columns);
    const int dbias = AddFloats("dbias", c.columns);
    Near(1e-3, {dx, dweight, dbias});  // to the CPU's, whose order is another one
    const Inputs inputs{At(dy).data,   At(x).data,  At(weight).data,  At(mean).data,
                        At(rstd).data, At(dx).data, At(dweight).data, At(dbias).data};
    const std::vector<Tensor> device = Check([&](Ops& ops, const Bound& t) {
      ops.LayerNormBackward({.dy = t.values(dy),
                             .x = t.values(x),
                             .weight = t.values(weight),
                             .mean = t.floats(mean),
                             .rstd = t.floats(rstd),
                             .dx = t.values(dx),
                             .dweight = t.floats(dweight),
                             .dbias = t.floats(dbias),
                             .rows = c.rows,
                             .columns = c.columns,
                             .rows_per_leaf = c.rows,
                             .accumulate = c.accumulate,
                             .rms = c.rms});
    });
    const Gradients expected = InOrder(c, inputs);
    const auto actual = [&](int id) { return device[static_cast<size_t>(id)].data; };
    ExpectBits(actual(dx), expected.dx, name_ + " dx");
    ExpectBits(actual(dweight), expected.dweight, name_ + " dweight");
    ExpectBits(actual(dbias), expected.dbias, name_ + " dbias");
  }
};

// A thread has one group in rows of up to 2,048 columns of 16 bits, and two in rows of up to 4,096;
// longer rows have twice the threads, and stay in registers where they are aligned, up to 8,192
// columns. With fp32 the limits are half of these.
TEST_F(NormOrder, GradientsHaveTheBitsOfTheirOrder) {
  for (const Format format : {Format::kFloat32, Format::kBfloat16, Format::kFloat16}) {
    for (const int64_t columns : {5, 96, 771, 1600, 2056, 4104}) {
      for (const bool accumulate : {false, true}) {
        CheckOrder(format, {9, columns, /*rms=*/false, accumulate});
      }
    }
    CheckOrder(format, {75, 24, /*rms=*/true, /*accumulate=*/true});
  }
}

}  // namespace
}  // namespace tercio::kernels::cuda
