// Every operation on CUDA, but products and attention, against the CPU's over odd shapes, in all
// storages, at aligned and unaligned addresses, in several orders of threads and blocks.
//
// Tolerances: each backend is within 1e-6 of the exact result (docs/numerics.md), of the largest
// magnitude of the row; so they are within 2e-6 of each other, and one step of the format where
// they round. What is only copied, added or multiplied has the same bits.
#include "kernels/cuda/cuda_ops.h"

#include <limits>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/testing/both_backends.h"
#include "kernels/random.h"

namespace tercio::kernels::cuda {
namespace {

constexpr Format kFormats[] = {Format::kFloat32, Format::kBfloat16, Format::kFloat16};
constexpr double kNear = 2e-6;
constexpr int kNone = Bound::kNone;

struct Shape {
  int64_t rows, columns;
};
// One element; fewer columns than a group; a group; more rows than a block; more columns than a
// block of threads has groups; odd ones; several blocks of rows of a sum.
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {5, 8}, {33, 40}, {70, 257}, {9, 300}, {2, 64}};
constexpr Shape kSumShapes[] = {{1, 5}, {8, 16}, {31, 33}, {100, 72}, {520, 12}};

Dropout SomeDropout(int64_t tokens) { return {0.25f, 77, 5, 3, kSiteMlpOutput, 11, tokens, 2}; }

std::string NameOf(const char* operation, int64_t rows, int64_t columns) {
  return std::string(operation) + " " + std::to_string(rows) + " x " + std::to_string(columns);
}

class CudaOpsTest : public BothBackendsTest {
 protected:
  // Checks the norm of one row, or its gradient.
  void CheckNormOfARow(Format format, int64_t columns, bool backward) {
    scratch_ = {1, columns, 0, 0, 0, 0};
    Begin(format, NameOf(backward ? "gradient of a norm" : "norm", 1, columns));
    const int dy = AddValues("dy", columns);
    const int x = AddValues("x", columns);
    const int weight = AddValues("weight", columns);
    const int mean = AddFloats("mean", 1, 0, 0.1);
    const int rstd = AddFloats("rstd", 1, 0, 0.1, 1);
    const int y = AddValues("y", columns);
    const int dweight = AddFloats("dweight", columns);
    Near(kNear, {y, mean, rstd, dweight});
    Check([&](Ops& ops, const Bound& t) {
      if (backward) {
        ops.LayerNormBackward({t.values(dy), t.values(x), t.values(weight), t.floats(mean),
                               t.floats(rstd), t.values(y), t.floats(dweight), nullptr, 1, columns,
                               1});
      } else {
        ops.LayerNorm({t.values(x), t.values(weight), nullptr, t.values(y), t.floats(mean),
                       t.floats(rstd), 1, columns});
      }
    });
  }
};

TEST_F(CudaOpsTest, LayerNorm) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : kShapes) {
      for (const bool rms : {false, true}) {
        Begin(format, NameOf("LayerNorm", rows, columns));
        const int x = AddValues("x", rows * columns, columns, 1, 0.5);
        const int weight = AddValues("weight", columns);
        const int bias = rms ? kNone : AddValues("bias", columns);
        const int y = AddValues("y", rows * columns, columns);
        const int mean = AddFloats("mean", rows);
        const int rstd = AddFloats("rstd", rows);
        // A row of two nearly equal numbers has a large 1 / deviation, and its error with it.
        Near(columns < 3 ? 1e-3 : kNear, {y, mean, rstd});
        Check([&](Ops& ops, const Bound& t) {
          ops.LayerNorm({t.values(x), t.values(weight), t.values(bias), t.values(y), t.floats(mean),
                         t.floats(rstd), rows, columns, 1e-5f, rms});
        });
      }
    }
  }
}

