#include "kernels/reference/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace tercio::kernels::reference {
namespace {

constexpr size_t kBlockLength = 256;

}  // namespace

Values Matmul(const Values& x, const Values& w, const Values& bias, const MatmulSizes& sizes) {
  const auto [m, n, k] = sizes;
  Values y(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      // The sum is in double throughout, so its own error does not show beside a backend's.
      double sum = bias.empty() ? 0 : bias[static_cast<size_t>(j)];
      for (int64_t p = 0; p < k; ++p) {
        sum += x[static_cast<size_t>(i * k + p)] * w[static_cast<size_t>(j * k + p)];
      }
      y[static_cast<size_t>(i * n + j)] = sum;
    }
  }
  return y;
}

Values MatmulScale(const Values& x, const Values& w, const MatmulSizes& sizes) {
  // Rounding errors of a product grow with the sum of the magnitudes, not with the result.
  Values magnitudes_x(x);
  Values magnitudes_w(w);
  for (double& value : magnitudes_x) value = std::abs(value);
  for (double& value : magnitudes_w) value = std::abs(value);
  return Matmul(magnitudes_x, magnitudes_w, {}, sizes);
}

Values Transpose(const Values& x, int64_t rows, int64_t columns) {
  Values y(x.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      y[static_cast<size_t>(j * rows + i)] = x[static_cast<size_t>(i * columns + j)];
    }
  }
  return y;
}

Values LayerNorm(const Values& x, const Values& weight, const Values& bias, int64_t rows,
                 int64_t columns, double eps) {
  Values y(x.size());
  for (int64_t i = 0; i < rows; ++i) {
    const double* row = x.data() + i * columns;
    double mean = 0;
    // Each element is divided before it is added, which keeps the mean in the range of the row.
    for (int64_t c = 0; c < columns; ++c) mean += row[c] / static_cast<double>(columns);
    // The variance is that of the whole row, without Bessel's correction.
    double variance = 0;
    for (int64_t c = 0; c < columns; ++c) {
      variance += (row[c] - mean) * (row[c] - mean) / static_cast<double>(columns);
    }
    for (int64_t c = 0; c < columns; ++c) {
      const double normed = (row[c] - mean) / std::sqrt(variance + eps);
      y[static_cast<size_t>(i * columns + c)] = normed * weight[static_cast<size_t>(c)] +
                                                (bias.empty() ? 0 : bias[static_cast<size_t>(c)]);
    }
  }
  return y;
}

Values RmsNorm(const Values& x, const Values& weight, int64_t rows, int64_t columns, double eps) {
  Values y(x.size());
  for (int64_t i = 0; i < rows; ++i) {
    const double* row = x.data() + i * columns;
    // RMSNorm has no mean to subtract.
    double squares = 0;
    for (int64_t c = 0; c < columns; ++c) squares += row[c] * row[c] / static_cast<double>(columns);
    for (int64_t c = 0; c < columns; ++c) {
      y[static_cast<size_t>(i * columns + c)] =
          row[c] / std::sqrt(squares + eps) * weight[static_cast<size_t>(c)];
    }
  }
  return y;
}

Values Gated(const std::function<Values(const Values&)>& function, const Values& x, int64_t rows,
             int64_t columns) {
  Values y;
  for (int64_t i = 0; i < rows; ++i) {
    // Gate and up lie side by side in a row.
    const auto gate = x.begin() + i * 2 * columns;
    for (const double value : function(Values(gate, gate + columns))) {
      y.push_back(value * gate[columns + static_cast<int64_t>(y.size()) % columns]);
    }
  }
  return y;
}

Values Gelu(const Values& x) {
  Values y;
  for (const double value : x) {
    // This is the form by tanh, as GPT-2 has it.
    const double inner =
        std::sqrt(2 / std::numbers::pi) * (value + 0.044715 * value * value * value);
    y.push_back(0.5 * value * (1 + std::tanh(inner)));
  }
  return y;
}

