// The CPU's operations against the double-precision reference over odd shapes, their gradients
// against finite differences, and the exactness that kernels/ops.h promises.
#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/testing/cpu_ops_case.h"
#include "kernels/exact_sum.h"
#include "kernels/random.h"
#include "kernels/reference/reference_ops.h"

namespace tercio::kernels {
namespace {

using reference::Values;

TEST_F(CpuOpsTest, ProductsOverOddShapes) {
  const int64_t shapes[][3] = {{1, 1, 1},     {1, 17, 5},    {2, 3, 257},   {5, 16, 16},
                               {7, 33, 31},   {13, 65, 300}, {97, 49, 64},  {6, 96, 256},
                               {64, 128, 20}, {3, 3100, 9},  {200, 31, 513}};
  for (const auto& [m, n, k] : shapes) {
    const Floats x = Random(m * k);
    const Floats w = Random(n * k);
    const Floats bias = Random(n);
    const Values exact =
        reference::Matmul(Exact(x), Exact(w), Exact(bias), {.m = m, .n = n, .k = k});
    const Values scale = reference::MatmulScale(Exact(x), Exact(w), {.m = m, .n = n, .k = k});
    Floats y(static_cast<size_t>(m * n));
    ops_->Matmul({.x = x.data(),
                  .w = w.data(),
                  .bias = bias.data(),
                  .y = y.data(),
                  .m = m,
                  .n = n,
                  .k = k,
                  .accumulate = false});
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], exact[i], 1e-6 * (scale[i] + 1)) << i;

    const Floats dy = Random(m * n);
    Floats dx(static_cast<size_t>(m * k));
    ops_->MatmulBackwardInput({.dy = dy.data(),
                               .w = w.data(),
                               .dx = dx.data(),
                               .m = m,
                               .n = n,
                               .k = k,
                               .accumulate = false});
    const Values wt = reference::Transpose(Exact(w), n, k);
    const Values exact_dx = reference::Matmul(Exact(dy), wt, {}, {.m = m, .n = k, .k = n});
    const Values scale_dx = reference::MatmulScale(Exact(dy), wt, {.m = m, .n = k, .k = n});
    for (size_t i = 0; i < dx.size(); ++i) ASSERT_NEAR(dx[i], exact_dx[i], 1e-6 * scale_dx[i]) << i;

    Floats dw(static_cast<size_t>(n * k), 0.0f);
    Floats dbias(static_cast<size_t>(n), 0.0f);
    ops_->MatmulBackwardWeight({.dy = dy.data(),
                                .x = x.data(),
                                .dw = dw.data(),
                                .dbias = dbias.data(),
                                .m = m,
                                .n = n,
                                .k = k,
                                .rows_per_leaf = m,
                                .accumulate = true});
    const Values dyt = reference::Transpose(Exact(dy), m, n);
    const Values xt = reference::Transpose(Exact(x), m, k);
    const Values exact_dw = reference::Matmul(dyt, xt, {}, {.m = n, .n = k, .k = m});
    const Values scale_dw = reference::MatmulScale(dyt, xt, {.m = n, .n = k, .k = m});
    for (size_t i = 0; i < dw.size(); ++i) ASSERT_NEAR(dw[i], exact_dw[i], 1e-6 * scale_dw[i]) << i;
  }
}

TEST_F(CpuOpsTest, ARowHasTheSameBitsForAnyNumberOfRowsAndThreads) {
  const int64_t n = 150;
  const int64_t k = 300;
  const int64_t most = 131;
  const Floats x = Random(most * k);
  const Floats w = Random(n * k);
  Floats whole(static_cast<size_t>(most * n));
  ops_->Matmul({.x = x.data(),
                .w = w.data(),
                .bias = nullptr,
                .y = whole.data(),
                .m = most,
                .n = n,
                .k = k,
                .accumulate = false});
  for (const int threads : {1, 3}) {
    const auto other = CreateCpuOps(threads);
    for (const int64_t rows : {1, 2, 5, 6, 7, 12, 31, 96, 97, 131}) {
      Floats part(static_cast<size_t>(rows * n));
      other->Matmul({.x = x.data(),
                     .w = w.data(),
                     .bias = nullptr,
                     .y = part.data(),
                     .m = rows,
                     .n = n,
                     .k = k,
                     .accumulate = false});
      ASSERT_EQ(std::memcmp(part.data(), whole.data(), part.size() * sizeof(float)), 0)
          << rows << " rows, " << threads << " threads";
    }
  }
}

