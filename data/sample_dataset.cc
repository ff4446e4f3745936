#include "data/sample_dataset.h"

#include "data/blended_dataset.h"
#include "data/sample_order.h"

namespace tercio::data {

int64_t BlendedSamples::samples() const {
  if (datasets_.empty()) return 0;
  std::vector<int64_t> samples;
  for (const auto& dataset : datasets_) samples.push_back(dataset->samples() / together_);
  return blend_.SamplesBeforeRepeat(samples) * together_;
}

void BlendedSamples::ReadInOrder(int64_t index, Sample* out) const {
  const Blend::Choice choice = blend_.At(index / together_);
  // The key is constant, so that validation losses can be compared between steps and runs.
  datasets_[static_cast<size_t>(choice.dataset)]->Read(choice.draw * together_ + index % together_,
                                                       kValidationKey, out);
}

void BlendedSamples::ReadShuffled(uint64_t seed, int64_t position, Sample* out) const {
  const Blend::Choice choice = blend_.At(position / together_);
  const SampleDataset& dataset = *datasets_[static_cast<size_t>(choice.dataset)];
  const int64_t groups = dataset.samples() / together_;
  const uint64_t seed_of_dataset = SeedOfDataset(seed, choice.dataset);
  // The epoch is that of the data set, which may pass through several while another has one.
  const auto epoch = static_cast<uint64_t>(choice.draw / groups);
  // The order and the decisions of a sample have the same seed, so one number fixes both.
  dataset.Read(SampleAt(seed_of_dataset, groups, choice.draw) * together_ + position % together_,
               {seed_of_dataset, epoch}, out);
}

}  // namespace tercio::data
