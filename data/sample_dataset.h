// Data sets of whole samples, as BERT and T5 are trained on them, and others on conversations:
// masked_dataset.h, labelled_dataset.h, span_dataset.h, chat_dataset.h.
// Several with weights are one stream, in the order of blended_dataset.h.
//
// Immutable; any number of threads may read. Values of BlendedSamples share their data sets.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "data/blend.h"
#include "data/sample_source.h"

namespace tercio::data {

// The key of the random decisions about a sample, besides its number.
struct SampleKey {
  uint64_t seed = 0;
  uint64_t epoch = 0;
};

// Validation samples are the same in every run and at every step.
inline constexpr SampleKey kValidationKey = {0, ~uint64_t{0}};

class SampleDataset {
 public:
  virtual ~SampleDataset() = default;
  virtual int64_t samples() const = 0;
  // Samples that follow each other and stay together in every order. Divides samples().
  virtual int64_t together() const { return 1; }
  // Writes every field of `out`, whose context is that of the data set.
  // REQUIRES: 0 <= sample < samples().
  virtual void Read(int64_t sample, SampleKey key, Sample* out) const = 0;
};

class BlendedSamples {
 public:
  // No samples.
  BlendedSamples() = default;
  // REQUIRES: as many data sets as the blend has, each with at least one sample; all of them keep
  // equally many samples together, which the blend deals out as one.
  BlendedSamples(std::vector<std::shared_ptr<const SampleDataset>> datasets, Blend blend)
      : datasets_(std::move(datasets)),
        blend_(std::move(blend)),
        together_(datasets_.front()->together()) {}

  const std::vector<std::shared_ptr<const SampleDataset>>& datasets() const { return datasets_; }

  // Number of samples of ReadInOrder: as many as the blend gives before one data set would repeat
  // one.
  int64_t samples() const;
  // REQUIRES: 0 <= index < samples().
  void ReadInOrder(int64_t index, Sample* out) const;
  // Reads a position in an endless run over shuffled epochs. REQUIRES: position >= 0, samples() >
  // 0.
  void ReadShuffled(uint64_t seed, int64_t position, Sample* out) const;

 private:
  std::vector<std::shared_ptr<const SampleDataset>> datasets_;
  Blend blend_;
  int64_t together_ = 1;
};

}  // namespace tercio::data