TEST_F(CpuOpsTest, WeightGradientsOfSeveralCallsEqualOne) {
  const int64_t leaf = 300;  // two pieces each
  const int64_t n = 20;
  const int64_t k = 33;
  const Floats dy = Random(3 * leaf * n);
  const Floats x = Random(3 * leaf * k);
  Floats whole(static_cast<size_t>(n * k), 0.0f);
  Floats whole_bias(static_cast<size_t>(n), 0.0f);
  ops_->MatmulBackwardWeight({.dy = dy.data(),
                              .x = x.data(),
                              .dw = whole.data(),
                              .dbias = whole_bias.data(),
                              .m = 3 * leaf,
                              .n = n,
                              .k = k,
                              .rows_per_leaf = leaf,
                              .accumulate = false});
  Floats parts(whole.size(), 7.0f);
  Floats parts_bias(whole_bias.size(), 7.0f);
  for (int64_t i = 0; i < 3; ++i) {
    ops_->MatmulBackwardWeight({.dy = dy.data() + i * leaf * n,
                                .x = x.data() + i * leaf * k,
                                .dw = parts.data(),
                                .dbias = parts_bias.data(),
                                .m = leaf,
                                .n = n,
                                .k = k,
                                .rows_per_leaf = leaf,
                                .accumulate = i > 0});
  }
  EXPECT_EQ(whole, parts);
  EXPECT_EQ(whole_bias, parts_bias);
}

TEST_F(CpuOpsTest, GradientsOfNoRowsAreZero) {
  const Floats before = Random(6);
  for (const bool accumulate : {false, true}) {
    Floats dw = before;
    Floats dbias(before.begin(), before.begin() + 2);
    ops_->MatmulBackwardWeight({.dy = dw.data(),
                                .x = dw.data(),
                                .dw = dw.data(),
                                .dbias = dbias.data(),
                                .m = 0,
                                .n = 2,
                                .k = 3,
                                .rows_per_leaf = 1,
                                .accumulate = accumulate});
    EXPECT_EQ(dw, accumulate ? before : Floats(6, 0.0f));
    EXPECT_EQ(dbias, accumulate ? Floats(before.begin(), before.begin() + 2) : Floats(2, 0.0f));
  }
}

TEST_F(CpuOpsTest, GatheredRowsAndTheirGradient) {
  const int64_t columns = 70;
  const std::vector<int32_t> index = {4, 0, 4, 2};
  const Floats x = Random(5 * columns);
  Floats out(4 * columns);
  ops_->Gather(
      {.x = x.data(), .index = index.data(), .out = out.data(), .count = 4, .columns = columns});
  Floats sum(5 * columns, 1.0f);
  ops_->ScatterAdd({.from = out.data(),
                    .index = index.data(),
                    .to = sum.data(),
                    .count = 4,
                    .columns = columns});
  for (size_t c = 0; c < columns; ++c) {
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(out[i * columns + c], x[static_cast<size_t>(index[i]) * columns + c]);
    }
    EXPECT_EQ(sum[0 * columns + c], 1 + x[c]);
    EXPECT_EQ(sum[1 * columns + c], 1);
    EXPECT_EQ(sum[4 * columns + c], (1 + x[4 * columns + c]) + x[4 * columns + c]);
  }
}

