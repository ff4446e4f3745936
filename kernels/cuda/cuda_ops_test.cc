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
#include "kernels/exact_sum.h"
#include "kernels/random.h"

namespace tercio::kernels::cuda {
namespace {

constexpr Format kFormats[] = {Format::kFloat32, Format::kBfloat16, Format::kFloat16};
constexpr Activation kFunctions[] = {Activation::kGeluTanh, Activation::kGelu, Activation::kRelu,
                                     Activation::kSilu};
struct NormKind {
  bool rms, unit_offset;
};
constexpr NormKind kNorms[] = {{false, false}, {true, false}, {false, true}, {true, true}};
constexpr double kNear = 2e-6;
constexpr int kNone = Bound::kNone;

struct Shape {
  int64_t rows, columns;
};
// One element; fewer columns than a group; a group; more rows than a block; more columns than a
// block of threads has groups; odd ones; several blocks of rows of a sum.
constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {5, 8}, {33, 40}, {70, 257}, {9, 300}, {2, 64}};
constexpr Shape kSumShapes[] = {{1, 5}, {8, 16}, {31, 33}, {100, 72}, {520, 12}};

Dropout SomeDropout(int64_t tokens) {
  return {.probability = 0.25f,
          .seed = 77,
          .step = 5,
          .layer = 3,
          .site = kSiteMlpOutput,
          .first_sequence = 11,
          .tokens = tokens,
          .first_row = 2};
}

std::string NameOf(const char* operation, int64_t rows, int64_t columns) {
  return std::string(operation) + " " + std::to_string(rows) + " x " + std::to_string(columns);
}

class CudaOpsTest : public BothBackendsTest {
 protected:
  // Checks the norm of one row, or its gradient.
  void CheckNormOfARow(Format format, int64_t columns, bool backward) {
    scratch_ = {.rows = 1, .norm_columns = columns};
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
        ops.LayerNormBackward({.dy = t.values(dy),
                               .x = t.values(x),
                               .weight = t.values(weight),
                               .mean = t.floats(mean),
                               .rstd = t.floats(rstd),
                               .dx = t.values(y),
                               .dweight = t.floats(dweight),
                               .dbias = nullptr,
                               .rows = 1,
                               .columns = columns,
                               .rows_per_leaf = 1,
                               .unit_offset = format == Format::kFloat16});
      } else {
        ops.LayerNorm({.x = t.values(x),
                       .weight = t.values(weight),
                       .bias = nullptr,
                       .y = t.values(y),
                       .mean = t.floats(mean),
                       .rstd = t.floats(rstd),
                       .rows = 1,
                       .columns = columns});
      }
    });
  }
};

TEST_F(CudaOpsTest, LayerNorm) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : kShapes) {
      for (const auto& [rms, unit_offset] : kNorms) {
        Begin(format, NameOf("LayerNorm", rows, columns));
        const int x = AddValues("x", rows * columns, columns, 1, 0.5);
        const int weight = AddValues("weight", columns);
        const int bias = rms ? kNone : AddValues("bias", columns);
        const int y = AddValues("y", rows * columns, columns);
        const int mean = AddFloats("mean", rows);
        const int rstd = AddFloats("rstd", rows);
        // A row of two nearly equal numbers has a large 1 / deviation, and its error with it.
        Near(columns < 3 ? 1e-3 : kNear, {y, mean, rstd});
        Check([&, rms = rms, unit_offset = unit_offset](Ops& ops, const Bound& t) {
          ops.LayerNorm({.x = t.values(x),
                         .weight = t.values(weight),
                         .bias = t.values(bias),
                         .y = t.values(y),
                         .mean = t.floats(mean),
                         .rstd = t.floats(rstd),
                         .rows = rows,
                         .columns = columns,
                         .eps = 1e-5f,
                         .rms = rms,
                         .unit_offset = unit_offset});
        });
      }
    }
  }
}