TEST_F(CudaOpsTest, LayerNormBackward) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : {Shape{1, 5}, {3, 64}, {33, 40}, {70, 257}, {520, 12}}) {
      for (const bool rms : {false, true}) {
        const bool accumulate = rms;
        Begin(format, NameOf("LayerNormBackward", rows, columns));
        const int dy = AddValues("dy", rows * columns);
        const int x = AddValues("x", rows * columns);
        const int weight = AddValues("weight", columns);
        const int mean = AddFloats("mean", rows, 0, rms ? 0 : 0.1);
        const int rstd = AddFloats("rstd", rows, 0, 0.1, 1);
        const int dx = AddValues("dx", rows * columns, columns);
        const int dweight = AddFloats("dweight", columns);
        const int dbias = rms ? kNone : AddFloats("dbias", columns);
        Near(kNear, {dx, dweight, dbias});
        Check([&](Ops& ops, const Bound& t) {
          ops.LayerNormBackward({t.values(dy), t.values(x), t.values(weight), t.floats(mean),
                                 t.floats(rstd), t.values(dx), t.floats(dweight), t.floats(dbias),
                                 rows, columns, rows, accumulate, rms});
        });
      }
    }
  }
}

// Rows that do not fit into shared memory are read again.
TEST_F(CudaOpsTest, NormsOfLongRows) {
  for (const Format format : kFormats) {
    CheckNormOfARow(format, 42003, /*backward=*/false);
    CheckNormOfARow(format, 10503, /*backward=*/true);
  }
}

// Rows that fill the shared memory of a block: what launches may ask for without an attribute, and
// with one. Kernels that declare some themselves may ask for less.
TEST_F(CudaOpsTest, NormsOfRowsThatFillSharedMemory) {
  for (const int64_t bytes : {48 << 10, 163 << 10}) {
    CheckNormOfARow(Format::kBfloat16, bytes / 4, /*backward=*/false);
    CheckNormOfARow(Format::kBfloat16, bytes / 16, /*backward=*/true);
  }
}

TEST_F(CudaOpsTest, ResidualAndTheNormOfIt) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : {Shape{1, 5}, {3, 7}, {33, 40}, {20, 257}}) {
      for (const bool dropping : {false, true}) {
        Begin(format, NameOf("Residual", rows, columns));
        const int residual = AddValues("residual", rows * columns);
        const int branch = AddValues("branch", rows * columns);
        const int bias = dropping ? AddValues("bias", columns) : kNone;
        const int out = AddValues("out", rows * columns);
        const int weight = AddValues("weight", columns);
        const int shift = AddValues("shift", columns);
        const int y = AddValues("y", rows * columns, columns);
        const int mean = AddFloats("mean", rows);
        const int rstd = AddFloats("rstd", rows);
        Near(kNear, {y, mean, rstd});
        const Dropout dropout = dropping ? SomeDropout(13) : Dropout();
        const auto add = [&](const Bound& t) -> ResidualArgs {
          return {t.values(residual),
                  t.values(branch),
                  t.values(bias),
                  t.values(out),
                  rows,
                  columns,
                  dropout};
        };
        Check([&](Ops& ops, const Bound& t) { ops.Residual(add(t)); });
        Check([&](Ops& ops, const Bound& t) {
          ops.ResidualLayerNorm(
              add(t), {nullptr, t.values(weight), t.values(shift), t.values(y), t.floats(mean),
                       t.floats(rstd), rows, columns, 1e-5f, false});
        });
        // out may be residual.
        Check([&](Ops& ops, const Bound& t) {
          ResidualArgs args = add(t);
          args.out = t.values(residual);
          ops.Residual(args);
        });
      }
    }
  }
}