TEST_F(CpuOpsTest, TypesAreAddedToPositions) {
  const int64_t rows = 6;
  const int64_t columns = 5;
  const std::vector<int32_t> types = {0, 1, 1, 0, 0, 1};
  Floats x = Random(rows * columns);
  const Floats before = x;
  const Floats positions = Random(4 * columns);
  const Floats table = Random(2 * columns);
  PositionEmbeddingArgs args{
      .x = x.data(), .weight = positions.data(), .rows = rows, .columns = columns, .tokens = 4};
  args.types = types.data();
  args.type_weight = table.data();
  ops_->PositionEmbedding(args);
  Floats gradient(table.size());
  PositionEmbeddingBackwardArgs back{};
  back.dx = x.data();
  back.rows = rows;
  back.columns = columns;
  back.tokens = 4;
  back.types = types.data();
  back.dtype_weight = gradient.data();
  ops_->PositionEmbeddingBackward(back);
  for (size_t c = 0; c < columns; ++c) {
    float ones = 0;
    for (size_t n = 0; n < rows; ++n) {
      const size_t type = static_cast<size_t>(types[n]);
      EXPECT_EQ(x[n * columns + c], (before[n * columns + c] + positions[n % 4 * columns + c]) +
                                        table[type * columns + c]);
      if (type == 1) ones += x[n * columns + c];
    }
    EXPECT_EQ(gradient[columns + c], ones);
  }
}

TEST_F(CpuOpsTest, PositionsMayRestart) {
  const int64_t rows = 7;
  const int64_t columns = 70;  // of several threads
  const std::vector<int32_t> positions = {0, 1, 0, 1, 2, 0, 1};
  Floats x = Random(rows * columns);
  const Floats before = x;
  const Floats table = Random(4 * columns);
  PositionEmbeddingArgs args{};
  args.x = x.data();
  args.weight = table.data();
  args.rows = rows;
  args.columns = columns;
  args.tokens = 4;
  args.first_row = 3;  // has no effect
  args.positions = positions.data();
  ops_->PositionEmbedding(args);
  Floats gradient = Random(4 * columns);
  Floats expected = gradient;
  PositionEmbeddingBackwardArgs back{};
  back.dx = x.data();
  back.dweight = gradient.data();
  back.rows = rows;
  back.columns = columns;
  back.tokens = 4;
  back.first_row = 3;
  back.positions = positions.data();
  ops_->PositionEmbeddingBackward(back);
  for (size_t n = 0; n < rows; ++n) {
    for (size_t c = 0; c < columns; ++c) {
      const size_t at = static_cast<size_t>(positions[n]) * columns + c;
      ASSERT_EQ(x[n * columns + c], before[n * columns + c] + table[at]);
      expected[at] += x[n * columns + c];  // rows ascending
    }
  }
  EXPECT_EQ(gradient, expected);
}

// Over one rank and over three that share the vocabulary, the last of them with padding only.
TEST_F(CpuOpsTest, CrossEntropyOverTensorRanks) {
  const int64_t rows = 7;
  const int64_t vocabulary = 37;
  const Floats logits = Random(rows * vocabulary, 3.0f);
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < rows; ++i) targets.push_back(static_cast<int32_t>(i * 6 % vocabulary));
  for (const auto& [ranks, smoothing] :
       {std::pair<int64_t, double>{1, 0}, {3, 0}, {1, 0.2}, {3, 0.2}}) {
    const LabelSmoothing smooth{.amount = static_cast<float>(smoothing), .vocabulary = vocabulary};
    const auto loss_of = [&, s = smoothing](const Values& x) {
      return Values{reference::CrossEntropySum(x, targets, rows, vocabulary, s)};
    };
    const int64_t stride = ranks == 1 ? 48 : 20;
    Floats stats(static_cast<size_t>(ranks * rows * kCrossEntropyStats));
    std::vector<Floats> locals;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t begin = rank * stride;
      const int64_t valid = std::clamp<int64_t>(vocabulary - begin, 0, stride);
      Floats local(static_cast<size_t>(rows * stride), 5.0f);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t c = 0; c < valid; ++c) {
          local[static_cast<size_t>(i * stride + c)] =
              logits[static_cast<size_t>(i * vocabulary + begin + c)];
        }
      }
      ops_->CrossEntropyLocal({.logits = local.data(),
                               .targets = targets.data(),
                               .stats = stats.data() + rank * rows * kCrossEntropyStats,
                               .rows = rows,
                               .valid = valid,
                               .stride = stride,
                               .vocabulary_begin = begin,
                               .sums = smoothing > 0});
      locals.push_back(local);
    }
    Floats lse(static_cast<size_t>(rows));
    Floats loss(static_cast<size_t>(rows));
    ops_->CrossEntropyCombine({.stats = stats.data(),
                               .lse = lse.data(),
                               .loss = loss.data(),
                               .rows = rows,
                               .ranks = ranks,
                               .smoothing = smooth});
    double sum = 0;
    for (const float value : loss) sum += value;
    EXPECT_NEAR(sum, loss_of(Exact(logits))[0], 1e-5 * sum);
    const Values gradient = reference::NumericGradient(loss_of, Exact(logits), {1.0});
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t begin = rank * stride;
      const int64_t valid = std::clamp<int64_t>(vocabulary - begin, 0, stride);
      Floats& local = locals[static_cast<size_t>(rank)];
      ops_->CrossEntropyBackward({.logits = local.data(),
                                  .lse = lse.data(),
                                  .targets = targets.data(),
                                  .rows = rows,
                                  .valid = valid,
                                  .stride = stride,
                                  .vocabulary_begin = begin,
                                  .scale = 1.0f,
                                  .smoothing = smooth});
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t c = 0; c < stride; ++c) {
          const double expected =
              c < valid ? gradient[static_cast<size_t>(i * vocabulary + begin + c)] : 0.0;
          ASSERT_NEAR(local[static_cast<size_t>(i * stride + c)], expected, 1e-5);
        }
      }
    }
  }
}

