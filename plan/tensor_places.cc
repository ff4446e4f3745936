#include "plan/tensor_places.h"

#include <algorithm>

#include "plan/rank_layout.h"

namespace tercio::plan {
namespace {

bool IsSame(const TensorShard& a, const TensorShard& b) {
  return a.row_begin == b.row_begin && a.row_end == b.row_end && a.column_begin == b.column_begin &&
         a.column_end == b.column_end;
}

// Adds ranks that hold a part of the tensor: all data ranks of a stage.
void AddHolders(const v1::Layout& layout, int stage, int tensor_index, const TensorShard& shard,
                TensorPlaces* places) {
  const auto same = [&](const TensorPart& part) { return IsSame(part.shard, shard); };
  auto found = std::find_if(places->parts.begin(), places->parts.end(), same);
  if (found == places->parts.end()) {
    found = places->parts.insert(places->parts.end(), TensorPart{shard, {}});
  }
  for (int data = 0; data < layout.data(); ++data) {
    found->ranks.push_back(
        RankOfCoordinates(layout, {.tensor = tensor_index, .data = data, .pipeline = stage}));
  }
}

}  // namespace

std::vector<TensorPlaces> PlacesOfTensors(const v1::ModelSpec& model, const v1::Layout& layout) {
  std::vector<TensorPlaces> all;
  for (const LogicalTensor& tensor : ModelTensors(model)) all.push_back({tensor, {}});
  const int64_t padded = PaddedVocabulary(model.vocab_size(), layout.tensor());
  for (int stage = 0; stage < layout.pipeline(); ++stage) {
    for (const StageTensor& entry : TensorsOfStage(model, layout, stage).tensors) {
      // The uses of a tied tensor on a stage are one parameter.
      if (!entry.own_parameter) continue;
      TensorPlaces& places = all[static_cast<size_t>(entry.tensor.index)];
      for (int index = 0; index < layout.tensor(); ++index) {
        AddHolders(layout, stage, index, ShardOfRank(entry.tensor, layout.tensor(), index, padded),
                   &places);
      }
    }
  }
  for (TensorPlaces& places : all) {
    for (TensorPart& part : places.parts) std::sort(part.ranks.begin(), part.ranks.end());
  }
  return all;
}

}  // namespace tercio::plan
