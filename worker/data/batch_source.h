// The samples of a job in the order of worker/data/blended_dataset.h, for the training engine.
#pragma once

#include <utility>

#include "worker/data/prepared_data.h"
#include "worker/engine/sample_source.h"

namespace tercio::data {

class BatchSource : public CausalSource {
 public:
  // REQUIRES: every training data set of `data` holds at least one sample of `context` tokens.
  BatchSource(PreparedData data, uint64_t seed, int64_t global_batch, int64_t context)
      : data_(std::move(data)),
        seed_(seed),
        global_batch_(global_batch),
        context_(context),
        validation_samples_(data_.validation.Samples(context)) {}

  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    data_.train.ReadShuffled(seed_, (step - 1) * global_batch_ + sequence, context_, out);
  }
  int64_t validation_samples() const override { return validation_samples_; }
  void ReadValidation(int64_t index, int32_t* out) override {
    data_.validation.ReadInOrder(index, context_, out);
  }

 private:
  PreparedData data_;
  uint64_t seed_;
  int64_t global_batch_;
  int64_t context_;
  int64_t validation_samples_;
};

}  // namespace tercio::data
