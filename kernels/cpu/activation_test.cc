// Activations, gated ones and tanh on the CPU against the double-precision reference, and their
// gradients against finite differences.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/testing/cpu_ops_case.h"
#include "kernels/reference/reference_ops.h"

namespace tercio::kernels {
namespace {

using reference::Values;

struct Case {
  Activation function;
  Values (*reference)(const Values&);
  std::string name;
};
const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {Activation::kGeluTanh, reference::Gelu, "gelu by tanh"},
      {Activation::kGelu, reference::ExactGelu, "gelu"},
      {Activation::kRelu, reference::Relu, "relu"},
      {Activation::kSilu, reference::Silu, "silu"},
  };
  return cases;
}

TEST_F(CpuOpsTest, ActivationsAndTheirGradients) {
  for (const Case& c : Cases()) {
    for (const float range : {0.1f, 1.0f, 4.0f, 14.0f}) {
      for (const int64_t count : {1, 15, 16, 17, 1000}) {
        const Floats h = Random(count, range);
        Floats g(h.size());
        ops_->Activate(
            {.h = h.data(), .g = g.data(), .rows = 1, .columns = count, .function = c.function});
        ExpectRows(g, c.reference(Exact(h)), count, 1e-6, c.name);
        const Floats dg = Random(count);
        Floats dh(h.size());
        ops_->ActivateBackward({.dg = dg.data(),
                                .h = h.data(),
                                .dh = dh.data(),
                                .rows = 1,
                                .columns = count,
                                .function = c.function});
        ExpectRows(dh, reference::NumericGradient(c.reference, Exact(h), Exact(dg)), count, 1e-6,
                   c.name + " gradient");
      }
    }
  }
}

TEST_F(CpuOpsTest, GatedActivationsAndTheirGradients) {
  for (const Case& c : Cases()) {
    for (const int64_t columns : {1, 5, 16, 257}) {
      const int64_t rows = 3;
      const Floats h = Random(rows * 2 * columns, 3.0f);
      Floats g(static_cast<size_t>(rows * columns));
      ops_->Gated(
          {.h = h.data(), .g = g.data(), .rows = rows, .columns = columns, .function = c.function});
      const auto gated = [&](const Values& x) {
        return reference::Gated(c.reference, x, rows, columns);
      };
      ExpectRows(g, gated(Exact(h)), columns, 1e-6, c.name);
      const Floats dg = Random(rows * columns);
      Floats dh(h.size());
      ops_->GatedBackward({.dg = dg.data(),
                           .h = h.data(),
                           .dh = dh.data(),
                           .rows = rows,
                           .columns = columns,
                           .function = c.function});
      ExpectRows(dh, reference::NumericGradient(gated, Exact(h), Exact(dg)), 2 * columns, 1e-6,
                 c.name + " gradient");
    }
  }
}

// As PyTorch has it, and what is not a number stays so.
TEST_F(CpuOpsTest, ReluHasNoSlopeAtZero) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Floats h = {0.0f, -0.0f, 1e-30f, -1e-30f, -kInfinity, kInfinity, std::nanf("")};
  const int64_t count = static_cast<int64_t>(h.size());
  Floats g(h.size());
  ops_->Activate(
      {.h = h.data(), .g = g.data(), .rows = 1, .columns = count, .function = Activation::kRelu});
  const Floats dg(h.size(), 2.0f);
  Floats dh(h.size());
  ops_->ActivateBackward({.dg = dg.data(),
                          .h = h.data(),
                          .dh = dh.data(),
                          .rows = 1,
                          .columns = count,
                          .function = Activation::kRelu});
  const Floats values = {0, 0, 1e-30f, 0, 0, kInfinity};
  const Floats slopes = {0, 0, 2, 0, 0, 2};
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(g[i], values[i]) << i;
    EXPECT_EQ(dh[i], slopes[i]) << i;
  }
  EXPECT_TRUE(std::isnan(g.back()));
}

TEST_F(CpuOpsTest, TanhAndItsGradient) {
  const int64_t rows = 3;
  const int64_t columns = 37;
  for (const float range : {1e-3f, 1.0f, 30.0f}) {
    Floats y = Random(rows * columns, range);
    const Floats bias = Random(columns, range);
    Values x = Exact(y);
    for (size_t i = 0; i < x.size(); ++i) x[i] += static_cast<double>(bias[i % columns]);
    const auto tanh = [](const Values& at) {
      Values out;
      for (const double value : at) out.push_back(std::tanh(value));
      return out;
    };
    ops_->BiasTanh({.y = y.data(), .bias = bias.data(), .rows = rows, .columns = columns});
    ExpectRows(y, tanh(x), columns, 1e-6, "tanh");
    Floats dy = Random(rows * columns);
    const Values weights = Exact(dy);
    ops_->TanhBackward({.dy = dy.data(), .y = y.data(), .dx = dy.data(), .count = rows * columns});
    ExpectRows(dy, reference::NumericGradient(tanh, x, weights), rows * columns, 1e-6,
               "tanh gradient");
  }
}

}  // namespace
}  // namespace tercio::kernels