TEST_F(CpuOpsTest, SoftCapsKeepTheDigitsOfSmallValues) {
  for (const float range : {1e-4f, 0.1f, 10.0f, 200.0f}) {
    for (const int64_t count : {1, 16, 37, 1000}) {
      const Floats before = Random(count, range);
      Floats x = before;
      ops_->SoftCap({.x = x.data(), .count = count, .cap = 30});
      const Values exact = reference::SoftCap(Exact(before), 30);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(x[i], exact[i], 1e-6 * std::abs(exact[i])) << before[i];
      }
    }
  }
  Floats bad = {std::nanf(""), INFINITY, -INFINITY};
  ops_->SoftCap({.x = bad.data(), .count = 3, .cap = 30});
  EXPECT_TRUE(std::isnan(bad[0]));
  EXPECT_EQ(bad[1], 30);
  EXPECT_EQ(bad[2], -30);
}

TEST_F(CpuOpsTest, CrossEntropyGoesThroughASoftCap) {
  const int64_t rows = 5, vocabulary = 37, stride = 40;
  const double cap = 4;
  const Floats logits = Random(rows * vocabulary, 3.0f);
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < rows; ++i) targets.push_back(static_cast<int32_t>(i * 6 % vocabulary));
  for (const double smoothing : {0.0, 0.2}) {
    Floats x(static_cast<size_t>(rows * stride), 5.0f);
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(logits.begin() + i * vocabulary, vocabulary, x.begin() + i * stride);
    }
    ops_->SoftCap({.x = x.data(), .count = rows * stride, .cap = static_cast<float>(cap)});
    Floats stats(static_cast<size_t>(rows * kCrossEntropyStats));
    Floats lse(static_cast<size_t>(rows)), loss(lse.size());
    double sum = 0;
    ops_->CrossEntropy(
        {.logits = x.data(),
         .targets = targets.data(),
         .stats = stats.data(),
         .lse = lse.data(),
         .loss = loss.data(),
         .sums = &sum,
         .rows = rows,
         .valid = vocabulary,
         .stride = stride,
         .scale = 1,
         .smoothing = {.amount = static_cast<float>(smoothing), .vocabulary = vocabulary},
         .first_row = 0,
         .rows_per_sum = rows,
         .softcap = static_cast<float>(cap)});
    const auto loss_of = [&](const Values& at) {
      return Values{reference::CrossEntropySum(reference::SoftCap(at, cap), targets, rows,
                                               vocabulary, smoothing)};
    };
    EXPECT_NEAR(sum, loss_of(Exact(logits))[0], 1e-5 * sum);
    const Values gradient = reference::NumericGradient(loss_of, Exact(logits), {1.0});
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t c = 0; c < stride; ++c) {
        const double expected =
            c < vocabulary ? gradient[static_cast<size_t>(i * vocabulary + c)] : 0.0;
        ASSERT_NEAR(x[static_cast<size_t>(i * stride + c)], expected, 1e-5);
      }
    }
  }
}

