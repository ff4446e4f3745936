// The CPU's operations against the double-precision reference over odd shapes, their gradients
// against finite differences, and the exactness that kernels/ops.h promises.
#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hwy/aligned_allocator.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/random.h"
#include "kernels/reference/reference_ops.h"

namespace tercio::kernels {
namespace {

using reference::Values;
using Floats = std::vector<float>;

constexpr uint64_t kSeed = 20261121;

// |actual - expected| <= tolerance * the row's largest magnitude.
void ExpectRows(const Floats& actual, const Values& expected, int64_t columns, double tolerance,
                const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t row = 0; row < actual.size(); row += static_cast<size_t>(columns)) {
    double largest = 1e-30;
    for (int64_t c = 0; c < columns; ++c) {
      largest = std::max(largest, std::abs(expected[row + static_cast<size_t>(c)]));
    }
    for (int64_t c = 0; c < columns; ++c) {
      const size_t at = row + static_cast<size_t>(c);
      ASSERT_NEAR(actual[at], expected[at], tolerance * largest) << what << " at " << at;
    }
  }
}

class CpuOpsTest : public ::testing::Test {
 protected:
  void SetUp() override { RecordProperty("seed", std::to_string(kSeed)); }

  Floats Random(int64_t count, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    Floats values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random_);
    return values;
  }
  static Values Exact(const Floats& values) { return Values(values.begin(), values.end()); }

  std::mt19937_64 random_{kSeed};
  std::unique_ptr<Ops> ops_ = CreateCpuOps(2);
};

TEST_F(CpuOpsTest, ProductsOverOddShapes) {
  const int64_t shapes[][3] = {{1, 1, 1},     {1, 17, 5},    {2, 3, 257},   {5, 16, 16},
                               {7, 33, 31},   {13, 65, 300}, {97, 49, 64},  {6, 96, 256},
                               {64, 128, 20}, {3, 3100, 9},  {200, 31, 513}};
  for (const auto& [m, n, k] : shapes) {
    const Floats x = Random(m * k);
    const Floats w = Random(n * k);
    const Floats bias = Random(n);
    const Values exact = reference::Matmul(Exact(x), Exact(w), Exact(bias), m, n, k);
    const Values scale = reference::MatmulScale(Exact(x), Exact(w), m, n, k);
    Floats y(static_cast<size_t>(m * n));
    ops_->Matmul({x.data(), w.data(), bias.data(), y.data(), m, n, k, false});
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], exact[i], 1e-6 * (scale[i] + 1)) << i;

    const Floats dy = Random(m * n);
    Floats dx(static_cast<size_t>(m * k));
    ops_->MatmulBackwardInput({dy.data(), w.data(), dx.data(), m, n, k, false});
    const Values wt = reference::Transpose(Exact(w), n, k);
    const Values exact_dx = reference::Matmul(Exact(dy), wt, {}, m, k, n);
    const Values scale_dx = reference::MatmulScale(Exact(dy), wt, m, k, n);
    for (size_t i = 0; i < dx.size(); ++i) ASSERT_NEAR(dx[i], exact_dx[i], 1e-6 * scale_dx[i]) << i;

    Floats dw(static_cast<size_t>(n * k), 0.0f);
    Floats dbias(static_cast<size_t>(n), 0.0f);
    ops_->MatmulBackwardWeight({dy.data(), x.data(), dw.data(), dbias.data(), m, n, k, m, true});
    const Values dyt = reference::Transpose(Exact(dy), m, n);
    const Values xt = reference::Transpose(Exact(x), m, k);
    const Values exact_dw = reference::Matmul(dyt, xt, {}, n, k, m);
    const Values scale_dw = reference::MatmulScale(dyt, xt, n, k, m);
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
  ops_->Matmul({x.data(), w.data(), nullptr, whole.data(), most, n, k, false});
  for (const int threads : {1, 3}) {
    const auto other = CreateCpuOps(threads);
    for (const int64_t rows : {1, 2, 5, 6, 7, 12, 31, 96, 97, 131}) {
      Floats part(static_cast<size_t>(rows * n));
      other->Matmul({x.data(), w.data(), nullptr, part.data(), rows, n, k, false});
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
  ops_->MatmulBackwardWeight(
      {dy.data(), x.data(), whole.data(), whole_bias.data(), 3 * leaf, n, k, leaf, false});
  Floats parts(whole.size(), 7.0f);
  Floats parts_bias(whole_bias.size(), 7.0f);
  for (int64_t i = 0; i < 3; ++i) {
    ops_->MatmulBackwardWeight({dy.data() + i * leaf * n, x.data() + i * leaf * k, parts.data(),
                                parts_bias.data(), leaf, n, k, leaf, i > 0});
  }
  EXPECT_EQ(whole, parts);
  EXPECT_EQ(whole_bias, parts_bias);
}

TEST_F(CpuOpsTest, LayerNormAndItsGradients) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {5, 16}, {9, 33}, {4, 100}}) {
    const Floats x = Random(rows * columns);
    const Floats weight = Random(columns);
    const Floats bias = Random(columns);
    Floats y(x.size());
    Floats mean(static_cast<size_t>(rows));
    Floats rstd(static_cast<size_t>(rows));
    ops_->LayerNorm({x.data(), weight.data(), bias.data(), y.data(), mean.data(), rstd.data(), rows,
                     columns, 1e-5f});
    const auto norm = [&, r = rows, c = columns](const Values& in) {
      return reference::LayerNorm(in, Exact(weight), Exact(bias), r, c, 1e-5);
    };
    ExpectRows(y, norm(Exact(x)), columns, 1e-6, "norm");
    if (columns == 1) continue;  // its gradient is zero but for the epsilon
    const Floats dy = Random(rows * columns);
    Floats dx(x.size());
    Floats dweight(static_cast<size_t>(columns), 0.0f);
    Floats dbias(static_cast<size_t>(columns), 0.0f);
    ops_->LayerNormBackward({dy.data(), x.data(), weight.data(), mean.data(), rstd.data(),
                             dx.data(), dweight.data(), dbias.data(), rows, columns, rows, false});
    ExpectRows(dx, reference::NumericGradient(norm, Exact(x), Exact(dy)), columns, 2e-6, "dx");
    const auto by_weight = [&, r = rows, c = columns](const Values& w) {
      return reference::LayerNorm(Exact(x), w, Exact(bias), r, c, 1e-5);
    };
    ExpectRows(dweight, reference::NumericGradient(by_weight, Exact(weight), Exact(dy)), columns,
               2e-6, "dweight");
  }
}

