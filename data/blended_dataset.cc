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

void BlendedDataset::ReadInOrder(int64_t index, int64_t context, int32_t* out) const {
  const Blend::Choice choice = blend_.At(index);
  datasets_[static_cast<size_t>(choice.dataset)].ReadSample(choice.draw, context, out);
}

void BlendedDataset::ReadShuffled(uint64_t seed, int64_t position, int64_t context,
                                  int32_t* out) const {
  // The order of data sets is not shuffled, so that every stretch of a run has the blend's shares.
  const Blend::Choice choice = blend_.At(position);
  const TokenDataset& dataset = datasets_[static_cast<size_t>(choice.dataset)];
  const int64_t sample =
      SampleAt(SeedOfDataset(seed, choice.dataset), dataset.Samples(context), choice.draw);
  dataset.ReadSample(sample, context, out);
}

// The first data set keeps the seed, so that a single one has the order that it has without a
// blend.
uint64_t SeedOfDataset(uint64_t seed, int dataset) {
  if (dataset == 0) return seed;
  return kernels::SplitMix64(seed ^ kernels::SplitMix64(static_cast<uint64_t>(dataset)));
}

}  // namespace tercio::data
