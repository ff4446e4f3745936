#include "cli/plot/scale.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tercio::plot {
namespace {

// The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `least`.
double NiceStep(double least, bool whole) {
  // The power of ten below the step is where its digits begin.
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0, 10.0}) {
    const double step = factor * power;
    // Rounding must not push a step that fits to the next one.
    if (step < least * (1 - 1e-9)) continue;
    if (whole && step != std::floor(step)) continue;
    return step;
  }
  // A whole axis has no step below 1.
  return whole ? 1 : 10 * power;
}

std::string Trimmed(std::string text) {
  // Zeros at the end of a number without a point are part of its size.
  if (text.find('.') == std::string::npos) return text;
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

// Digits after the point that distinguish numbers `step` apart.
int Decimals(double step) {
  int decimals = 0;
  // Nine digits are more than anybody reads.
  while (decimals < 9 && std::abs(step * std::pow(10, decimals) -
                                  std::round(step * std::pow(10, decimals))) > 1e-6) {
    ++decimals;
  }
  return decimals;
}

}  // namespace

void Range::Add(double value, AxisKind kind) {
  const bool logarithmic = kind == AxisKind::kLogarithmic;
  // A logarithmic axis has no place for zero.
  if (!std::isfinite(value) || (logarithmic && value <= 0)) return;
  low = empty ? value : std::min(low, value);
  high = empty ? value : std::max(high, value);
  empty = false;
}

