#include "worker/engine/state_slices.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "plan/memory_map.h"
#include "worker/blocks/fp8_scaling.h"
#include "worker/engine/step_guard.h"

namespace tercio::engine {
namespace {

// Slices are named by their place in the whole tensor, never by a rank,
// so that a run with another layout finds its part of a checkpoint.
void AddRange(const plan::StageTensor& entry, const StateRange& range, const v1::RankPlan& plan,
              std::vector<StateSlice>* slices) {
  const plan::TensorShard shard =
      plan::ShardOfRank(entry.tensor, plan.layout().tensor(), plan.placement().tensor_index(),
                        plan.padded_vocabulary());
  const plan::ShardPart& part = range.part;
  // Rows that pad the vocabulary lie behind these, and are in no checkpoint.
  const int64_t row_begin = shard.row_begin + part.begin / shard.local_columns;
  const int64_t row_end = std::min(shard.row_end, shard.row_begin + part.end / shard.local_columns);
  if (row_end <= row_begin) return;
  const std::pair<kernels::Values, const char*> kinds[] = {
      {range.weights, ""}, {range.first_moment, "adamw.m."}, {range.second_moment, "adamw.v."}};
  for (const auto& [values, prefix] : kinds) {
    if (values == nullptr) continue;
    StateSlice state;
    state.values = values;
    state.frozen = range.frozen;
    if (values == range.weights) state.model_offset = range.model_offset;
    state.elements = (row_end - row_begin) * shard.local_columns;
    state.slice.set_tensor(absl::StrCat(prefix, entry.tensor.name));
    state.slice.add_shape(entry.tensor.rows);
    // Other programs expect vectors of one dimension; that they are n x 1 is the plan's own view.
    if (!entry.tensor.is_vector) state.slice.add_shape(entry.tensor.columns);
    state.slice.set_row_begin(row_begin);
    state.slice.set_row_end(row_end);
    state.slice.set_column_begin(shard.column_begin);
    state.slice.set_column_end(shard.column_end);
    state.slice.set_dtype("F32");
    slices->push_back(state);
  }
}

StateSlice SliceOf(StatePart& part) {
  StateSlice state;
  state.part = &part;
  state.slice = part.Slice();
  state.elements = (state.slice.row_end() - state.slice.row_begin()) *
                   (state.slice.column_end() - state.slice.column_begin());
  return state;
}

}  // namespace

bool IsOptionalState(std::string_view tensor) {
  return tensor == kGuardTensor || tensor == kSpikeTensor ||
         tensor.starts_with(blocks::kFp8TensorPrefix);
}

std::vector<StateSlice> SlicesToSave(const plan::StageTensors& tensors,
                                     const plan::RankShards& shards, const v1::RankPlan& plan,
                                     const StateStore& store, const StateParts& parts) {
  std::vector<StateSlice> slices;
  const std::vector<int> savers = plan::SavingDataRanks(tensors, plan.layout().data());
  for (size_t i = 0; i < savers.size(); ++i) {
    const plan::StageTensor& entry = tensors.tensors[i];
    const bool whole = entry.tensor.shard == plan::Shard::kWhole;
    // Every tensor rank has a copy of these.
    if (whole && plan.placement().tensor_index() != 0) continue;
    // A tensor's further uses are not saved: it is stored once, by its name.
    if (entry.further_use) continue;
    // Replicas of a shard are equal, too: the first one saves it.
    if (shards.divided() ? shards.replica != 0 : savers[i] != plan.placement().data_index()) {
      continue;
    }
    const StateRange* const range = store.Find(i);
    TERCIO_CHECK(range != nullptr);
    AddRange(entry, *range, plan, &slices);
  }
  for (const auto& part : parts) {
    if (part->IsSaved()) slices.push_back(SliceOf(*part));
  }
  return slices;
}

std::vector<StateSlice> SlicesToLoad(const plan::StageTensors& tensors, const v1::RankPlan& plan,
                                     const StateStore& store, const StateParts& parts) {
  std::vector<StateSlice> slices;
  for (const StateRange& range : store.ranges()) {
    AddRange(tensors.tensors[range.tensor], range, plan, &slices);
  }
  for (const auto& part : parts) slices.push_back(SliceOf(*part));
  return slices;
}

std::vector<size_t> FindAmong(const std::vector<StateSlice>& all,
                              const std::vector<StateSlice>& some) {
  std::map<std::string, size_t> indices;
  for (size_t i = 0; i < all.size(); ++i) indices[all[i].slice.tensor()] = i;
  std::vector<size_t> found;
  for (const StateSlice& wanted : some) {
    const auto entry = indices.find(wanted.slice.tensor());
    TERCIO_CHECK(entry != indices.end());
    const StateSlice& there = all[entry->second];
    // Engine::Snapshot gives one copy of the values for
    // both purposes, so the slices must be the same.
    TERCIO_CHECK_EQ(there.elements, wanted.elements);
    TERCIO_CHECK_EQ(there.slice.row_begin(), wanted.slice.row_begin());
    TERCIO_CHECK_EQ(there.slice.column_begin(), wanted.slice.column_begin());
    found.push_back(entry->second);
  }
  return found;
}

}  // namespace tercio::engine
