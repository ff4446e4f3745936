#include "worker/engine/state_slices.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "plan/memory_map.h"
#include "plan/precision.h"
#include "worker/blocks/fp8_scaling.h"
#include "worker/engine/step_guard.h"

namespace tercio::engine {
namespace {

// Slices are named by their place in the whole tensor, never by a rank,
// so that a run with another layout finds its part of a checkpoint.
void AddTensor(const plan::StageTensor& entry, const plan::ShardPart& part, bool divides_master,
               const v1::RankPlan& plan, std::vector<StateSlice>* slices) {
  const plan::TensorShard shard =
      plan::ShardOfRank(entry.tensor, plan.layout().tensor(), plan.placement().tensor_index(),
                        plan.padded_vocabulary());
  // Rows that pad the vocabulary lie behind these, and are in no checkpoint.
  const int64_t row_begin = shard.row_begin + part.begin / shard.local_columns;
  const int64_t row_end = std::min(shard.row_end, shard.row_begin + part.end / shard.local_columns);
  if (row_end <= row_begin) return;
  const std::pair<StateKind, const char*> kinds[] = {{StateKind::kParameter, ""},
                                                     {StateKind::kFirstMoment, "adamw.m."},
                                                     {StateKind::kSecondMoment, "adamw.v."}};
  for (const auto& [kind, prefix] : kinds) {
    StateSlice state;
    state.kind = kind;
    state.model_offset = entry.parameter_offset + part.begin;
    const bool in_shard = kind != StateKind::kParameter || divides_master;
    state.offset = in_shard ? part.state_offset : state.model_offset;
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

}  // namespace

bool IsOptionalState(std::string_view tensor) {
  return tensor == kGuardTensor || tensor == kSpikeTensor ||
         tensor.starts_with(blocks::kFp8TensorPrefix);
}

std::vector<StateSlice> SlicesToSave(const plan::StageTensors& tensors,
                                     const plan::RankShards& shards, const v1::RankPlan& plan) {
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
    AddTensor(entry, shards.own.part(i), shards.divides_master, plan, &slices);
  }
  return slices;
}

std::vector<StateSlice> SlicesToLoad(const plan::StageTensors& tensors,
                                     const plan::RankShards& shards, const v1::RankPlan& plan) {
  std::vector<StateSlice> slices;
  for (size_t i = 0; i < tensors.tensors.size(); ++i) {
    const plan::StageTensor& entry = tensors.tensors[i];
    if (!entry.own_parameter) continue;
    AddTensor(entry, shards.own.part(i), shards.divides_master, plan, &slices);
  }
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

void AddGuardSlices(const v1::JobSpec& job, const v1::RankPlan& plan,
                    std::vector<StateSlice>* to_save, std::vector<StateSlice>* to_load) {
  const v1::RankPlacement& at = plan.placement();
  // All ranks have judged by the same numbers, so one of them speaks for all.
  const bool first = at.pipeline_index() == 0 && at.tensor_index() == 0 && at.data_index() == 0;
  const auto add = [&](StateKind kind, const char* tensor, int64_t elements) {
    StateSlice state;
    state.kind = kind;
    state.elements = elements;
    state.slice.set_tensor(tensor);
    state.slice.add_shape(elements);
    state.slice.set_row_end(elements);
    state.slice.set_column_end(1);
    state.slice.set_dtype("F32");
    to_load->push_back(state);
    if (first) to_save->push_back(state);
  };
  if (plan::MaySkipSteps(job)) add(StateKind::kGuard, kGuardTensor, plan::kGuardStateElements);
  if (plan::ActsOnSpikes(job)) add(StateKind::kSpikes, kSpikeTensor, plan::kSpikeStateElements);
}

void AddFp8Slices(const v1::JobSpec& job, const v1::RankPlan& plan,
                  std::vector<StateSlice>* to_save, std::vector<StateSlice>* to_load) {
  if (!plan::HasFp8(job)) return;
  // The ranks of a stage share their scales, but each stage has other layers.
  const bool first = plan.placement().tensor_index() == 0 && plan.placement().data_index() == 0;
  for (int layer = 0; layer < plan.stage().layers_size(); ++layer) {
    StateSlice state;
    state.kind = StateKind::kFp8;
    state.offset = layer;
    state.elements = plan::kFp8StateOfLayer;
    state.slice.set_tensor(blocks::Fp8Tensor(plan.stage().layers(layer)));
    state.slice.add_shape(plan::kFp8SlotsOfLayer);
    state.slice.add_shape(plan::kFp8History);
    state.slice.set_row_end(plan::kFp8SlotsOfLayer);
    state.slice.set_column_end(plan::kFp8History);
    state.slice.set_dtype("F32");
    to_load->push_back(state);
    if (first) to_save->push_back(state);
  }
}

}  // namespace tercio::engine