// Rows are wider on both sides; what lies between the columns stays.
TEST_F(CpuOpsTest, ColumnsAreMultipliedDroppedAndAdded) {
  const int64_t rows = 6;  // two sequences of three tokens
  const int64_t columns = 301;
  const int64_t from_stride = 310, to_stride = 305;
  const Floats from = Random(rows * from_stride);
  const Floats times = Random(rows * columns);
  const Floats before = Random(rows * to_stride);
  Floats to = before;
  ops_->Columns({.from = from.data() + 4,
                 .from_stride = from_stride,
                 .to = to.data(),
                 .to_stride = to_stride,
                 .rows = rows,
                 .columns = columns,
                 .factor = 0.5f,
                 .times = times.data(),
                 .times_stride = columns,
                 .accumulate = true,
                 .dropout = {.probability = 0.4f,
                             .seed = 11,
                             .step = 5,
                             .layer = 2,
                             .site = 3,
                             .first_sequence = 8,
                             .tokens = 3},
                 .first_channel = 20});
  const PhiloxKey key = MakeKey(11, 5);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < to_stride; ++c) {
      const size_t at = static_cast<size_t>(i * to_stride + c);
      if (c >= columns) {
        EXPECT_EQ(to[at], before[at]);
        continue;
      }
      const PhiloxBlock bits =
          Philox(key, {static_cast<uint32_t>((20 + c) / 4), static_cast<uint32_t>(i % 3),
                       static_cast<uint32_t>(8 + i / 3), 3u | 2u << 4});
      const bool kept = bits[static_cast<size_t>(c % 4)] >= DropThreshold(0.4f);
      const double value = 0.5 * from[static_cast<size_t>(i * from_stride + 4 + c)] *
                           times[static_cast<size_t>(i * columns + c)] / 0.6;
      ASSERT_NEAR(to[at], before[at] + (kept ? value : 0), 1e-5) << at;
    }
  }
  // One row of factors serves all rows.
  ops_->Columns({.from = from.data(),
                 .from_stride = from_stride,
                 .to = to.data(),
                 .to_stride = to_stride,
                 .rows = rows,
                 .columns = columns,
                 .times = times.data()});
  for (int64_t i = 0; i < rows; ++i) {
    EXPECT_EQ(to[static_cast<size_t>(i * to_stride)],
              from[static_cast<size_t>(i * from_stride)] * times[0]);
  }
}

TEST_F(CpuOpsTest, ResidualWithDropoutKeepsTheRightElements) {
  const int64_t rows = 6;  // two sequences of three tokens
  const int64_t columns = 21;
  const Floats residual = Random(rows * columns);
  const Floats branch = Random(rows * columns);
  const Floats bias = Random(columns);
  ResidualArgs args{};
  args.residual = residual.data();
  args.branch = branch.data();
  args.bias = bias.data();
  Floats out(residual.size());
  args.out = out.data();
  args.rows = rows;
  args.columns = columns;
  args.dropout = {.probability = 0.4f,
                  .seed = 11,
                  .step = 5,
                  .layer = 2,
                  .site = kSiteMlpOutput,
                  .first_sequence = 8,
                  .tokens = 3};
  ops_->Residual(args);
  const PhiloxKey key = MakeKey(11, 5);
  int dropped = 0;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < columns; ++c) {
      const PhiloxBlock bits =
          Philox(key, {static_cast<uint32_t>(c / 4), static_cast<uint32_t>(i % 3),
                       static_cast<uint32_t>(8 + i / 3), kSiteMlpOutput | 2u << 4});
      const size_t at = static_cast<size_t>(i * columns + c);
      const bool kept = bits[static_cast<size_t>(c % 4)] >= DropThreshold(0.4f);
      dropped += kept ? 0 : 1;
      const double branch_value =
          (static_cast<double>(branch[at]) + bias[static_cast<size_t>(c)]) / 0.6;
      ASSERT_NEAR(out[at], residual[at] + (kept ? branch_value : 0), 1e-5) << at;
    }
  }
  EXPECT_GT(dropped, 20);
}

