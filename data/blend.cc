#include "data/blend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace tercio::data {
namespace {

// Weights written as short decimals or fractions have errors near 1e-16 after the division.
constexpr double kWhole = 1e-9;

// A share that rounds to 0 units would never give a sample, so it does not count as whole.
bool AllWhole(absl::Span<const double> shares, int64_t period) {
  for (const double share : shares) {
    const double units = share * static_cast<double>(period);
    if (std::abs(units - std::round(units)) > kWhole || std::round(units) < 1) return false;
  }
  return true;
}

std::vector<int64_t> ExactUnits(absl::Span<const double> shares, int64_t period) {
  std::vector<int64_t> units;
  for (const double share : shares) {
    units.push_back(static_cast<int64_t>(std::round(share * static_cast<double>(period))));
  }
  return units;
}

// Rounds down to whole parts; the rest of the period goes to the largest remainders.
std::vector<int64_t> RoundedUnits(absl::Span<const double> shares, int64_t period) {
  std::vector<int64_t> units;
  std::vector<double> remainders;
  for (const double share : shares) {
    const double exact = share * static_cast<double>(period);
    units.push_back(static_cast<int64_t>(std::floor(exact)));
    remainders.push_back(exact - std::floor(exact));
  }
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   // A stable order gives ties to the first data set, on every node alike.
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  int64_t missing = period - std::accumulate(units.begin(), units.end(), int64_t{0});
  // The loop ends even if errors of rounding leave more to give than there are data sets.
  for (size_t i = 0; missing > 0; i = (i + 1) % order.size(), --missing) ++units[order[i]];
  return units;
}

}  // namespace

Blend::Blend(std::vector<int64_t> units) : units_(std::move(units)) {
  const int64_t period = std::accumulate(units_.begin(), units_.end(), int64_t{0});
  table_.reserve(static_cast<size_t>(period));
  // lag[d] = u[d] * (i + 1) - W * count[d], kept as a running sum: all in whole numbers.
  std::vector<int64_t> lag(units_.size(), 0);
  std::vector<uint32_t> count(units_.size(), 0);
  // Sums of fractions would differ in their last bits and might choose otherwise elsewhere, so the
  // table is computed with integers only.
  for (int64_t i = 0; i < period; ++i) {
    size_t chosen = 0;
    for (size_t d = 0; d < units_.size(); ++d) {
      lag[d] += units_[d];
      if (lag[d] > lag[chosen]) chosen = d;
    }
    lag[chosen] -= period;
    table_.push_back({count[chosen]++, static_cast<uint16_t>(chosen)});
  }
}

absl::StatusOr<Blend> Blend::Create(absl::Span<const double> weights) {
  if (weights.empty() || weights.size() > size_t{kMostDatasets}) {
    return absl::InvalidArgumentError(
        absl::StrCat("a blend has 1 to ", kMostDatasets, " data sets, not ", weights.size()));
  }
  double sum = 0;
  for (size_t d = 0; d < weights.size(); ++d) {
    // The negated comparison refuses NaN, too.
    if (!(weights[d] > 0) || !std::isfinite(weights[d])) {
      return absl::InvalidArgumentError(absl::StrCat("weight ", d, " is ", weights[d],
                                                     "; a weight is a positive number (leave the "
                                                     "data set out to give it no share)"));
    }
    sum += weights[d];
  }
  // Each weight is finite, but their sum may overflow, and all shares would be 0.
  if (!std::isfinite(sum)) {
    return absl::InvalidArgumentError("the sum of the weights is not finite; use smaller ones");
  }
  std::vector<double> shares;
  for (const double weight : weights) shares.push_back(weight / sum);
  // The shortest period keeps the table small and the shares exact after as few samples as
  // possible.
  for (int64_t period = 1; period <= kLongestPeriod; ++period) {
    if (!AllWhole(shares, period)) continue;
    std::vector<int64_t> units = ExactUnits(shares, period);
    if (std::accumulate(units.begin(), units.end(), int64_t{0}) == period) {
      return Blend(std::move(units));
    }
  }
  std::vector<int64_t> units = RoundedUnits(shares, kLongestPeriod);
  for (size_t d = 0; d < units.size(); ++d) {
    if (units[d] > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("weight ", d, " is ", weights[d], ", less than one sample in ", kLongestPeriod,
                     " compared with the others; use a larger weight or leave the data set out"));
  }
  return Blend(std::move(units));
}

Blend::Choice Blend::At(int64_t index) const {
  TERCIO_CHECK_GE(index, 0);
  const Entry& entry = table_[static_cast<size_t>(index % period())];
  return {entry.dataset, index / period() * units_[entry.dataset] + entry.draw};
}

int64_t Blend::SamplesBeforeRepeat(absl::Span<const int64_t> limits) const {
  TERCIO_CHECK_EQ(limits.size(), units_.size());
  // Whole periods that fit into every limit, then the first index of the next one that does not.
  int64_t periods = std::numeric_limits<int64_t>::max();
  for (size_t d = 0; d < units_.size(); ++d) periods = std::min(periods, limits[d] / units_[d]);
  for (int64_t i = periods * period();; ++i) {
    const Choice choice = At(i);
    if (choice.draw >= limits[static_cast<size_t>(choice.dataset)]) return i;
  }
}

}  // namespace tercio::data
