// Operations on CUDA in fp32 against the double reference. Tolerances: 1e-6 of the row's largest
// magnitude, 1e-5 for attention, 1e-6 of sum |a||b| for products (docs/numerics.md).
#include "kernels/cuda/testing/both_backends.h"
#include "kernels/random.h"
#include "kernels/reference/reference_ops.h"

namespace tercio::kernels::cuda {
namespace {

class ReferenceTest : public BothBackendsTest {
 protected:
  using Exact = reference::Values;

  void Run(const Call& call) { results_ = Unpack(RunOnDevice(call, 0)); }
  const Exact& Input(int id) const { return tensors_[static_cast<size_t>(id)].data; }
  const Exact& Result(int id) const { return results_[static_cast<size_t>(id)].data; }

  void ExpectRows(int id, const Exact& expected, int64_t columns, double tolerance) const {
    const Exact& actual = Result(id);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t row = 0; row < expected.size(); row += static_cast<size_t>(columns)) {
      double largest = 1e-30;
      for (size_t i = row; i < row + static_cast<size_t>(columns); ++i) {
        largest = std::max(largest, std::abs(expected[i]));
      }
      for (size_t i = row; i < row + static_cast<size_t>(columns); ++i) {
        ASSERT_NEAR(actual[i], expected[i], tolerance * largest) << name_ << " at " << i;
      }
    }
  }

  std::vector<Tensor> results_;
};

struct Shape {
  int64_t rows, columns;
};
constexpr Shape kShapes[] = {{3, 7}, {5, 8}, {33, 40}, {20, 257}, {9, 300}};

TEST_F(ReferenceTest, Norms) {
  for (const auto& [rows, columns] : kShapes) {
    for (const bool rms : {false, true}) {
      Begin(Format::kFloat32, "norm");
      const int x = AddValues("x", rows * columns);
      const int weight = AddValues("weight", columns);
      const int bias = AddValues("bias", columns);
      const int y = AddValues("y", rows * columns);
      const int mean = AddFloats("mean", rows);
      const int rstd = AddFloats("rstd", rows);
      Run([&](Ops& ops, const Bound& t) {
        ops.LayerNorm({.x = t.values(x),
                       .weight = t.values(weight),
                       .bias = t.values(rms ? Bound::kNone : bias),
                       .y = t.values(y),
                       .mean = t.floats(mean),
                       .rstd = t.floats(rstd),
                       .rows = rows,
                       .columns = columns,
                       .eps = 1e-5f,
                       .rms = rms});
      });
      const double eps = 1e-5f;
      ExpectRows(
          y,
          rms ? reference::RmsNorm(Input(x), Input(weight), rows, columns, eps)
              : reference::LayerNorm(Input(x), Input(weight), Input(bias), rows, columns, eps),
          columns, 1e-6);
    }
  }
}

TEST_F(ReferenceTest, Activations) {
  for (const auto& [rows, columns] : kShapes) {
    Begin(Format::kFloat32, "activation");
    const int h = AddValues("h", rows * 2 * columns, 0, 3);
    const int g = AddValues("g", rows * 2 * columns);
    const int gated = AddValues("gated", rows * columns);
    for (const auto& [function, exact] : {std::pair(Activation::kGeluTanh, &reference::Gelu),
                                          std::pair(Activation::kGelu, &reference::ExactGelu),
                                          std::pair(Activation::kRelu, &reference::Relu),
                                          std::pair(Activation::kSilu, &reference::Silu)}) {
      Run([&, function = function](Ops& ops, const Bound& t) {
        ops.Activate({.h = t.values(h),
                      .g = t.values(g),
                      .rows = rows,
                      .columns = 2 * columns,
                      .function = function});
        ops.Gated({.h = t.values(h),
                   .g = t.values(gated),
                   .rows = rows,
                   .columns = columns,
                   .function = function});
      });
      ExpectRows(g, exact(Input(h)), 2 * columns, 1e-6);
      ExpectRows(gated, reference::Gated(exact, Input(h), rows, columns), columns, 1e-6);
    }
  }
}

TEST_F(ReferenceTest, Scale) {
  const int64_t count = 1003;
  const float factor = 1.0f / 3;
  Begin(Format::kFloat32, "scale");
  const int x = AddValues("x", count);
  Run([&](Ops& ops, const Bound& t) { ops.Scale(t.values(x), factor, count); });
  ExpectRows(x, reference::Scale(Input(x), factor), 1, 1e-7);
}

TEST_F(ReferenceTest, Products) {
  const int64_t shapes[][3] = {{1, 1, 1}, {2, 3, 257}, {7, 33, 31}, {40, 65, 30}};
  for (const auto& [m, n, k] : shapes) {
    Begin(Format::kFloat32, "product");
    const int x = AddValues("x", m * k);
    const int w = AddValues("w", n * k);
    const int bias = AddValues("bias", n);
    const int y = AddValues("y", m * n);
    Run([&, m = m, n = n, k = k](Ops& ops, const Bound& t) {
      ops.Matmul({.x = t.values(x),
                  .w = t.values(w),
                  .bias = t.values(bias),
                  .y = t.values(y),
                  .m = m,
                  .n = n,
                  .k = k});
    });
    const Exact expected =
        reference::Matmul(Input(x), Input(w), Input(bias), {.m = m, .n = n, .k = k});
    const Exact scale = reference::MatmulScale(Input(x), Input(w), {.m = m, .n = n, .k = k});
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(Result(y)[i], expected[i], 1e-6 * (scale[i] + 1)) << i;
    }
  }
}