std::string NumberText(double value, double step, double most) {
  if (value == 0) return "0";
  // Numbers of one axis share their unit, so that they can be compared at a glance.
  const double size = std::max({std::abs(value), step, most});
  // Very small and very large numbers have no prefix that people know.
  if (size < 1e-3 || size >= 1e15) {
    const double exponent = std::floor(std::log10(std::abs(value)) + 1e-12);
    const double mantissa = value / std::pow(10, exponent);
    return absl::StrCat(Trimmed(absl::StrFormat("%.2f", mantissa)), "e",
                        static_cast<int>(exponent));
  }
  struct Prefix {
    double factor;
    const char* name;
  };
  for (const Prefix& prefix :
       {Prefix{1e12, "T"}, Prefix{1e9, "G"}, Prefix{1e6, "M"}, Prefix{1e3, "k"}}) {
    // Up to four digits are read faster than a prefix.
    if (size < 10'000 || std::max(std::abs(value), most) < prefix.factor) continue;
    if (step > 0)
      return absl::StrFormat("%.*f%s", Decimals(step / prefix.factor), value / prefix.factor,
                             prefix.name);
    return Trimmed(absl::StrFormat("%.*f", value / prefix.factor >= 100 ? 0 : 1,
                                   value / prefix.factor)) +
           prefix.name;
  }
  if (step > 0) return absl::StrFormat("%.*f", Decimals(step), value);
  return Trimmed(absl::StrFormat("%.*f", size >= 100 ? 1 : size >= 1 ? 3 : 6, value));
}

std::string ShortText(double value) {
  if (value == 0 || !std::isfinite(value)) return value == 0 ? "0" : "-";
  // Three significant digits are what a person compares.
  const double unit = std::pow(10, std::floor(std::log10(std::abs(value))) - 2);
  return NumberText(std::round(value / unit) * unit);
}

Axis::Axis(Range range, double first, double last, const Options& options)
    : low_(range.low),
      high_(range.high),
      first_(first),
      last_(last),
      logarithmic_(options.logarithmic) {
  // An axis without values still has to be drawn.
  if (range.empty) {
    low_ = logarithmic_ ? 0.1 : 0;
    high_ = 1;
  }
  if (logarithmic_) {
    MakeLogarithmic(options);
  } else {
    MakeLinear(options);
  }
}

void Axis::MakeLinear(const Options& options) {
  if (options.from_zero && low_ > 0) low_ = 0;
  // Equal values would make an axis of length zero.
  if (high_ - low_ < 1e-12 * std::max(std::abs(low_), std::abs(high_)) || high_ == low_) {
    const double around = high_ == 0 ? 1 : 0.1 * std::abs(high_);
    if (low_ != 0) low_ -= around;
    high_ += around;
  }
  const double step = NiceStep((high_ - low_) / options.most_ticks, options.whole);
  if (options.extend) {
    // The slack keeps rounding from adding an empty step at an end.
    low_ = std::floor(low_ / step + 1e-9) * step;
    high_ = std::ceil(high_ / step - 1e-9) * step;
  }
  const double most = std::max(std::abs(low_), std::abs(high_));
  const auto begin = static_cast<int64_t>(std::ceil(low_ / step - 1e-9));
  const auto end = static_cast<int64_t>(std::floor(high_ / step + 1e-9));
  // Ticks are multiples of the step, not sums, so that errors do not add up.
  for (int64_t i = begin; i <= end; ++i) {
    const double value = static_cast<double>(i) * step;
    ticks_.push_back({value, NumberText(value, step, most)});
  }
}

void Axis::MakeLogarithmic(const Options& options) {
  // A single value is shown in the middle.
  if (high_ == low_) {
    low_ /= 1.5;
    high_ *= 1.5;
  }
  const double decades = std::log10(high_ / low_);
  if (decades < 0.7) {  // too narrow for powers: linear ticks on the logarithmic axis
    const double step = NiceStep((high_ - low_) / options.most_ticks, false);
    if (options.extend) {
      const double below = std::floor(low_ / step + 1e-9) * step;
      if (below > 0) low_ = below;
      high_ = std::ceil(high_ / step - 1e-9) * step;
    }
    for (double value = std::ceil(low_ / step - 1e-9) * step; value <= high_ * (1 + 1e-9);
         value += step) {
      if (value > 0) ticks_.push_back({value, NumberText(value, step)});
    }
    return;
  }
  const int every = std::max(1, static_cast<int>(std::ceil(decades / options.most_ticks)));
  const auto begin = static_cast<int>(std::floor(std::log10(low_) + 1e-9));
  const auto end = static_cast<int>(std::ceil(std::log10(high_) - 1e-9));
  // Below about two decades there is room for 2 and 5 between the powers.
  const bool text_between = decades < 2.2;
  const double first = low_;
  const double last = high_;
  bool raised = false;
  for (int exponent = begin; exponent <= end; ++exponent) {
    for (int factor = 1; factor < 10; ++factor) {
      const double value = factor * std::pow(10, exponent);
      // The ends move outwards to the next line that has a number.
      const bool numbered = factor == 1 ? (exponent - begin) % every == 0
                                        : text_between && (factor == 2 || factor == 5);
      if (options.extend && numbered && value <= first * (1 + 1e-9)) low_ = value;
      if (options.extend && numbered && value >= last * (1 - 1e-9) && !raised) {
        high_ = value;
        raised = true;
      }
      // Marks between powers that have no number themselves would be too many.
      if (factor > 1 && every > 1) continue;
      ticks_.push_back({value, numbered ? NumberText(value) : ""});
    }
  }
  // Loops over whole decades go beyond the ends.
  std::erase_if(ticks_, [&](const Tick& tick) { return !Shows(tick.value); });
}

bool Axis::Shows(double value) const {
  if (!std::isfinite(value) || (logarithmic_ && value <= 0)) return false;
  // The end of an axis is computed, so that it may lie a rounding beside the value.
  const double slack = 1e-9 * std::max(std::abs(low_), std::abs(high_));
  return value >= low_ - slack && value <= high_ + slack;
}

double Axis::Place(double value) const {
  if (logarithmic_) return std::log(value / low_) / std::log(high_ / low_);
  return (value - low_) / (high_ - low_);
}

double Axis::At(double value) const { return first_ + Place(value) * (last_ - first_); }

Unit BytesUnit(double most) {
  static constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int i = 0;
  double divisor = 1;
  while (i < 4 && most >= 1024 * divisor) {
    divisor *= 1024;
    ++i;
  }
  return {divisor, kNames[i]};
}

Unit SecondsUnit(double most) {
  // Units change where numbers would get long.
  if (most < 1e-3) return {1e-6, "µs"};
  if (most < 1) return {1e-3, "ms"};
  if (most < 600) return {1, "s"};
  if (most < 36'000) return {60, "min"};
  return {3600, "h"};
}

}  // namespace tercio::plot