TEST_F(CudaOpsTest, ResidualBackward) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : kSumShapes) {
      for (const bool dropping : {false, true}) {
        for (const bool wants_bias : {false, true}) {
          Begin(format, NameOf("ResidualBackward", rows, columns));
          const int dout = AddValues("dout", rows * columns);
          const int dbranch = dropping ? AddValues("dbranch", rows * columns) : kNone;
          const int dbias = wants_bias ? AddFloats("dbias", columns) : kNone;
          Near(kNear, {dbias});
          Check([&](Ops& ops, const Bound& t) {
            ops.ResidualBackward({t.values(dout), t.values(dbranch), t.floats(dbias), rows, columns,
                                  rows, dropping ? SomeDropout(13) : Dropout()});
          });
        }
      }
    }
  }
}

TEST_F(CudaOpsTest, Gelu) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : kShapes) {
      for (const bool exact : {false, true}) {
        Begin(format, NameOf("Gelu", rows, columns));
        const int h = AddValues("h", rows * columns, 0, 3);
        const int g = AddValues("g", rows * columns, columns);
        Near(kNear, {g});
        Check([&](Ops& ops, const Bound& t) {
          ops.Gelu({t.values(h), t.values(g), rows, columns, exact});
        });
      }
    }
  }
}

TEST_F(CudaOpsTest, GeluBackward) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : kShapes) {
      for (const bool exact : {false, true}) {
        Begin(format, NameOf("GeluBackward", rows, columns));
        const int dg = AddValues("dg", rows * columns, columns);
        const int h = AddValues("h", rows * columns, 0, 3);
        const int dh = AddValues("dh", rows * columns, columns);
        Near(kNear, {dg, dh});
        for (const int to : {dh, dg}) {  // dh may be dg
          Check([&](Ops& ops, const Bound& t) {
            ops.GeluBackward({t.values(dg), t.values(h), t.values(to), rows, columns, exact});
          });
        }
      }
    }
  }
}

TEST_F(CudaOpsTest, Swiglu) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : kShapes) {
      Begin(format, NameOf("Swiglu", rows, columns));
      const int h = AddValues("h", rows * 2 * columns, 0, 3);
      const int g = AddValues("g", rows * columns, columns);
      const int dg = AddValues("dg", rows * columns);
      const int dh = AddValues("dh", rows * 2 * columns, 2 * columns);
      Near(kNear, {g, dh});
      Check([&](Ops& ops, const Bound& t) {
        ops.Swiglu({t.values(h), t.values(g), rows, columns});
        ops.SwigluBackward({t.values(dg), t.values(h), t.values(dh), rows, columns});
      });
    }
  }
}

TEST_F(CudaOpsTest, Tanh) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : kShapes) {
      Begin(format, NameOf("Tanh", rows, columns));
      const int y = AddValues("y", rows * columns, columns);
      const int bias = columns % 2 == 0 ? AddValues("bias", columns) : kNone;
      const int out = AddValues("out", rows * columns);
      const int dy = AddValues("dy", rows * columns, columns);
      Near(kNear, {y, dy});
      Check([&](Ops& ops, const Bound& t) {
        ops.BiasTanh({t.values(y), t.values(bias), rows, columns});
        ops.TanhBackward({t.values(dy), t.values(out), t.values(dy), rows * columns});
      });
    }
  }
}

TEST_F(CudaOpsTest, Rotary) {
  for (const Format format : kFormats) {
    for (const int64_t head_dim : {2, 6, 16, 64}) {
      for (const bool inverse : {false, true}) {
        const int64_t rows = 21;
        const int64_t tokens = 7;
        const int64_t heads = 3;
        const int64_t stride = heads * head_dim + (inverse ? 5 : 16);
        Begin(format, NameOf("Rotary", rows, head_dim));
        const int x = AddValues("x", rows * stride);
        const int table = AddFloats("table", tokens * head_dim);
        Check([&](Ops& ops, const Bound& t) {
          ops.Rotary(
              {t.values(x), t.floats(table), rows, tokens, stride, heads, head_dim, inverse});
        });
      }
    }
  }
}