// One head: fewer keys than queries, and more.
TEST_F(ReferenceTest, CrossAttention) {
  for (const auto& [tokens, key_tokens] : {std::pair(1, 40), {33, 7}, {40, 70}}) {
    const int64_t head_dim = 64;
    const int32_t length = (key_tokens + 1) / 2;
    Begin(Format::kFloat32, "cross attention");
    const int q = AddValues("q", tokens * head_dim);
    const int k = AddValues("k", key_tokens * head_dim);
    const int v = AddValues("v", key_tokens * head_dim);
    const int out = AddValues("out", tokens * head_dim);
    const int lse = AddFloats("lse", tokens);
    const int lengths = AddInts("lengths", 1, length, length);
    Run([&, tokens = tokens, key_tokens = key_tokens](Ops& ops, const Bound& t) {
      ops.Attention({.q = t.values(q),
                     .k = t.values(k),
                     .v = t.values(v),
                     .stride = head_dim,
                     .out = t.values(out),
                     .lse = t.floats(lse),
                     .sequences = 1,
                     .tokens = tokens,
                     .heads = 1,
                     .head_dim = head_dim,
                     .key_tokens = key_tokens,
                     .causal = false,
                     .lengths = t.ints(lengths),
                     .scratch = nullptr});
    });
    ExpectRows(out,
               reference::Attention(Input(q), Input(k), Input(v), {}, tokens, head_dim, length),
               head_dim, 1e-5);
  }
}

// One head, with dropout, causal and not.
TEST_F(ReferenceTest, Attention) {
  for (const int64_t tokens : {1, 33, 70}) {
    for (const int64_t length : {int64_t{0}, (tokens + 1) / 2}) {
      const int64_t head_dim = 20;
      Begin(Format::kFloat32, "attention");
      const int q = AddValues("q", tokens * head_dim);
      const int k = AddValues("k", tokens * head_dim);
      const int v = AddValues("v", tokens * head_dim);
      const int out = AddValues("out", tokens * head_dim);
      const int lse = AddFloats("lse", tokens);
      const int lengths = AddInts("lengths", 1, static_cast<int32_t>(std::max<int64_t>(1, length)),
                                  static_cast<int32_t>(std::max<int64_t>(1, length)));
      const Dropout dropout{.probability = 0.25f,
                            .seed = 5,
                            .step = 9,
                            .layer = 3,
                            .site = kSiteAttention,
                            .first_sequence = 17,
                            .tokens = tokens,
                            .first_row = 0};
      Run([&](Ops& ops, const Bound& t) {
        ops.Attention({.q = t.values(q),
                       .k = t.values(k),
                       .v = t.values(v),
                       .stride = head_dim,
                       .out = t.values(out),
                       .lse = t.floats(lse),
                       .sequences = 1,
                       .tokens = tokens,
                       .heads = 1,
                       .head_dim = head_dim,
                       .group = 1,
                       .first_query = 0,
                       .first_head = 2,
                       .causal = length == 0,
                       .lengths = t.ints(lengths),
                       .dropout = dropout,
                       .scratch = nullptr});
      });
      // The mask by its definition (kernels/random.h).
      Exact mask;
      for (int64_t query = 0; query < tokens; ++query) {
        for (int64_t key = 0; key < tokens; ++key) {
          const PhiloxBlock bits =
              Philox(MakeKey(5, 9), {static_cast<uint32_t>(key / 4), static_cast<uint32_t>(query),
                                     17, kSiteAttention | 3 << 4 | 2 << 16});
          const bool kept = bits[static_cast<size_t>(key % 4)] >= DropThreshold(0.25f);
          mask.push_back(kept ? 1 / 0.75 : 0);
        }
      }
      ExpectRows(out,
                 reference::Attention(Input(q), Input(k), Input(v), mask, tokens, head_dim, length),
                 head_dim, 1e-5);
    }
  }
}