TEST_F(CpuOpsTest, EmbeddingsAndTheirGradients) {
  const int64_t columns = 10;
  const std::vector<int32_t> tokens = {3, 0, 7, 3, 12, 3};
  const Floats weight = Random(6 * columns);  // vocabulary rows 2 to 7
  Floats out(tokens.size() * static_cast<size_t>(columns), 9.0f);
  ops_->Embedding({.tokens = tokens.data(),
                   .weight = weight.data(),
                   .out = out.data(),
                   .count = 6,
                   .columns = columns,
                   .vocabulary_begin = 2,
                   .vocabulary_rows = 6});
  Floats dweight(weight.size(), 0.0f);
  ops_->EmbeddingBackward({.tokens = tokens.data(),
                           .dx = out.data(),
                           .dweight = dweight.data(),
                           .count = 6,
                           .columns = columns,
                           .vocabulary_begin = 2,
                           .vocabulary_rows = 6});
  for (size_t n = 0; n < tokens.size(); ++n) {
    const int64_t row = tokens[n] - 2;
    for (int64_t c = 0; c < columns; ++c) {
      const float expected =
          row >= 0 && row < 6 ? weight[static_cast<size_t>(row * columns + c)] : 0.0f;
      ASSERT_EQ(out[n * static_cast<size_t>(columns) + static_cast<size_t>(c)], expected);
    }
  }
  for (int64_t c = 0; c < columns; ++c) {
    const float value = weight[static_cast<size_t>(columns + c)];
    EXPECT_EQ(dweight[static_cast<size_t>(columns + c)], value + value + value);
  }
}

// Gemma's: what is looked up is multiplied, and so is the gradient.
TEST_F(CpuOpsTest, EmbeddingsAreScaled) {
  const int64_t columns = 70;
  const std::vector<int32_t> tokens = {3, 0, 3};
  const Floats weight = Random(4 * columns);
  const Floats dx = Random(3 * columns);
  Floats out(dx.size());
  ops_->Embedding({.tokens = tokens.data(),
                   .weight = weight.data(),
                   .out = out.data(),
                   .count = 3,
                   .columns = columns,
                   .vocabulary_begin = 0,
                   .vocabulary_rows = 4,
                   .scale = 5.5f});
  Floats dweight(weight.size());
  ops_->EmbeddingBackward({.tokens = tokens.data(),
                           .dx = dx.data(),
                           .dweight = dweight.data(),
                           .count = 3,
                           .columns = columns,
                           .vocabulary_begin = 0,
                           .vocabulary_rows = 4,
                           .scale = 5.5f});
  for (size_t c = 0; c < static_cast<size_t>(columns); ++c) {
    const size_t row = static_cast<size_t>(columns);
    EXPECT_EQ(out[c], weight[3 * row + c] * 5.5f);
    EXPECT_EQ(out[row + c], weight[c] * 5.5f);
    EXPECT_EQ(dweight[3 * row + c], dx[c] * 5.5f + dx[2 * row + c] * 5.5f);
    EXPECT_EQ(dweight[row + c], 0);
  }
}

TEST_F(CpuOpsTest, AdamWFollowsItsFormula) {
  for (const int64_t count : {1, 16, 37}) {
    Floats parameter = Random(count);
    Floats m(parameter.size(), 0.0f);
    Floats v(parameter.size(), 0.0f);
    std::vector<reference::AdamWState> states;
    for (const float value : parameter) states.push_back({.parameter = value, .m = 0, .v = 0});
    for (int64_t step = 1; step <= 5; ++step) {
      const Floats gradient = Random(count);
      const AdamWTensor tensor = {.parameter = parameter.data(),
                                  .gradient = gradient.data(),
                                  .m = m.data(),
                                  .v = v.data(),
                                  .rounded = nullptr,
                                  .count = count,
                                  .weight_decay = 0.1f};
      ops_->AdamW({.tensors = &tensor,
                   .tensor_count = 1,
                   .learning_rate = 1e-2f,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .eps = 1e-8f,
                   .bias_correction1 = 1 - std::pow(0.9, step),
                   .bias_correction2 = 1 - std::pow(0.95, step),
                   .clip = 0.5f});
      for (size_t i = 0; i < states.size(); ++i) {
        states[i] = reference::AdamW(states[i], {.gradient = 0.5 * gradient[i],
                                                 .learning_rate = 1e-2,
                                                 .beta1 = 0.9,
                                                 .beta2 = 0.95,
                                                 .eps = 1e-8,
                                                 .weight_decay = 0.1,
                                                 .step = step});
        ASSERT_NEAR(parameter[i], states[i].parameter, 2e-6) << "step " << step;
      }
    }
  }
}

