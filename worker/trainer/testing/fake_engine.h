// An engine without a model, for tests of the clients that fill one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/training_engine.h"

namespace tercio::trainer {

// Rows of a vector.
inline v1::TensorSlice Rows(const std::string& tensor, int64_t begin, int64_t end) {
  v1::TensorSlice slice;
  slice.set_tensor(tensor);
  slice.add_shape(end);
  slice.set_row_begin(begin);
  slice.set_row_end(end);
  slice.set_column_end(1);
  slice.set_dtype("F32");
  return slice;
}

// Only what Load of the client uses does anything.
class FakeEngine : public engine::TrainingEngine {
 public:
  absl::StatusOr<engine::StepResult> Step(int64_t, double) override { return engine::StepResult(); }
  absl::StatusOr<v1::Evaluation> Evaluate(data::HeldOut) override { return v1::Evaluation(); }
  void SetTracing(bool) override {}
  std::vector<engine::TraceEvent> TakeTrace() override { return {}; }
  absl::StatusOr<engine::ReplicaVerdict> CheckReplicas() override {
    return engine::ReplicaVerdict();
  }
  absl::StatusOr<uint64_t> StateDigest() override { return digest; }
  bool HoldsWhatItLoaded() const override { return holds_what_it_loaded; }
  void FlipBit() override {}
  const std::vector<v1::TensorSlice>& SavedSlices() const override { return slices; }
  absl::StatusOr<engine::StateSnapshot> Snapshot() override { return engine::StateSnapshot(); }
  const std::vector<v1::TensorSlice>& NeededSlices() const override { return slices; }
  // Parts of a slice are joined.
  absl::Status Load(int64_t index, int64_t first, absl::Span<const float> values) override {
    if (first == 0) loaded.emplace_back(index, std::vector<float>());
    const std::shared_ptr<float> place = LoadPlace(index);
    if (place != nullptr && values.data() == place.get() + first) ++loaded_in_place;
    std::vector<float>& slice = loaded.back().second;
    if (loaded.back().first != index || static_cast<int64_t>(slice.size()) != first) {
      return absl::InvalidArgumentError("the parts of a slice come out of order");
    }
    slice.insert(slice.end(), values.begin(), values.end());
    return absl::OkStatus();
  }
  std::shared_ptr<float> LoadPlace(int64_t index) override {
    return places.empty() ? nullptr : places.at(static_cast<size_t>(index));
  }
  int64_t planned_bytes() const override { return 0; }
  int64_t used_bytes() const override { return 0; }
  absl::StatusOr<std::vector<engine::BufferUse>> HighWaterMarks() override {
    return std::vector<engine::BufferUse>();
  }

  std::vector<v1::TensorSlice> slices;
  std::vector<std::shared_ptr<float>> places;  // by slice; empty: there are none
  int loaded_in_place = 0;                     // parts
  uint64_t digest = 0;
  bool holds_what_it_loaded = true;
  std::vector<std::pair<int64_t, std::vector<float>>> loaded;
};

}  // namespace tercio::trainer