Values ExactGelu(const Values& x) {
  Values y;
  // erfc keeps its digits for large negative values, where 1 + erf would not.
  for (const double value : x) y.push_back(0.5 * value * std::erfc(-value / std::numbers::sqrt2));
  return y;
}

Values Relu(const Values& x) {
  Values y;
  for (const double value : x) y.push_back(std::max(value, 0.0));
  return y;
}

Values Silu(const Values& x) {
  Values y;
  for (const double value : x) y.push_back(value / (1 + std::exp(-value)));
  return y;
}

Values Rotary(const Values& x, const Values& cosines, const Values& sines, bool neighbours) {
  Values y = x;
  const size_t half = cosines.size();
  for (size_t i = 0; i < half; ++i) {
    const size_t first = neighbours ? 2 * i : i;
    const size_t second = neighbours ? 2 * i + 1 : i + half;
    y[first] = x[first] * cosines[i] - x[second] * sines[i];
    y[second] = x[first] * sines[i] + x[second] * cosines[i];
  }
  return y;
}

Values Attention(const Values& q, const Values& k, const Values& v, const Values& mask,
                 int64_t tokens, int64_t head_dim, int64_t length, const ScoreOptions& options) {
  const double scale =
      options.scale == 0 ? 1 / std::sqrt(static_cast<double>(head_dim)) : options.scale;
  const int64_t all_keys = static_cast<int64_t>(k.size()) / head_dim;
  Values out(q.size());
  for (int64_t i = 0; i < tokens; ++i) {
    Values p;
    // Any score is above this, so the first key sets the maximum.
    double largest = -1e300;
    // A causal query sees the keys up to itself, of which a window has the last.
    const int64_t keys = length > 0 ? length : i + 1;
    const int64_t begin = options.window > 0 ? std::max<int64_t>(0, keys - options.window) : 0;
    for (int64_t j = begin; j < keys; ++j) {
      double score = 0;
      for (int64_t d = 0; d < head_dim; ++d) {
        score +=
            q[static_cast<size_t>(i * head_dim + d)] * k[static_cast<size_t>(j * head_dim + d)];
      }
      score *= scale;
      if (options.softcap > 0) score = options.softcap * std::tanh(score / options.softcap);
      if (!options.bias.empty()) score += options.bias[static_cast<size_t>(j - i + tokens - 1)];
      p.push_back(score);
      largest = std::max(largest, p.back());
    }
    double sum = 0;
    // With the maximum subtracted no exponential overflows.
    for (double& score : p) sum += score = std::exp(score - largest);
    for (int64_t j = begin; j < keys; ++j) {
      // The multipliers apply to probabilities that already sum to 1, as in training with dropout.
      const double keep = mask.empty() ? 1 : mask[static_cast<size_t>(i * all_keys + j)];
      for (int64_t d = 0; d < head_dim; ++d) {
        out[static_cast<size_t>(i * head_dim + d)] += p[static_cast<size_t>(j - begin)] / sum *
                                                      keep *
                                                      v[static_cast<size_t>(j * head_dim + d)];
      }
    }
  }
  return out;
}

Values SoftCap(const Values& x, double cap) {
  Values y;
  for (const double value : x) y.push_back(cap * std::tanh(value / cap));
  return y;
}

Values Scale(const Values& x, double factor) {
  Values y;
  for (const double value : x) y.push_back(value * factor);
  return y;
}

double CrossEntropySum(const Values& logits, const std::vector<int32_t>& targets, int64_t rows,
                       int64_t columns, double smoothing) {
  double total = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const double* row = logits.data() + i * columns;
    // The maximum is subtracted for the exponentials, and added again at the end.
    const double largest = *std::max_element(row, row + columns);
    double sum = 0;
    for (int64_t c = 0; c < columns; ++c) sum += std::exp(row[c] - largest);
    double mean = 0;
    for (int64_t c = 0; c < columns; ++c) mean += row[c] / static_cast<double>(columns);
    // Smoothing shares a part of the weight among all columns, the target included.
    total += largest + std::log(sum) - (1 - smoothing) * row[targets[static_cast<size_t>(i)]] -
             smoothing * mean;
  }
  return total;
}

