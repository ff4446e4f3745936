// The samples of a job in the order of worker/data/sample_order.h, for the training engine.
#pragma once

#include "worker/data/prepared_data.h"
#include "worker/data/sample_order.h"
#include "worker/engine/training_engine.h"

namespace tercio::data {

class BatchSource : public SampleSource {
 public:
  // REQUIRES: `data` holds at least one training sample of `context` tokens.
  BatchSource(PreparedData data, uint64_t seed, int64_t global_batch, int64_t context)
      : data_(std::move(data)), seed_(seed), global_batch_(global_batch), context_(context) {}

  void ReadTraining(int64_t step, int64_t sequence, int32_t* out) override {
    const int64_t position = (step - 1) * global_batch_ + sequence;
    data_.train.ReadSample(SampleAt(seed_, data_.train.Samples(context_), position), context_, out);
  }
  int64_t validation_samples() const override { return data_.validation.Samples(context_); }
  void ReadValidation(int64_t index, int32_t* out) override {
    data_.validation.ReadSample(index, context_, out);
  }

 private:
  PreparedData data_;
  uint64_t seed_;
  int64_t global_batch_;
  int64_t context_;
};

}  // namespace tercio::data