TEST_F(CudaOpsTest, Embedding) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : {Shape{1, 5}, {40, 16}, {300, 33}, {5, 530}}) {
      Begin(format, NameOf("Embedding", rows, columns));
      const int tokens = AddInts("tokens", rows, 0, 40);
      const int weight = AddValues("weight", 30 * columns);
      const int out = AddValues("out", rows * columns);
      const int dweight = AddFloats("dweight", 30 * columns);
      Check([&](Ops& ops, const Bound& t) {
        ops.Embedding({t.ints(tokens), t.values(weight), t.values(out), rows, columns, 5, 30});
        ops.EmbeddingBackward(
            {t.ints(tokens), t.values(out), t.floats(dweight), rows, columns, 5, 30});
      });
    }
  }
}

TEST_F(CudaOpsTest, PositionEmbedding) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : {Shape{1, 5}, {39, 16}, {30, 33}, {7, 264}}) {
      for (const bool whole : {false, true}) {
        const int64_t tokens = 13;
        Begin(format, NameOf("PositionEmbedding", rows, columns));
        const int x = AddValues("x", rows * columns);
        const int weight = whole ? AddValues("weight", tokens * columns) : kNone;
        const int types = AddInts("types", rows, 0, 1);
        const int type_weight = whole ? AddValues("type_weight", 2 * columns) : kNone;
        const int dx = AddValues("dx", rows * columns);
        const int dweight = whole ? AddFloats("dweight", tokens * columns) : kNone;
        const int dtype_weight = whole ? AddFloats("dtype_weight", 2 * columns) : kNone;
        const Dropout dropout = columns % 2 == 0 ? SomeDropout(tokens) : Dropout();
        Check([&](Ops& ops, const Bound& t) {
          ops.PositionEmbedding({t.values(x), t.values(weight), rows, columns, tokens, 2, dropout,
                                 t.ints(types), t.values(type_weight)});
          ops.PositionEmbeddingBackward({t.values(dx), t.floats(dweight), rows, columns, tokens, 2,
                                         dropout, t.ints(types), t.floats(dtype_weight)});
        });
      }
    }
  }
}

TEST_F(CudaOpsTest, RowsByIndex) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : {Shape{1, 5}, {40, 16}, {150, 33}}) {
      Begin(format, NameOf("Gather and ScatterAdd", rows, columns));
      const int index = AddInts("index", rows, 0, 24);
      const int x = AddValues("x", 25 * columns);
      const int out = AddValues("out", rows * columns);
      const int to = AddValues("to", 25 * columns);
      Check([&](Ops& ops, const Bound& t) {
        ops.Gather({t.values(x), t.ints(index), t.values(out), rows, columns});
        ops.ScatterAdd({t.values(out), t.ints(index), t.values(to), rows, columns});
      });
    }
  }
}

TEST_F(CudaOpsTest, CrossEntropy) {
  for (const Format format : kFormats) {
    for (const auto& [rows, valid] : {Shape{1, 1}, {5, 13}, {40, 300}, {3, 2500}, {4, 0}}) {
      for (const float amount : {0.0f, 0.1f}) {
        const int64_t stride = (valid + 8) / 8 * 8 + (amount > 0 ? 0 : 3);
        Begin(format, NameOf("CrossEntropy", rows, valid));
        const int logits = AddValues("logits", rows * stride, stride, 4);
        const int targets = AddInts("targets", rows, 0, static_cast<int32_t>(valid + 20));
        const int stats = AddFloats("stats", 2 * rows * kCrossEntropyStats, kCrossEntropyStats);
        const int lse = AddFloats("lse", rows);
        const int loss = AddFloats("loss", rows);
        const int sums = AddDoubles("sums", 8);
        const LabelSmoothing smoothing{amount, 2 * valid + 1};
        Near(1e-5, {logits, stats, lse, loss, sums});
        Check([&](Ops& ops, const Bound& t) {
          // Two ranks: the same logits, other parts of the vocabulary.
          for (const int64_t rank : {0, 1}) {
            ops.CrossEntropyLocal({t.values(logits), t.ints(targets),
                                   t.floats(stats) + rank * rows * kCrossEntropyStats, rows, valid,
                                   stride, 10 + rank * valid, amount > 0});
          }
          ops.CrossEntropyCombine(
              {t.floats(stats), t.floats(lse), t.floats(loss), rows, 2, smoothing});
          ops.CrossEntropyBackward({t.values(logits), t.floats(lse), t.ints(targets), rows, valid,
                                    stride, 10, 0.125f, smoothing});
        });
        // Losses are given, so that their sums have the same bits.
        Near(-1, {sums, loss});
        Check([&](Ops& ops, const Bound& t) {
          ops.AddLosses({t.floats(loss), t.doubles(sums), rows, 3, 7});
        });
      }
    }
  }
}