TEST_F(CpuOpsTest, GeluAndItsGradient) {
  for (const int64_t count : {1, 15, 16, 17, 1000}) {
    Floats h = Random(count, 3.0f);
    const Floats before = h;
    Floats g(h.size());
    ops_->BiasGelu({h.data(), nullptr, g.data(), 1, count});
    ExpectRows(g, reference::Gelu(Exact(before)), count, 1e-6, "gelu");
    const Floats dg = Random(count);
    Floats dh(h.size());
    ops_->BiasGeluBackward({dg.data(), h.data(), dh.data(), nullptr, 1, count, 1});
    ExpectRows(dh,
               reference::NumericGradient([](const Values& x) { return reference::Gelu(x); },
                                          Exact(before), Exact(dg)),
               count, 1e-6, "gelu gradient");
  }
}

struct AttentionCase {
  int64_t tokens, heads, head_dim;
  float dropout;
};

// One attention forward and backward over random values, all heads.
struct AttentionRun {
  Floats qkv, dout, out, dqkv;
};

AttentionRun RunAttention(Ops& ops, const AttentionCase& c, Floats qkv, Floats dout) {
  const int64_t width = c.heads * c.head_dim;
  AttentionRun run{std::move(qkv), std::move(dout), Floats(static_cast<size_t>(c.tokens * width)),
                   Floats(static_cast<size_t>(c.tokens * width * 3))};
  Floats lse(static_cast<size_t>(c.tokens * c.heads));
  auto scratch =
      hwy::AllocateAligned<float>(static_cast<size_t>(AttentionScratch(c.tokens, c.head_dim, 2)));
  AttentionArgs args{};
  args.q = run.qkv.data();
  args.k = args.q + width;
  args.v = args.k + width;
  args.stride = 3 * width;
  args.out = run.out.data();
  args.lse = lse.data();
  args.sequences = 1;
  args.tokens = c.tokens;
  args.heads = c.heads;
  args.head_dim = c.head_dim;
  args.dropout.probability = c.dropout;
  args.dropout.tokens = c.tokens;
  args.dropout.layer = 3;
  args.scratch = scratch.get();
  ops.Attention(args);
  AttentionBackwardArgs back{};
  back.dout = run.dout.data();
  back.out = run.out.data();
  back.lse = lse.data();
  back.q = args.q;
  back.k = args.k;
  back.v = args.v;
  back.dq = run.dqkv.data();
  back.dk = back.dq + width;
  back.dv = back.dk + width;
  back.stride = args.stride;
  back.sequences = 1;
  back.tokens = c.tokens;
  back.heads = c.heads;
  back.head_dim = c.head_dim;
  back.dropout = args.dropout;
  back.scratch = scratch.get();
  ops.AttentionBackward(back);
  return run;
}

