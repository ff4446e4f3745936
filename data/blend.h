// Which of several weighted data sets gives sample i, as a pure function of (weights, i): the data
// set whose share lags most behind weight * (i + 1), ties to the first. No data set is ever more
// than one sample ahead of its share, and the order depends neither on the layout nor on where a
// run was interrupted.
//
// Weights become whole numbers u[d] of sum W, the period: after W samples every data set has had
// exactly u[d] and the choice begins again. W is the smallest number up to 2^20 for which every
// weight is whole (0.7 and 0.3: W = 10), else 2^20 with the largest remainders rounded up. One
// period is a table, so any index costs O(1); the table takes at most 8 MiB. docs/formats.md has a
// worked example.
//
// Pure; immutable after construction; safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tercio::data {

class Blend {
 public:
  static constexpr int kMostDatasets = 256;
  static constexpr int64_t kLongestPeriod = 1 << 20;

  // One data set.
  Blend() : Blend({1}) {}

  // INVALID_ARGUMENT, naming the index of the weight: none, too many, not positive and finite, or
  // so small compared with the others that it has no share.
  static absl::StatusOr<Blend> Create(absl::Span<const double> weights);

  struct Choice {
    int dataset = 0;
    int64_t draw = 0;  // how many samples this data set has given so far
  };
  // REQUIRES: index >= 0.
  Choice At(int64_t index) const;

  // The first index whose choice needs draw `limits[d]` of its data set d, which is the number of
  // samples that can be taken before one data set repeats itself. REQUIRES: a limit >= 0 for every
  // data set.
  int64_t SamplesBeforeRepeat(absl::Span<const int64_t> limits) const;

  int datasets() const { return static_cast<int>(units_.size()); }
  int64_t period() const { return static_cast<int64_t>(table_.size()); }
  const std::vector<int64_t>& units() const { return units_; }

 private:
  explicit Blend(std::vector<int64_t> units);

  struct Entry {
    uint32_t draw;  // within the period
    uint16_t dataset;
  };
  std::vector<int64_t> units_;
  std::vector<Entry> table_;
};

}  // namespace tercio::data