TEST_F(CudaOpsTest, AdamW) {
  for (const Format format : kFormats) {
    for (const int64_t count : {1, 7, 8, 1000, 5003}) {
      Begin(format, NameOf("AdamW", 1, count));
      const int parameter = AddFloats("parameter", count);
      const int gradient = AddFloats("gradient", count);
      const int m = AddFloats("m", count);
      const int v = AddFloats("v", count, 0, 0.1, 1);
      const int rounded = format == Format::kFloat32 ? kNone : AddValues("rounded", count);
      for (double& value : At(v).data) value = static_cast<float>(std::abs(value));
      Check([&](Ops& ops, const Bound& t) {
        const AdamWTensor tensor = {t.floats(parameter),
                                    t.floats(gradient),
                                    t.floats(m),
                                    t.floats(v),
                                    t.values(rounded),
                                    count,
                                    0.1f};
        ops.AdamW({&tensor, 1, 1e-2f, 0.9f, 0.95f, 1e-8f, 1 - std::pow(0.9, 3),
                   1 - std::pow(0.95, 3), 0.7f});
      });
    }
  }
}

// More tensors than a launch takes, of all lengths, some of them empty: pieces of a few buffers, at
// any alignment.
TEST_F(CudaOpsTest, ManyTensorsAtOnce) {
  constexpr int64_t kTensors = 300;
  const auto length = [](int64_t i) {
    return i % 7 == 3 ? 0 : i % 50 == 0 ? 5000 + i : 3 * i % 41;
  };
  int64_t total = 0;
  for (int64_t i = 0; i < kTensors; ++i) total += length(i);
  Begin(Format::kBfloat16, "many tensors");
  const int parameter = AddFloats("parameter", total);
  const int gradient = AddFloats("gradient", total);
  const int m = AddFloats("m", total);
  const int v = AddFloats("v", total, 0, 0.1, 1);
  const int rounded = AddValues("rounded", total);
  const int sums = AddDoubles("sums", kTensors);
  for (double& value : At(v).data) value = static_cast<float>(std::abs(value));
  Check([&](Ops& ops, const Bound& t) {
    std::vector<AdamWTensor> tensors;
    std::vector<SumOfSquares> squares;
    int64_t at = 0;
    for (int64_t i = 0; i < kTensors; at += length(i), ++i) {
      tensors.push_back({t.floats(parameter) + at, t.floats(gradient) + at, t.floats(m) + at,
                         t.floats(v) + at, t.values(rounded) + at, length(i),
                         i % 2 == 0 ? 0.1f : 0.0f});
      squares.push_back({t.floats(gradient) + at, length(i), t.doubles(sums) + i});
    }
    ops.SumsOfSquares(squares.data(), kTensors);
    ops.AdamW({tensors.data(), kTensors, 1e-2f, 0.9f, 0.95f, 1e-8f, 0.3, 0.2, 0.7f});
  });
}