TEST_F(CudaOpsTest, LayerNormBackward) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : {Shape{1, 5}, {3, 64}, {33, 40}, {70, 257}, {520, 12}}) {
      for (const auto& [rms, unit_offset] : kNorms) {
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
        Check([&, rms = rms, unit_offset = unit_offset](Ops& ops, const Bound& t) {
          ops.LayerNormBackward({.dy = t.values(dy),
                                 .x = t.values(x),
                                 .weight = t.values(weight),
                                 .mean = t.floats(mean),
                                 .rstd = t.floats(rstd),
                                 .dx = t.values(dx),
                                 .dweight = t.floats(dweight),
                                 .dbias = t.floats(dbias),
                                 .rows = rows,
                                 .columns = columns,
                                 .rows_per_leaf = rows,
                                 .accumulate = accumulate,
                                 .rms = rms,
                                 .unit_offset = unit_offset});
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
          return {.residual = t.values(residual),
                  .branch = t.values(branch),
                  .bias = t.values(bias),
                  .out = t.values(out),
                  .rows = rows,
                  .columns = columns,
                  .dropout = dropout};
        };
        Check([&](Ops& ops, const Bound& t) { ops.Residual(add(t)); });
        Check([&](Ops& ops, const Bound& t) {
          ops.RunChain({.residual = add(t),
                        .norm = LayerNormArgs{.x = nullptr,
                                              .weight = t.values(weight),
                                              .bias = t.values(shift),
                                              .y = t.values(y),
                                              .mean = t.floats(mean),
                                              .rstd = t.floats(rstd),
                                              .rows = rows,
                                              .columns = columns,
                                              .eps = 1e-5f,
                                              .rms = false}});
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
            ops.ResidualBackward({.dout = t.values(dout),
                                  .dbranch = t.values(dbranch),
                                  .dbias = t.floats(dbias),
                                  .rows = rows,
                                  .columns = columns,
                                  .rows_per_leaf = rows,
                                  .dropout = dropping ? SomeDropout(13) : Dropout()});
          });
        }
      }
    }
  }
}

TEST_F(CudaOpsTest, Columns) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : {Shape{1, 5}, {3, 8}, {33, 40}, {20, 257}}) {
      for (const bool dropping : {false, true}) {
        for (const bool by_row : {false, true}) {
          Begin(format, NameOf("Columns", rows, columns));
          const int from = AddValues("from", rows * (columns + 8));
          const int times = AddValues("times", by_row ? columns : rows * columns);
          const int to = AddValues("to", rows * (columns + 3));
          Check([&](Ops& ops, const Bound& t) {
            ops.Columns({.from = t.values(from) + 8,
                         .from_stride = columns + 8,
                         .to = t.values(to),
                         .to_stride = columns + 3,
                         .rows = rows,
                         .columns = columns,
                         .factor = 0.75f,
                         .times = dropping && by_row ? Values() : t.values(times),
                         .times_stride = by_row ? 0 : columns,
                         .accumulate = !dropping,
                         .dropout = dropping ? SomeDropout(13) : Dropout(),
                         .first_channel = 12});
          });
        }
      }
    }
  }
}

TEST_F(CudaOpsTest, Activations) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : kShapes) {
      for (const Activation function : kFunctions) {
        Begin(format, NameOf("Activate", rows, columns));
        const int h = AddValues("h", rows * columns, 0, 3);
        const int g = AddValues("g", rows * columns, columns);
        const int dg = AddValues("dg", rows * columns, columns);
        const int dh = AddValues("dh", rows * columns, columns);
        Near(kNear, {g, dg, dh});
        Check([&](Ops& ops, const Bound& t) {
          ops.Activate({.h = t.values(h),
                        .g = t.values(g),
                        .rows = rows,
                        .columns = columns,
                        .function = function});
        });
        for (const int to : {dh, dg}) {  // dh may be dg
          Check([&](Ops& ops, const Bound& t) {
            ops.ActivateBackward({.dg = t.values(dg),
                                  .h = t.values(h),
                                  .dh = t.values(to),
                                  .rows = rows,
                                  .columns = columns,
                                  .function = function});
          });
        }
      }
    }
  }
}

TEST_F(CudaOpsTest, GatedActivations) {
  for (const Format format : kFormats) {
    for (const auto& [rows, columns] : kShapes) {
      for (const Activation function : kFunctions) {
        Begin(format, NameOf("Gated", rows, columns));
        const int h = AddValues("h", rows * 2 * columns, 0, 3);
        const int g = AddValues("g", rows * columns, columns);
        const int dg = AddValues("dg", rows * columns);
        const int dh = AddValues("dh", rows * 2 * columns, 2 * columns);
        Near(kNear, {g, dh});
        Check([&](Ops& ops, const Bound& t) {
          ops.Gated({.h = t.values(h),
                     .g = t.values(g),
                     .rows = rows,
                     .columns = columns,
                     .function = function});
          ops.GatedBackward({.dg = t.values(dg),
                             .h = t.values(h),
                             .dh = t.values(dh),
                             .rows = rows,
                             .columns = columns,
                             .function = function});
        });
      }
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
        ops.BiasTanh({.y = t.values(y), .bias = t.values(bias), .rows = rows, .columns = columns});
        ops.TanhBackward(
            {.dy = t.values(dy), .y = t.values(out), .dx = t.values(dy), .count = rows * columns});
      });
    }
  }
}

