// The operations of kernels/ops.h as plain loops in double: the oracle for every backend. Slow, and
// meant to be read beside the formulas of the contract. Inputs are rounded to float once, by the
// caller; only RoundTo rounds in here.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace tercio::kernels::reference {

using Values = std::vector<double>;

struct MatmulSizes {
  int64_t m, n, k;
};
// y[m,n] = sum_k x[m,k] w[n,k] (+ bias[n])
Values Matmul(const Values& x, const Values& w, const Values& bias, const MatmulSizes& sizes);
// sum_k |x[m,k]| |w[n,k]|: the scale of a product's rounding error.
Values MatmulScale(const Values& x, const Values& w, const MatmulSizes& sizes);
Values Transpose(const Values& x, int64_t rows, int64_t columns);

Values LayerNorm(const Values& x, const Values& weight, const Values& bias, int64_t rows,
                 int64_t columns, double eps);
Values RmsNorm(const Values& x, const Values& weight, int64_t rows, int64_t columns, double eps);
Values Gelu(const Values& x);
Values ExactGelu(const Values& x);
Values Relu(const Values& x);
Values Silu(const Values& x);
// function(gate) * up. x: (rows, 2 columns), gate then up.
Values Gated(const std::function<Values(const Values&)>& function, const Values& x, int64_t rows,
             int64_t columns);

// The first cosines.size() + sines.size() channels of x, a head of one position, turned in pairs:
// of neighbours, or of channels half of their number apart.
Values Rotary(const Values& x, const Values& cosines, const Values& sines, bool neighbours);

// Scores of attention: 0 for 1 / sqrt(head_dim), no cap, and no window.
struct ScoreOptions {
  double scale = 0, softcap = 0;
  int64_t window = 0;
  Values bias = {};  // of key - query + tokens - 1
};
// q: (tokens, head_dim) of one head of one sequence; k, v: (keys, head_dim), as many keys as tokens
// unless it is cross attention; mask: multipliers of the probabilities (tokens, keys), empty for
// none. length 0: causal; else every query attends to the first `length` keys.
Values Attention(const Values& q, const Values& k, const Values& v, const Values& mask,
                 int64_t tokens, int64_t head_dim, int64_t length = 0,
                 const ScoreOptions& options = {});

Values SoftCap(const Values& x, double cap);
Values Scale(const Values& x, double factor);

// Sum over rows of log-sum-exp minus the weighted logits: 1 - smoothing for the target, the rest
// shared by all columns.
double CrossEntropySum(const Values& logits, const std::vector<int32_t>& targets, int64_t rows,
                       int64_t columns, double smoothing);

struct AdamWState {
  double parameter, m, v;
};
struct AdamWStep {
  double gradient, learning_rate, beta1, beta2, eps, weight_decay;
  int64_t step;
};
AdamWState AdamW(AdamWState state, const AdamWStep& by);

// A binary floating-point format, by its definition.
struct FloatFormat {
  int significand_bits;  // with the leading one: 8 for bf16, 11 for fp16
  int least_exponent;    // least of normal values: -126, -14
  double largest;        // finite value
};
// The nearest value of the format, of two equally near ones the even one; half a step beyond the
// largest finite value and more is infinity.
double RoundTo(double x, const FloatFormat& format);

// A run in blocks of 256 (kernels/block_format.h), by the definition.
struct Blocks {
  Values scales;
  std::vector<int> codes;  // one for each element
};
Blocks ToBlocks(const Values& x, int largest_code);
Values FromBlocks(const Blocks& blocks);

// d (sum_i output_weights[i] * f(x)[i]) / dx, by central differences in double.
Values NumericGradient(const std::function<Values(const Values&)>& f, const Values& x,
                       const Values& output_weights);

}  // namespace tercio::kernels::reference