TEST_F(CudaOpsTest, AddZeroCopySumsAndDigest) {
  for (const Format format : kFormats) {
    for (const int64_t count : {1, 9, 1000, 70003}) {
      Begin(format, NameOf("Add and others", 1, count));
      const int a = AddValues("a", count);
      const int b = AddValues("b", count);
      const int zero = AddValues("zero", count);
      const int wide = AddFloats("wide", count);
      const int back = AddFloats("back", count);
      const int sum = AddDoubles("sum", 1);
      const int digest = AddBits("digest");
      Check([&](Ops& ops, const Bound& t) {
        ops.Add(t.values(a), t.values(b), count);
        ops.Zero(t.values(zero), count);
        ops.Copy(t.values(b), t.floats(wide), count);
        ops.Copy(t.floats(back), t.values(b), count);
        const SumOfSquares squares = {t.floats(wide), count, t.doubles(sum)};
        ops.SumsOfSquares(&squares, 1);
        ops.Digest(t.floats(wide), count, t.bits(digest));
      });
    }
  }
}

// Rounding in place is a copy onto itself.
TEST_F(CudaOpsTest, CopiesOntoThemselves) {
  for (const Format format : kFormats) {
    Begin(format, "copy");
    const int a = AddValues("a", 1003);
    Check([&](Ops& ops, const Bound& t) { ops.Copy(t.values(a), t.values(a), 1003); });
  }
}

TEST_F(CudaOpsTest, NothingOfNoRows) {
  Begin(Format::kFloat32, "no rows");
  const int x = AddValues("x", 16);
  const int sums = AddFloats("sums", 16);
  Check([&](Ops& ops, const Bound& t) {
    const Values v = t.values(x);
    float* f = t.floats(sums);
    ops.LayerNorm({v, v, v, v, f, f, 0, 8});
    ops.LayerNormBackward({v, v, v, f, f, v, f, f, 0, 8, 1});
    ops.Residual({v, v, v, v, 0, 8, {}});
    ops.GeluBackward({v, v, v, 0, 8, false});
    ops.EmbeddingBackward({nullptr, v, f, 0, 8, 0, 2});
    ops.CrossEntropyLocal({v, nullptr, f, 0, 8, 8, 0, false});
    ops.AddLosses({f, nullptr, 0, 0, 1});
    const AdamWTensor tensor = {f, f, f, f, nullptr, 0, 1};
    ops.AdamW({&tensor, 1, 1, 1, 1, 1, 1, 1, 1});
    ops.AdamW({nullptr, 0, 1, 1, 1, 1, 1, 1, 1});
    ops.SumsOfSquares(nullptr, 0);
    ops.Add(v, v, 0);
  });
}

// NaN in a row is in what becomes of the row, and nowhere else.
TEST_F(CudaOpsTest, NanIsNotHidden) {
  const int64_t rows = 5;
  const int64_t columns = 40;
  for (const Format format : kFormats) {
    Begin(format, "NaN");
    const int x = AddValues("x", rows * columns);
    const int targets = AddInts("targets", rows, 0, 39);
    const int weight = AddValues("weight", columns);
    const int y = AddValues("y", rows * columns);
    const int mean = AddFloats("mean", rows);
    const int rstd = AddFloats("rstd", rows);
    const int stats = AddFloats("stats", rows * kCrossEntropyStats);
    const int lse = AddFloats("lse", rows);
    const int loss = AddFloats("loss", rows);
    At(x).data[static_cast<size_t>(2 * columns + 17)] = std::numeric_limits<double>::quiet_NaN();
    Near(1e-5, {y, mean, rstd, stats, lse, loss});
    const auto results = Check([&](Ops& ops, const Bound& t) {
      ops.LayerNorm({t.values(x), t.values(weight), nullptr, t.values(y), t.floats(mean),
                     t.floats(rstd), rows, columns});
      ops.CrossEntropyLocal(
          {t.values(x), t.ints(targets), t.floats(stats), rows, columns, columns, 0, false});
      ops.CrossEntropyCombine({t.floats(stats), t.floats(lse), t.floats(loss), rows, 1, {}});
    });
    for (const int64_t row : {0, 1, 2, 3, 4}) {
      const auto at = static_cast<size_t>(row);
      EXPECT_EQ(std::isnan(results[static_cast<size_t>(loss)].data[at]), row == 2);
      EXPECT_EQ(std::isnan(results[static_cast<size_t>(y)].data[at * columns]), row == 2);
    }
  }
}

