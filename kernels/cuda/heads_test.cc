// Operations on heads of queries and keys on CUDA, but attention, against the CPU's, as in
// cuda_ops_test.cc.
#include <string>
#include <utility>

#include "kernels/cuda/testing/both_backends.h"

namespace tercio::kernels::cuda {
namespace {

constexpr Format kFormats[] = {Format::kFloat32, Format::kBfloat16, Format::kFloat16};
constexpr double kNear = 2e-6;

class HeadsTest : public BothBackendsTest {};

TEST_F(HeadsTest, Rotary) {
  for (const Format format : kFormats) {
    for (const auto& [head_dim, turned] : {std::pair<int64_t, int64_t>{2, 0},
                                           {6, 0},
                                           {16, 0},
                                           {64, 64},
                                           {64, 32},
                                           {80, 32},
                                           {20, 8},
                                           {24, 14}}) {
      for (const bool interleaved : {false, true}) {
        for (const bool inverse : {false, true}) {
          const int64_t rows = 21;
          const int64_t tokens = 7;
          const int64_t heads = 3;
          const int64_t stride = heads * head_dim + (inverse ? 5 : 16);
          Begin(format, "rotary positions of " + std::to_string(head_dim));
          const int x = AddValues("x", rows * stride);
          const int table = AddFloats("table", tokens * (turned == 0 ? head_dim : turned));
          // Positions that restart anywhere, or those of sequences.
          const int positions = head_dim % 3 == 0 ? Bound::kNone : AddInts("positions", rows, 0, 6);
          Check([&, head_dim = head_dim, turned = turned](Ops& ops, const Bound& t) {
            ops.Rotary({.x = t.values(x),
                        .table = t.floats(table),
                        .rows = rows,
                        .tokens = tokens,
                        .stride = stride,
                        .heads = heads,
                        .head_dim = head_dim,
                        .rotary_dim = turned,
                        .interleaved = interleaved,
                        .inverse = inverse,
                        .positions = t.ints(positions)});
          });
        }
      }
    }
  }
}

struct NormCase {
  int64_t rows, heads, head_dim, rest;
};
// One channel; odd ones; a group; heads that fill half a warp, and a warp, and that begin anywhere;
// several blocks of rows.
constexpr NormCase kNorms[] = {{1, 1, 1, 0},   {3, 2, 7, 3},   {9, 3, 8, 8},   {5, 4, 64, 16},
                               {6, 2, 128, 3}, {4, 1, 256, 8}, {3, 1, 250, 0}, {40, 3, 24, 0}};

TEST_F(HeadsTest, Norms) {
  for (const Format format : kFormats) {
    for (const NormCase& c : kNorms) {
      scratch_ = {.rows = c.rows, .norm_columns = c.head_dim};
      Begin(format,
            "norm of " + std::to_string(c.heads) + " heads of " + std::to_string(c.head_dim));
      const int64_t stride = c.heads * c.head_dim + c.rest;
      const int x = AddValues("x", c.rows * stride);
      const int weight = AddValues("weight", c.head_dim);
      const int y = AddValues("y", c.rows * stride);
      const int rstd = AddFloats("rstd", c.rows * c.heads, 0, 0.1, 1);
      Near(kNear, {x, y, rstd});
      for (const int to : {y, x}) {  // y may be x
        Check([&](Ops& ops, const Bound& t) {
          ops.HeadNorm({.x = t.values(x),
                        .weight = t.values(weight),
                        .y = t.values(to),
                        .rstd = t.floats(rstd),
                        .rows = c.rows,
                        .heads = c.heads,
                        .head_dim = c.head_dim,
                        .stride = stride,
                        .eps = 1e-6f});
        });
      }
    }
  }
}

TEST_F(HeadsTest, GradientsOfNorms) {
  for (const Format format : kFormats) {
    for (const NormCase& c : kNorms) {
      scratch_ = {.rows = c.rows, .norm_columns = c.head_dim};
      Begin(format, "gradient of a norm of " + std::to_string(c.heads) + " heads of " +
                        std::to_string(c.head_dim));
      const int64_t stride = c.heads * c.head_dim + c.rest;
      const int dy = AddValues("dy", c.rows * stride);
      const int x = AddValues("x", c.rows * stride);
      const int weight = AddValues("weight", c.head_dim);
      const int rstd = AddFloats("rstd", c.rows * c.heads, 0, 0.1, 1);
      const int dx = AddValues("dx", c.rows * stride);
      const int dweight = AddFloats("dweight", c.head_dim);
      Near(kNear, {dy, dx, dweight});
      for (const int to : {dx, dy}) {  // dx may be dy
        Check([&](Ops& ops, const Bound& t) {
          ops.HeadNormBackward({.dy = t.values(dy),
                                .x = t.values(x),
                                .weight = t.values(weight),
                                .rstd = t.floats(rstd),
                                .dx = t.values(to),
                                .dweight = t.floats(dweight),
                                .rows = c.rows,
                                .heads = c.heads,
                                .head_dim = c.head_dim,
                                .stride = stride,
                                .rows_per_leaf = c.rows});
        });
      }
    }
  }
}

}  // namespace
}  // namespace tercio::kernels::cuda