using SumLimbs = std::array<double, kSumLimbs>;

// The sum that kernels/ops.h defines, element by element.
SumLimbs PlainSumOfSquares(const Floats& values) {
  int64_t limbs[kSumLimbs] = {};
  for (size_t begin = 0; begin < values.size(); begin += kSquaresBlock) {
    double lanes[16] = {};
    const size_t end = std::min(values.size(), begin + kSquaresBlock);
    for (size_t i = begin; i < end; ++i) {
      lanes[i % 16] += static_cast<double>(values[i]) * values[i];
    }
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    AddToLimbs(sum, limbs);
  }
  CarryLimbs(limbs);
  SumLimbs result = {};
  std::copy(std::begin(limbs), std::end(limbs), result.begin());
  return result;
}

TEST_F(CpuOpsTest, ScaleMultipliesEveryElement) {
  const float factor = 1.0f / 3;
  for (const int64_t count : {0, 1, 7, 33, 65536 + 5, 3 * 65536}) {
    Floats x = Random(count + 1);
    const reference::Values expected = reference::Scale(Exact(x), factor);
    const float last = x.back();
    ops_->Scale(x.data(), factor, count);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      ASSERT_EQ(x[i], static_cast<float>(expected[i])) << i << " of " << count;
    }
    EXPECT_EQ(x.back(), last) << count;
  }
}

TEST_F(CpuOpsTest, SumsOfSquaresAreExactSumsOfBlocks) {
  for (const int64_t count : {0, 1, 15, 17, 1023, 1024, 1025, 65536, 65537, 200000}) {
    Floats values = Random(count);
    // Magnitudes that a sum in double would lose, and the least and largest squares.
    for (size_t i = 0; i < values.size(); i += 977) values[i] *= 1e-15f;
    if (count > 1024) values[1024] = std::numeric_limits<float>::denorm_min();
    if (count > 65536) values[65536] = std::numeric_limits<float>::max();
    Floats all = values;
    all.resize((all.size() + kSquaresBlock - 1) / kSquaresBlock * kSquaresBlock);
    all.push_back(3);  // a tensor begins a block
    const float three = 3;
    for (const int threads : {1, 3}) {
      double not_finite[2] = {-1, -1};
      const SquaredTensor tensors[] = {{values.data(), count, &not_finite[0]},
                                       {&three, 1, &not_finite[1]}};
      SumLimbs limbs = {};
      CreateCpuOps(threads)->SumsOfSquares(
          {.tensors = tensors, .tensor_count = 2, .limbs = limbs.data()});
      EXPECT_EQ(limbs, PlainSumOfSquares(all)) << count;
      EXPECT_THAT(not_finite, ::testing::Each(0));
    }
  }
}

TEST_F(CpuOpsTest, SumsOfSquaresCountWhatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Floats values = Random(5000);
  values[3] = kInfinity;
  values[1000] = -kInfinity;
  values[4999] = std::numeric_limits<float>::quiet_NaN();
  double not_finite[2] = {-1, -1};
  const SquaredTensor tensors[] = {{values.data(), 5000, &not_finite[0]},
                                   {values.data() + 1024, 3072, &not_finite[1]}};
  SumLimbs limbs = {};
  ops_->SumsOfSquares({.tensors = tensors, .tensor_count = 2, .limbs = limbs.data()});
  EXPECT_THAT(not_finite, ::testing::ElementsAre(3, 0));
  // Twice what lies between.
  Floats finite(values.begin() + 1024, values.begin() + 4096);
  finite.insert(finite.end(), values.begin() + 1024, values.begin() + 4096);
  EXPECT_EQ(limbs, PlainSumOfSquares(finite));
}

