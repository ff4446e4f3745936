// Token data sets with weights, as one stream of samples: data/blend.h says which data set
// gives sample i, and each data set goes through epochs of its own (data/sample_order.h).
// One data set alone keeps the order of its epochs.
//
// A value: copies share the mappings. Immutable; any number of threads may read.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "data/blend.h"
#include "data/token_dataset.h"

namespace tercio::data {

class BlendedDataset {
 public:
  // No data.
  BlendedDataset() = default;
  // REQUIRES: as many data sets as the blend has, at least one.
  BlendedDataset(std::vector<TokenDataset> datasets, Blend blend)
      : datasets_(std::move(datasets)), blend_(std::move(blend)) {}

  const std::vector<TokenDataset>& datasets() const { return datasets_; }
  const Blend& blend() const { return blend_; }
  int64_t tokens() const;

  // Number of samples of ReadInOrder: as many as the blend gives before one data set would repeat a
  // sample. All of them if there is one data set, none if there is none.
  int64_t Samples(int64_t context) const;

  // A sample, which is the same wherever it is in a run.
  struct Place {
    size_t dataset;
    int64_t sample;  // index within the data set
  };
  // Sample `index` without any shuffling, each data set from its beginning. REQUIRES: 0 <= index <
  // Samples(context).
  Place PlaceInOrder(int64_t index) const;
  // A position in an endless run over shuffled epochs. REQUIRES: position >= 0; every data set has
  // at least one sample.
  Place PlaceShuffled(uint64_t seed, int64_t position, int64_t context) const;

  // Writes context + 1 ids.
  void Read(Place place, int64_t context, int32_t* out) const;
  void ReadInOrder(int64_t index, int64_t context, int32_t* out) const {
    Read(PlaceInOrder(index), context, out);
  }
  void ReadShuffled(uint64_t seed, int64_t position, int64_t context, int32_t* out) const {
    Read(PlaceShuffled(seed, position, context), context, out);
  }

 private:
  std::vector<TokenDataset> datasets_;
  Blend blend_;
};

// The seed of one data set's epochs: that of the run for the first, a different one for each of the
// others.
uint64_t SeedOfDataset(uint64_t seed, int dataset);

}  // namespace tercio::data