AdamWState AdamW(AdamWState state, const AdamWStep& by) {
  // The decay is decoupled: it does not pass through the moments.
  state.parameter -= by.learning_rate * by.weight_decay * state.parameter;
  state.m = by.beta1 * state.m + (1 - by.beta1) * by.gradient;
  state.v = by.beta2 * state.v + (1 - by.beta2) * by.gradient * by.gradient;
  // The moments begin at zero, which these divisions correct.
  const double m = state.m / (1 - std::pow(by.beta1, static_cast<double>(by.step)));
  const double v = state.v / (1 - std::pow(by.beta2, static_cast<double>(by.step)));
  state.parameter -= by.learning_rate * m / (std::sqrt(v) + by.eps);
  return state;
}

double RoundTo(double x, const FloatFormat& format) {
  if (!std::isfinite(x) || x == 0) return x;
  // Below the least exponent numbers have the same step.
  const int exponent = std::max(std::ilogb(x), format.least_exponent);
  const double step = std::ldexp(1.0, exponent - format.significand_bits + 1);
  const double rounded = std::nearbyint(x / step) * step;
  // A value that rounds beyond the largest is an overflow.
  if (std::abs(rounded) <= format.largest) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), x);
}

Blocks ToBlocks(const Values& x, int largest_code) {
  constexpr FloatFormat kFloat = {24, -126, std::numeric_limits<float>::max()};
  Blocks blocks;
  for (size_t begin = 0; begin < x.size(); begin += kBlockLength) {
    const Values block(x.begin() + static_cast<int64_t>(begin),
                       x.begin() + static_cast<int64_t>(std::min(x.size(), begin + kBlockLength)));
    double largest = 0;
    bool finite = true;
    for (const double value : block) {
      largest = std::max(largest, std::abs(value));
      finite = finite && std::isfinite(value);
    }
    double scale = RoundTo(largest / largest_code, kFloat);
    // A fraction of 15 bits: a multiple of the 2^-15th part of the power of two below.
    const double step = scale > 0 ? std::ldexp(1.0, std::ilogb(scale) - 15) : 1;
    scale = std::floor(scale / step) * step;
    if (scale < 0x1p-100) scale = 0;
    if (!finite) scale = std::numeric_limits<double>::quiet_NaN();
    blocks.scales.push_back(scale);
    for (const double value : block) {
      // Only a positive scale has an inverse.
      const double code = scale > 0 ? RoundTo(value * RoundTo(1 / scale, kFloat), kFloat) : 0;
      blocks.codes.push_back(static_cast<int>(std::nearbyint(code)));
    }
  }
  return blocks;
}

Values FromBlocks(const Blocks& blocks) {
  Values x;
  for (size_t i = 0; i < blocks.codes.size(); ++i) {
    x.push_back(blocks.codes[i] * blocks.scales[i / kBlockLength]);
  }
  return x;
}

Values NumericGradient(const std::function<Values(const Values&)>& f, const Values& x,
                       const Values& output_weights) {
  // Smaller steps would lose more digits to rounding than they gain.
  constexpr double kStep = 1e-5;
  const auto weighted = [&](const Values& at) {
    const Values y = f(at);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * output_weights[i];
    return sum;
  };
  Values gradient;
  Values moved = x;
  for (size_t i = 0; i < x.size(); ++i) {
    // Differences to both sides cancel the quadratic error.
    moved[i] = x[i] + kStep;
    const double above = weighted(moved);
    moved[i] = x[i] - kStep;
    gradient.push_back((above - weighted(moved)) / (2 * kStep));
    // The value is set, and not added back, so that no rounding remains.
    moved[i] = x[i];
  }
  return gradient;
}

}  // namespace tercio::kernels::reference