// What the dropout of one head multiplies each weight with; empty without dropout.
Values AttentionMask(const AttentionCase& c, int64_t head) {
  Values mask;
  if (c.dropout == 0) return mask;
  const PhiloxKey key = MakeKey(0, 0);
  for (int64_t i = 0; i < c.tokens; ++i) {
    for (int64_t j = 0; j < c.tokens; ++j) {
      const uint32_t tag = kSiteAttention | 3u << 4 | static_cast<uint32_t>(head) << 16;
      const PhiloxBlock bits =
          Philox(key, {static_cast<uint32_t>(j / 4), static_cast<uint32_t>(i), 0, tag});
      const bool kept = bits[static_cast<size_t>(j % 4)] >= DropThreshold(c.dropout);
      mask.push_back(kept ? 1.0 / (1.0 - c.dropout) : 0.0);
    }
  }
  return mask;
}

// One head's [tokens, head_dim] out of rows of `stride` that begin at `offset`.
Values HeadOf(const Floats& from, const AttentionCase& c, int64_t head, int64_t stride,
              int64_t offset) {
  Values values;
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t d = 0; d < c.head_dim; ++d) {
      values.push_back(from[static_cast<size_t>(t * stride + offset + head * c.head_dim + d)]);
    }
  }
  return values;
}

Floats ToFloats(const Values& values) { return Floats(values.begin(), values.end()); }

void ExpectAttention(const AttentionRun& run, const AttentionCase& c, int64_t head) {
  const int64_t width = c.heads * c.head_dim;
  const auto part = [&](const Floats& from, int64_t index) {
    return HeadOf(from, c, head, 3 * width, index * width);
  };
  const Values mask = AttentionMask(c, head);
  const Values q = part(run.qkv, 0);
  const Values k = part(run.qkv, 1);
  const Values v = part(run.qkv, 2);
  const Values weights = HeadOf(run.dout, c, head, width, 0);
  const auto of = [&](const Values& a, const Values& b, const Values& d) {
    return reference::Attention(a, b, d, mask, c.tokens, c.head_dim);
  };
  ExpectRows(ToFloats(HeadOf(run.out, c, head, width, 0)), of(q, k, v), c.head_dim, 1e-5, "out");
  if (c.tokens > 40) return;  // differences take tokens^3
  // Gradients are compared by the largest magnitude of the tensor: single rows may be all noise.
  const auto expect = [&](int64_t index, const auto& function, const Values& at, const char* name) {
    ExpectRows(ToFloats(part(run.dqkv, index)), reference::NumericGradient(function, at, weights),
               c.tokens * c.head_dim, 1e-5, name);
  };
  expect(
      0, [&](const Values& x) { return of(x, k, v); }, q, "dq");
  expect(
      1, [&](const Values& x) { return of(q, x, v); }, k, "dk");
  expect(
      2, [&](const Values& x) { return of(q, k, x); }, v, "dv");
}

TEST_F(CpuOpsTest, AttentionAndItsGradients) {
  for (const AttentionCase& c : std::vector<AttentionCase>{
           {1, 1, 1, 0}, {5, 2, 3, 0}, {17, 1, 16, 0.3f}, {64, 1, 4, 0}, {70, 1, 5, 0.2f}}) {
    const int64_t width = c.heads * c.head_dim;
    const AttentionRun run =
        RunAttention(*ops_, c, Random(c.tokens * 3 * width), Random(c.tokens * width));
    for (int64_t head = 0; head < c.heads; ++head) ExpectAttention(run, c, head);
  }
}