TEST_F(ReferenceTest, CrossEntropy) {
  for (const double smoothing : {0.0, 0.1}) {
    const int64_t rows = 9;
    const int64_t columns = 1003;
    Begin(Format::kFloat32, "cross-entropy");
    const int logits = AddValues("logits", rows * columns, 0, 4);
    const int targets = AddInts("targets", rows, 0, static_cast<int32_t>(columns - 1));
    const int stats = AddFloats("stats", rows * kCrossEntropyStats);
    const int lse = AddFloats("lse", rows);
    const int loss = AddFloats("loss", rows);
    Run([&](Ops& ops, const Bound& t) {
      ops.CrossEntropyLocal({.logits = t.values(logits),
                             .targets = t.ints(targets),
                             .stats = t.floats(stats),
                             .rows = rows,
                             .valid = columns,
                             .stride = columns,
                             .vocabulary_begin = 0,
                             .sums = smoothing > 0});
      ops.CrossEntropyCombine(
          {.stats = t.floats(stats),
           .lse = t.floats(lse),
           .loss = t.floats(loss),
           .rows = rows,
           .ranks = 1,
           .smoothing = {.amount = static_cast<float>(smoothing), .vocabulary = columns}});
    });
    std::vector<int32_t> wanted;
    for (const double target : Input(targets)) wanted.push_back(static_cast<int32_t>(target));
    double sum = 0;
    for (const double part : Result(loss)) sum += part;
    const double exact = reference::CrossEntropySum(Input(logits), wanted, rows, columns,
                                                    static_cast<float>(smoothing));
    EXPECT_NEAR(sum, exact, 1e-5 * std::abs(exact));
  }
}

TEST_F(ReferenceTest, AdamW) {
  const int64_t count = 1003;
  Begin(Format::kFloat32, "AdamW");
  const int parameter = AddFloats("parameter", count);
  const int gradient = AddFloats("gradient", count);
  const int m = AddFloats("m", count);
  const int v = AddFloats("v", count);
  for (double& value : At(v).data) value = static_cast<float>(std::abs(value));
  const auto beta1 = static_cast<double>(0.9f);
  const auto beta2 = static_cast<double>(0.95f);
  Run([&](Ops& ops, const Bound& t) {
    const AdamWTensor tensor = {.parameter = t.floats(parameter),
                                .gradient = t.floats(gradient),
                                .m = t.floats(m),
                                .v = t.floats(v),
                                .rounded = nullptr,
                                .count = count,
                                .weight_decay = 0.1f};
    ops.AdamW({.tensors = &tensor,
               .tensor_count = 1,
               .learning_rate = 1e-2f,
               .beta1 = 0.9f,
               .beta2 = 0.95f,
               .eps = 1e-8f,
               .bias_correction1 = 1 - std::pow(beta1, 3),
               .bias_correction2 = 1 - std::pow(beta2, 3)});
  });
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const reference::AdamWState expected =
        reference::AdamW({.parameter = Input(parameter)[i], .m = Input(m)[i], .v = Input(v)[i]},
                         {.gradient = Input(gradient)[i],
                          .learning_rate = static_cast<double>(1e-2f),
                          .beta1 = beta1,
                          .beta2 = beta2,
                          .eps = static_cast<double>(1e-8f),
                          .weight_decay = static_cast<double>(0.1f),
                          .step = 3});
    ASSERT_NEAR(Result(parameter)[i], expected.parameter,
                1e-6 * std::max(1.0, std::abs(expected.parameter)));
    ASSERT_NEAR(Result(m)[i], expected.m, 1e-6);
    ASSERT_NEAR(Result(v)[i], expected.v, 1e-6);
  }
}

}  // namespace
}  // namespace tercio::kernels::cuda