uint64_t PlainDigest(const Floats& values) {
  uint64_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &values[i], sizeof(bits));
    sum += uint64_t{bits} * (static_cast<uint32_t>(2 * i + 1) * 0x9e3779b1u);
  }
  return sum;
}

TEST_F(CpuOpsTest, DigestIsItsFormula) {
  for (const int64_t count : {0, 1, 2, 7, 16, 17, 65536, 65537, 200003}) {
    const Floats values = Random(count);
    uint64_t two = 1;
    uint64_t one = 2;
    ops_->Digest({.values = values.data(), .columns = count, .digest = &two});
    CreateCpuOps(1)->Digest({.values = values.data(), .columns = count, .digest = &one});
    EXPECT_EQ(one, two) << count;
    EXPECT_EQ(one, PlainDigest(values)) << count;
  }
}

// A tensor of 300 x 701, cut into rectangles.
TEST_F(CpuOpsTest, DigestsOfPartsAddUp) {
  constexpr int64_t kRows = 300;
  constexpr int64_t kColumns = 701;
  const Floats values = Random(kRows * kColumns);
  uint64_t sum = 0;
  for (const auto& [row, rows] : {std::pair<int64_t, int64_t>{0, 1}, {1, 199}, {200, 100}}) {
    for (const auto& [column, columns] : {std::pair<int64_t, int64_t>{0, 3}, {3, 698}}) {
      Floats part;
      for (int64_t r = row; r < row + rows; ++r) {
        const auto begin = values.begin() + r * kColumns + column;
        part.insert(part.end(), begin, begin + columns);
      }
      uint64_t digest = 0;
      ops_->Digest({.values = part.data(),
                    .columns = columns,
                    .rows = rows,
                    .first = row * kColumns + column,
                    .stride = kColumns,
                    .digest = &digest});
      sum += digest;
    }
  }
  EXPECT_EQ(sum, PlainDigest(values));
  // Whole rows follow each other.
  uint64_t digest = 0;
  ops_->Digest({.values = values.data(),
                .columns = kColumns,
                .rows = kRows,
                .stride = kColumns,
                .digest = &digest});
  EXPECT_EQ(digest, PlainDigest(values));
}

TEST_F(CpuOpsTest, DigestSeesEveryBit) {
  Floats values = Random(67);
  uint64_t before = 0;
  ops_->Digest({.values = values.data(), .columns = 67, .digest = &before});
  for (size_t i = 0; i < values.size(); ++i) {
    for (int bit = 0; bit < 32; ++bit) {
      const float kept = values[i];
      uint32_t bits = 0;
      std::memcpy(&bits, &kept, sizeof(bits));
      bits ^= uint32_t{1} << bit;
      std::memcpy(&values[i], &bits, sizeof(bits));
      uint64_t after = 0;
      ops_->Digest({.values = values.data(), .columns = 67, .digest = &after});
      EXPECT_NE(before, after) << i << " " << bit;
      values[i] = kept;
    }
  }
}

// The answers published with Random123.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox({0, 0}, {0, 0, 0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Normal, HasItsMomentsAndDoesNotKnowItsNeighbours) {
  constexpr int64_t kCount = 100'000;
  Floats values(kCount);
  NormalRow({.seed = 1,
             .tensor = 2,
             .row = 3,
             .column_begin = 0,
             .count = kCount,
             .standard_deviation = 0.02f,
             .out = values.data()});
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  EXPECT_NEAR(sum / kCount, 0, 3e-4);
  EXPECT_NEAR(std::sqrt(squares / kCount), 0.02, 2e-4);
  for (const int64_t begin : {4, 5, 63, 1000}) {
    Floats part(50);
    NormalRow({.seed = 1,
               .tensor = 2,
               .row = 3,
               .column_begin = begin,
               .count = 50,
               .standard_deviation = 0.02f,
               .out = part.data()});
    EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + begin)) << begin;
  }
}

}  // namespace
}  // namespace tercio::kernels