// Over one rank and over three that share the vocabulary, the last of them with padding only.
TEST_F(CpuOpsTest, CrossEntropyOverTensorRanks) {
  const int64_t rows = 7;
  const int64_t vocabulary = 37;
  const Floats logits = Random(rows * vocabulary, 3.0f);
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < rows; ++i) targets.push_back(static_cast<int32_t>(i * 6 % vocabulary));
  const auto loss_of = [&](const Values& x) {
    return Values{reference::CrossEntropySum(x, targets, rows, vocabulary)};
  };
  for (const int64_t ranks : {1, 3}) {
    const int64_t stride = ranks == 1 ? 48 : 20;
    Floats stats(static_cast<size_t>(ranks * rows * 3));
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
      ops_->CrossEntropyLocal({local.data(), targets.data(), stats.data() + rank * rows * 3, rows,
                               valid, stride, begin});
      locals.push_back(local);
    }
    Floats lse(static_cast<size_t>(rows));
    Floats loss(static_cast<size_t>(rows));
    ops_->CrossEntropyCombine({stats.data(), lse.data(), loss.data(), rows, ranks});
    double sum = 0;
    for (const float value : loss) sum += value;
    EXPECT_NEAR(sum, loss_of(Exact(logits))[0], 1e-5 * sum);
    const Values gradient = reference::NumericGradient(loss_of, Exact(logits), {1.0});
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t begin = rank * stride;
      const int64_t valid = std::clamp<int64_t>(vocabulary - begin, 0, stride);
      Floats& local = locals[static_cast<size_t>(rank)];
      ops_->CrossEntropyBackward(
          {local.data(), lse.data(), targets.data(), rows, valid, stride, begin, 1.0f});
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
  args.dropout = {0.4f, 11, 5, 2, kSiteMlpOutput, 8, 3};
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
  ops_->Embedding({tokens.data(), weight.data(), out.data(), 6, columns, 2, 6});
  Floats dweight(weight.size(), 0.0f);
  ops_->EmbeddingBackward({tokens.data(), out.data(), dweight.data(), 6, columns, 2, 6});
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

TEST_F(CpuOpsTest, AdamWFollowsItsFormula) {
  for (const int64_t count : {1, 16, 37}) {
    Floats parameter = Random(count);
    Floats m(parameter.size(), 0.0f);
    Floats v(parameter.size(), 0.0f);
    std::vector<reference::AdamWState> states;
    for (const float value : parameter) states.push_back({value, 0, 0});
    for (int64_t step = 1; step <= 5; ++step) {
      const Floats gradient = Random(count);
      ops_->AdamW({parameter.data(), gradient.data(), m.data(), v.data(), count, 1e-2f, 0.9f, 0.95f,
                   1e-8f, 0.1f, 1 - std::pow(0.9, step), 1 - std::pow(0.95, step), 0.5f});
      for (size_t i = 0; i < states.size(); ++i) {
        states[i] =
            reference::AdamW(states[i], 0.5 * gradient[i], 1e-2, 0.9, 0.95, 1e-8, 0.1, step);
        ASSERT_NEAR(parameter[i], states[i].parameter, 2e-6) << "step " << step;
      }
    }
  }
}

TEST_F(CpuOpsTest, SumOfSquares) {
  for (const int64_t count : {0, 1, 15, 17, 65536, 65537, 200000}) {
    const Floats values = Random(count);
    double exact = 0;
    for (const float value : values) exact += static_cast<double>(value) * value;
    double two = 0;
    double one = 0;
    ops_->SumOfSquares(values.data(), count, &two);
    CreateCpuOps(1)->SumOfSquares(values.data(), count, &one);
    EXPECT_EQ(one, two);
    EXPECT_NEAR(two, exact, 1e-12 * (exact + 1));
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
  NormalRow(1, 2, 3, 0, kCount, 0.02f, values.data());
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
    NormalRow(1, 2, 3, begin, 50, 0.02f, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + begin)) << begin;
  }
}

}  // namespace
}  // namespace tercio::kernels