// Operations can be captured into a graph, which repeats them.
TEST_F(CudaOpsTest, GraphsRepeatThem) {
  constexpr int64_t kRows = 40;
  constexpr int64_t kColumns = 24;
  std::normal_distribution<float> normal;
  const auto random = [&](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random_);
    return values;
  };
  DeviceBuffer<float> x(random(kRows * kColumns), 0), w(random(kColumns * kColumns), 0);
  DeviceBuffer<float> bias(random(kColumns), 1);  // products copy it to where it is aligned
  DeviceBuffer<float> y(kRows * kColumns), normed(kRows * kColumns), mean(kRows), rstd(kRows);
  DeviceBuffer<float> dw(std::vector<float>(kColumns * kColumns), 0), dbias(random(kColumns), 0);
  DeviceBuffer<unsigned char> workspace(CudaScratchBytes(scratch_));
  OperationErrors errors;
  const auto ops = CreateCudaOps({stream_, reinterpret_cast<std::byte*>(workspace.data()),
                                  CudaScratchBytes(scratch_), &errors, nullptr});
  const auto step = [&] {
    ops->Matmul({x.data(), w.data(), bias.data(), y.data(), kRows, kColumns, kColumns});
    ops->LayerNorm(
        {y.data(), bias.data(), nullptr, normed.data(), mean.data(), rstd.data(), kRows, kColumns});
    ops->MatmulBackwardWeight(
        {y.data(), x.data(), dw.data(), dbias.data(), kRows, kColumns, kColumns, kRows, true});
  };
  step();
  const auto once = dw.Read(stream_);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  step();
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(dw.Read(stream_), once);  // nothing has run
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (const float times : {2.0f, 3.0f}) {
    ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    const auto sum = dw.Read(stream_);
    for (size_t i = 0; i < sum.size(); ++i) {
      ASSERT_NEAR(sum[i], times * once[i], 1e-5f * std::abs(sum[i]) + 1e-6f) << i;
    }
  }
  EXPECT_FALSE(errors.first());
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

#ifdef TERCIO_CUDA_EMULATED
TEST_F(CudaOpsTest, TheFirstErrorIsKeptAndEndsTheWork) {
  DeviceBuffer<float> a(std::vector<float>{1, 2}, 0);
  DeviceBuffer<unsigned char> workspace(1024);
  OperationErrors errors;
  const auto ops = CreateCudaOps(
      {stream_, reinterpret_cast<std::byte*>(workspace.data()), 1024, &errors, nullptr});
  emulation::InjectFault({cudaErrorIllegalAddress});
  ops->Add(a.data(), a.data(), 2);
  EXPECT_FALSE(errors.first());  // it has not run yet
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  ops->BiasTanh({a.data(), nullptr, 1, 2});
  ASSERT_TRUE(errors.first());
  EXPECT_EQ(errors.first()->operation, "BiasTanh");
  EXPECT_NE(errors.first()->what.find("cudaErrorIllegalAddress"), std::string::npos);
  const int64_t works = emulation::GetCounts().works;
  ops->Add(a.data(), a.data(), 2);
  EXPECT_EQ(emulation::GetCounts().works, works);
  EXPECT_EQ(errors.first()->operation, "BiasTanh");
  emulation::Configure({});  // the device is beyond repair
  stream_ = nullptr;
}
#endif

}  // namespace
}  // namespace tercio::kernels::cuda