TEST_F(CudaOpsTest, Embedding) {
  for (const Format format : kFormats) {
    // The last but one takes several rounds of the search, with and without hits, and the last one
    // several blocks of columns.
    for (const auto& [rows, columns] :
         {Shape{1, 5}, {40, 16}, {301, 33}, {5, 530}, {1700, 24}, {9, 1100}}) {
      const float scale = rows % 2 == 0 ? 1.0f : 5.5f;
      Begin(format, NameOf("Embedding", rows, columns));
      const int tokens = AddInts("tokens", rows, 0, 40);
      // One that is far from all others of its kind, at both ends.
      if (rows > 1000) {
        for (int64_t i = 1; i + 1 < rows; ++i) {
          double& token = At(tokens).data[static_cast<size_t>(i)];
          if (token == 20) token = 21;
        }
        At(tokens).data.front() = At(tokens).data.back() = 20;
      }
      const int weight = AddValues("weight", 30 * columns);
      const int out = AddValues("out", rows * columns);
      const int dweight = AddFloats("dweight", 30 * columns);
      Check([&](Ops& ops, const Bound& t) {
        ops.Embedding({.tokens = t.ints(tokens),
                       .weight = t.values(weight),
                       .out = t.values(out),
                       .count = rows,
                       .columns = columns,
                       .vocabulary_begin = 5,
                       .vocabulary_rows = 30,
                       .scale = scale});
        ops.EmbeddingBackward({.tokens = t.ints(tokens),
                               .dx = t.values(out),
                               .dweight = t.floats(dweight),
                               .count = rows,
                               .columns = columns,
                               .vocabulary_begin = 5,
                               .vocabulary_rows = 30,
                               .scale = scale});
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
        const int positions = AddInts("positions", rows, 0, static_cast<int32_t>(tokens) - 1);
        const Dropout dropout = columns % 2 == 0 ? SomeDropout(tokens) : Dropout();
        // Positions of sequences, and such that restart anywhere.
        for (const int restarted : {kNone, positions}) {
          Check([&](Ops& ops, const Bound& t) {
            ops.PositionEmbedding({.x = t.values(x),
                                   .weight = t.values(weight),
                                   .rows = rows,
                                   .columns = columns,
                                   .tokens = tokens,
                                   .first_row = 2,
                                   .dropout = dropout,
                                   .types = t.ints(types),
                                   .type_weight = t.values(type_weight),
                                   .positions = t.ints(restarted)});
            ops.PositionEmbeddingBackward({.dx = t.values(dx),
                                           .dweight = t.floats(dweight),
                                           .rows = rows,
                                           .columns = columns,
                                           .tokens = tokens,
                                           .first_row = 2,
                                           .dropout = dropout,
                                           .types = t.ints(types),
                                           .dtype_weight = t.floats(dtype_weight),
                                           .positions = t.ints(restarted)});
          });
        }
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
        ops.Gather({.x = t.values(x),
                    .index = t.ints(index),
                    .out = t.values(out),
                    .count = rows,
                    .columns = columns});
        ops.ScatterAdd({.from = t.values(out),
                        .index = t.ints(index),
                        .to = t.values(to),
                        .count = rows,
                        .columns = columns});
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
        const LabelSmoothing smoothing{.amount = amount, .vocabulary = 2 * valid + 1};
        Near(1e-5, {logits, stats, lse, loss, sums});
        Check([&](Ops& ops, const Bound& t) {
          // Two ranks: the same logits, other parts of the vocabulary.
          for (const int64_t rank : {0, 1}) {
            ops.CrossEntropyLocal({.logits = t.values(logits),
                                   .targets = t.ints(targets),
                                   .stats = t.floats(stats) + rank * rows * kCrossEntropyStats,
                                   .rows = rows,
                                   .valid = valid,
                                   .stride = stride,
                                   .vocabulary_begin = 10 + rank * valid,
                                   .sums = amount > 0});
          }
          ops.CrossEntropyCombine({.stats = t.floats(stats),
                                   .lse = t.floats(lse),
                                   .loss = t.floats(loss),
                                   .rows = rows,
                                   .ranks = 2,
                                   .smoothing = smoothing});
          ops.CrossEntropyBackward({.logits = t.values(logits),
                                    .lse = t.floats(lse),
                                    .targets = t.ints(targets),
                                    .rows = rows,
                                    .valid = valid,
                                    .stride = stride,
                                    .vocabulary_begin = 10,
                                    .scale = 0.125f,
                                    .smoothing = smoothing});
        });
        // Losses are given, so that their sums have the same bits.
        Near(-1, {sums, loss});
        Check([&](Ops& ops, const Bound& t) {
          ops.AddLosses({.loss = t.floats(loss),
                         .sums = t.doubles(sums),
                         .rows = rows,
                         .first_row = 3,
                         .rows_per_sum = 7});
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
        const AdamWTensor tensor = {.parameter = t.floats(parameter),
                                    .gradient = t.floats(gradient),
                                    .m = t.floats(m),
                                    .v = t.floats(v),
                                    .rounded = t.values(rounded),
                                    .count = count,
                                    .weight_decay = 0.1f};
        ops.AdamW({.tensors = &tensor,
                   .tensor_count = 1,
                   .learning_rate = 1e-2f,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .eps = 1e-8f,
                   .bias_correction1 = 1 - std::pow(0.9, 3),
                   .bias_correction2 = 1 - std::pow(0.95, 3),
                   .clip = 0.7f});
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
  const int not_finite = AddDoubles("not finite", kTensors);
  const int limbs = AddDoubles("limbs", kSumLimbs);
  for (double& value : At(v).data) value = static_cast<float>(std::abs(value));
  Check([&](Ops& ops, const Bound& t) {
    std::vector<AdamWTensor> tensors;
    std::vector<SquaredTensor> squares;
    int64_t at = 0;
    for (int64_t i = 0; i < kTensors; at += length(i), ++i) {
      tensors.push_back({.parameter = t.floats(parameter) + at,
                         .gradient = t.floats(gradient) + at,
                         .m = t.floats(m) + at,
                         .v = t.floats(v) + at,
                         .rounded = t.values(rounded) + at,
                         .count = length(i),
                         .weight_decay = i % 2 == 0 ? 0.1f : 0.0f});
      squares.push_back({.values = t.floats(gradient) + at,
                         .count = length(i),
                         .not_finite = t.doubles(not_finite) + i});
    }
    ops.SumsOfSquares(
        {.tensors = squares.data(), .tensor_count = kTensors, .limbs = t.doubles(limbs)});
    ops.AdamW({.tensors = tensors.data(),
               .tensor_count = kTensors,
               .learning_rate = 1e-2f,
               .beta1 = 0.9f,
               .beta2 = 0.95f,
               .eps = 1e-8f,
               .bias_correction1 = 0.3,
               .bias_correction2 = 0.2,
               .clip = 0.7f});
  });
}

TEST_F(CudaOpsTest, AddScaleZeroCopySumsAndDigest) {
  for (const Format format : kFormats) {
    for (const int64_t count : {1, 9, 1000, 70003}) {
      Begin(format, NameOf("Add and others", 1, count));
      const int a = AddValues("a", count);
      const int b = AddValues("b", count);
      const int scaled = AddValues("scaled", count);
      const int zero = AddValues("zero", count);
      const int wide = AddFloats("wide", count);
      const int back = AddFloats("back", count);
      const int not_finite = AddDoubles("not finite", 1);
      const int limbs = AddDoubles("limbs", kSumLimbs);
      const int digest = AddBits("digest");
      const int digest_of_rows = AddBits("digest of rows");
      Check([&](Ops& ops, const Bound& t) {
        ops.Add(t.values(a), t.values(b), count);
        ops.Scale(t.values(scaled), 1.0f / 3, count);
        ops.Zero(t.values(zero), count);
        ops.Copy(t.values(b), t.floats(wide), count);
        ops.Copy(t.floats(back), t.values(b), count);
        const SquaredTensor squares = {
            .values = t.floats(wide), .count = count, .not_finite = t.doubles(not_finite)};
        ops.SumsOfSquares({.tensors = &squares, .tensor_count = 1, .limbs = t.doubles(limbs)});
        ops.Digest({.values = t.floats(wide), .columns = count, .digest = t.bits(digest)});
        ops.Digest({.values = t.floats(wide),
                    .columns = 3,
                    .rows = count / 3,
                    .first = 12345,
                    .stride = 7,
                    .digest = t.bits(digest_of_rows)});
      });
    }
  }
}

TEST_F(CudaOpsTest, SumsOfSquaresCountWhatIsNotFinite) {
  constexpr int64_t kCount = 140003;
  Begin(Format::kFloat32, "not finite");
  const int values = AddFloats("values", kCount);
  At(values).data[7] = std::numeric_limits<float>::infinity();
  At(values).data[90000] = std::numeric_limits<float>::quiet_NaN();
  At(values).data[90001] = -std::numeric_limits<float>::infinity();
  const int not_finite = AddDoubles("not finite", 2);
  const int limbs = AddDoubles("limbs", kSumLimbs);
  Check([&](Ops& ops, const Bound& t) {
    const SquaredTensor tensors[] = {{t.floats(values), kCount, t.doubles(not_finite)},
                                     {t.floats(values) + 100, 5000, t.doubles(not_finite) + 1}};
    ops.SumsOfSquares({.tensors = tensors, .tensor_count = 2, .limbs = t.doubles(limbs)});
  });
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
  const int limbs = AddDoubles("limbs", kSumLimbs);
  Check([&](Ops& ops, const Bound& t) {
    const Values v = t.values(x);
    float* f = t.floats(sums);
    ops.LayerNorm(
        {.x = v, .weight = v, .bias = v, .y = v, .mean = f, .rstd = f, .rows = 0, .columns = 8});
    ops.LayerNormBackward({.dy = v,
                           .x = v,
                           .weight = v,
                           .mean = f,
                           .rstd = f,
                           .dx = v,
                           .dweight = f,
                           .dbias = f,
                           .rows = 0,
                           .columns = 8,
                           .rows_per_leaf = 1});
    ops.Residual(
        {.residual = v, .branch = v, .bias = v, .out = v, .rows = 0, .columns = 8, .dropout = {}});
    ops.ActivateBackward({.dg = v, .h = v, .dh = v, .rows = 0, .columns = 8});
    ops.EmbeddingBackward({.tokens = nullptr,
                           .dx = v,
                           .dweight = f,
                           .count = 0,
                           .columns = 8,
                           .vocabulary_begin = 0,
                           .vocabulary_rows = 2});
    ops.CrossEntropyLocal({.logits = v,
                           .targets = nullptr,
                           .stats = f,
                           .rows = 0,
                           .valid = 8,
                           .stride = 8,
                           .vocabulary_begin = 0,
                           .sums = false});
    ops.AddLosses({.loss = f, .sums = nullptr, .rows = 0, .first_row = 0, .rows_per_sum = 1});
    const AdamWTensor tensor = {.parameter = f,
                                .gradient = f,
                                .m = f,
                                .v = f,
                                .rounded = nullptr,
                                .count = 0,
                                .weight_decay = 1};
    ops.AdamW({.tensors = &tensor,
               .tensor_count = 1,
               .learning_rate = 1,
               .beta1 = 1,
               .beta2 = 1,
               .eps = 1,
               .bias_correction1 = 1,
               .bias_correction2 = 1,
               .clip = 1});
    ops.AdamW({.tensors = nullptr,
               .tensor_count = 0,
               .learning_rate = 1,
               .beta1 = 1,
               .beta2 = 1,
               .eps = 1,
               .bias_correction1 = 1,
               .bias_correction2 = 1,
               .clip = 1});
    ops.SumsOfSquares({.tensors = nullptr, .tensor_count = 0, .limbs = t.doubles(limbs)});
    ops.Add(v, v, 0);
    ops.Scale(v, 2, 0);
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
      ops.LayerNorm({.x = t.values(x),
                     .weight = t.values(weight),
                     .bias = nullptr,
                     .y = t.values(y),
                     .mean = t.floats(mean),
                     .rstd = t.floats(rstd),
                     .rows = rows,
                     .columns = columns});
      ops.CrossEntropyLocal({.logits = t.values(x),
                             .targets = t.ints(targets),
                             .stats = t.floats(stats),
                             .rows = rows,
                             .valid = columns,
                             .stride = columns,
                             .vocabulary_begin = 0,
                             .sums = false});
      ops.CrossEntropyCombine({.stats = t.floats(stats),
                               .lse = t.floats(lse),
                               .loss = t.floats(loss),
                               .rows = rows,
                               .ranks = 1,
                               .smoothing = {}});
    });
    for (const int64_t row : {0, 1, 2, 3, 4}) {
      const auto at = static_cast<size_t>(row);
      EXPECT_EQ(std::isnan(results[static_cast<size_t>(loss)].data[at]), row == 2);
      EXPECT_EQ(std::isnan(results[static_cast<size_t>(y)].data[at * columns]), row == 2);
    }
  }
}

}  // namespace
}  // namespace tercio::kernels::cuda
