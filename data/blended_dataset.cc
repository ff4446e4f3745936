#include "data/blended_dataset.h"

#include "data/sample_order.h"
#include "kernels/random.h"

namespace tercio::data {

int64_t BlendedDataset::tokens() const {
  int64_t sum = 0;
  for (const TokenDataset& dataset : datasets_) sum += dataset.tokens();
  return sum;
}

int64_t BlendedDataset::Samples(int64_t context) const {
  if (datasets_.empty()) return 0;
  std::vector<int64_t> samples;
  for (const TokenDataset& dataset : datasets_) samples.push_back(dataset.Samples(context));
  // A validation must not count a sample twice, so it ends before the first that would repeat.
  return blend_.SamplesBeforeRepeat(samples);
}

BlendedDataset::Place BlendedDataset::PlaceInOrder(int64_t index) const {
  const Blend::Choice choice = blend_.At(index);
  return {static_cast<size_t>(choice.dataset), choice.draw};
}

BlendedDataset::Place BlendedDataset::PlaceShuffled(uint64_t seed, int64_t position,
                                                    int64_t context) const {
  // The order of data sets is not shuffled, so that every stretch of a run has the blend's shares.
  const Blend::Choice choice = blend_.At(position);
  const auto dataset = static_cast<size_t>(choice.dataset);
  return {dataset, SampleAt(SeedOfDataset(seed, choice.dataset),
                            datasets_[dataset].Samples(context), choice.draw)};
}

void BlendedDataset::Read(Place place, int64_t context, int32_t* out) const {
  datasets_[place.dataset].ReadSample(place.sample, context, out);
}

// The first data set keeps the seed, so that a single one has the order that it has without a
// blend.
uint64_t SeedOfDataset(uint64_t seed, int dataset) {
  if (dataset == 0) return seed;
  return kernels::SplitMix64(seed ^ kernels::SplitMix64(static_cast<uint64_t>(dataset)));
}

}  // namespace tercio::data
