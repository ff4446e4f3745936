// How the training state of a stage is divided over its data ranks: not at all, or into shards, of
// which each rank updates one (parallelism.zero_stage; Rajbhandari et al. 2020, "ZeRO"). From stage
// 2 on a rank keeps the sums of the gradients of its shard only: they are summed in rounds, one for
// each lane of a rank (plan/lanes.h). Pure.
//
// With parallelism.shard neighbouring data ranks divide the state, and each such group of them is a
// replica of the others (Zhao et al. 2023, "PyTorch FSDP", section 3.2.2, hybrid sharding; Zhang et
// al. 2022, "MiCS"). Gathered layers may be kept until the next update, whole or divided over fewer
// neighbours (Wang et al. 2023, "ZeRO++", section 4.2).
//
// The cut follows from the tensors' shapes and the number of shards, so that every rank, and every
// stage that has a use of a tensor, computes the same.
//
// With offload.share a part of the optimizer's state stays near, in the device's memory, and the
// rest is far (the Twin-Flow of DeepSpeed's ZeRO-Offload++): whole units, the same ones on every
// rank of a stage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/lanes.h"
#include "plan/model_tensors.h"
#include "plan/offload.h"
#include "plan/precision.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// ParallelismSpec.reshard_after_forward of ranks that keep all weights from update to update.
inline constexpr int kKeepsWeights = 1;

// Ranks among which the state is divided: data ranks of a stage, or 1.
int ShardRanks(const v1::Layout& layout);
// Groups of such ranks that have the same state.
int ReplicasOf(const v1::Layout& layout);
// Neighbours over which gathered layers stay divided until the next update; 0: they do not.
int SecondaryRanks(const v1::Layout& layout);
// Layers that are gathered ahead of the one that is computed: both of a job and of a layout.
template <typename Parallelism>
int PrefetchOf(const Parallelism& parallelism) {
  return parallelism.has_prefetch() ? parallelism.prefetch() : 1;
}

// Whether ranks keep the sums of gradients of their own shard only.
bool DividesGradients(const v1::Layout& layout);

// Rounds of a step, for a number of lanes of the job: 1 where gradients are not divided.
int RoundsOf(const v1::Layout& layout, int lanes);

// Which data rank has which sequences of a step.
BatchShape BatchShapeOf(const v1::Layout& layout, int lanes);

// Buffers of a shard's sums of gradients: levels of a counter of rounds where sums have one order
// in all layouts (plan/reproducibility.h), else one, to which every round is added.
int SumLevels(const v1::JobSpec& job, const v1::Layout& layout);

// Whether each micro-batch is a round of its own: no more gradients than those of one bucket
// (plan/buckets.h) are then there before they are summed. REQUIRES: DividesGradients.
bool MicroBatchesAreRounds(const v1::Layout& layout, int lanes);

// Whether the model reads copies of weights that are made when they are needed: ranks have no
// weights but those of their shard, or these lie where the model cannot read them (offload). Layers
// are gathered into places in turns.
bool GathersWeights(const v1::JobSpec& job, const v1::Layout& layout);

// Whether ranks have the fp32 weights of their own shard only. In fp32 these may be what the model
// reads, and so all ranks have them whole.
bool DividesMasterWeights(const v1::JobSpec& job, const v1::Layout& layout);

// Whether the fp32 weights are part of the optimizer's state: nothing else reads them but what
// gathers them after an update.
bool OptimizerHasMasterWeights(const v1::JobSpec& job, const v1::Layout& layout);

// Whether the weights of frozen tensors are in a buffer of their own, kFrozenBuffer, from which
// what the model reads is made: layers are gathered, or weights have a block format. Else they are
// in what the model reads, and nowhere else.
inline constexpr char kFrozenBuffer[] = "parameters.frozen";
bool KeepsFrozenApart(const v1::JobSpec& job, const v1::Layout& layout);
// What that buffer holds: numbers of the job's format, or those that a block format is made of.
Precision FrozenPrecision(const v1::JobSpec& job);

// A run of a stage's tensors that is divided on its own: a layer; the token table; the rest of the
// embedding or of the head; one use of a tensor that has several. What is frozen of a layer, or of
// the embedding or head, is a unit, too.
struct StateUnit {
  std::string name;         // "layers.7", "embedding", "head", "table", or a use of a tensor
  bool frozen = false;      // StageTensor.frozen of all its tensors
  int layer = -1;           // StageTensor.layer of all its tensors
  size_t first_tensor = 0;  // index in StageTensors.tensors
  size_t tensor_count = 0;
  int64_t parameter_offset = 0;  // elements, of the first tensor
  int64_t gradient_offset = 0;   // elements, of the first tensor
  bool own_parameter = true;     // StageTensor.own_parameter of all its tensors
  // Where the model reads it: parameter_offset, or a place.
  int64_t model_offset = 0;
  // The layer, counted on the stage, with which its weights are gathered; -1: they are always
  // there.
  int stage_layer = -1;
  // Elements from the first tensor on: shard r is [bounds[r], bounds[r + 1]), and may be empty.
  std::vector<int64_t> bounds;
  // The same for the neighbours that keep it once it is gathered, and where each has its part, in a
  // buffer of its own (KeepOverNeighbours); empty: they do not.
  std::vector<int64_t> secondary_bounds;
  int64_t secondary_offset = 0;
  // KeepNear: its part of the optimizer's state is in the device's memory, where that of other
  // units is not.
  bool near = false;

  int64_t elements() const { return bounds.back(); }
};
std::vector<StateUnit> StateUnitsOf(const StageTensors& tensors, int shards);

// Chooses the units that stay near where `share` of the optimizer's state, which frozen units have
// none of, lies elsewhere: layers
// from the last to the first, then the others in their order, each that still fits into the rest of
// 1 - share of all elements. Layers come first because they are alike, and many: the share is met
// to within one of them. None for a share of 0 or 1, where the state is in one place. With a
// larger share as much is far, or more.
void KeepNear(const StageTensors& tensors, double share, std::vector<StateUnit>* units);

// The part of a tensor that is in a shard: whole local rows, and whole blocks of the gradient norm
// (kernels::kSquaresBlock) but for the tensor's end. May be empty.
struct ShardPart {
  int64_t begin = 0;  // elements of the tensor
  int64_t end = 0;
  // Elements, in buffers that hold a shard, of a frozen tensor in that of frozen weights; 0 without
  // own_parameter.
  int64_t state_offset = 0;
  int64_t sum_offset = 0;  // elements, in the buffer of summed gradients; 0 of frozen ones
  // In the one of two buffers of a shard's state that has the unit: state_offset where no unit is
  // near.
  int64_t split_offset = 0;
  bool near = false;  // StateUnit.near

  int64_t elements() const { return end - begin; }
};

// One shard of a stage's state.
struct StateShard {
  std::vector<ShardPart> parts;  // by StageTensors.tensors
  int64_t elements = 0;          // size of a buffer that holds the shard, of what is trained
  int64_t frozen_elements = 0;   // of one that holds the weights of what is frozen
  int64_t sum_elements = 0;      // size of one that holds the gradients of all uses
  int64_t near_elements = 0;     // of one that holds the units that are near
  int64_t far_elements = 0;      // of one that holds the others

  const ShardPart& part(size_t tensor) const { return parts[tensor]; }
};
StateShard ShardOf(const StageTensors& tensors, const std::vector<StateUnit>& units, int shard);

// Units of a stage that have the same tensors, but for their names, and are so divided alike:
// layers above all, of which a stage may have many. What is asked of all shards is computed once
// for each kind, and is what a walk with ShardOf over all shards and all units finds.
struct UnitKind {
  StateUnit unit;   // the first of them
  int count = 1;    // of such units
  size_t last = 0;  // place of the last one among all units of the stage
};
// `share`: KeepNear.
std::vector<UnitKind> UnitKindsOf(const StageTensors& tensors, int shards,
                                  double share = kWholeShare);

// Elements of the largest shard of the unit, or of any of the units that have gradients.
int64_t LargestPart(const StateUnit& unit);
int64_t LargestPart(const std::vector<UnitKind>& kinds);

// Elements of a buffer that holds any of the shards, of what is trained; undivided, and with
// nothing frozen: parameter_elements.
int64_t ShardElements(const std::vector<UnitKind>& kinds);
// The same of what is frozen.
int64_t FrozenElements(const std::vector<UnitKind>& kinds);

// The same for the buffers of units that are near, and of those that are not.
struct SplitElements {
  int64_t near = 0;
  int64_t far = 0;
};
SplitElements SplitElementsOf(const std::vector<UnitKind>& kinds);

// Elements of a buffer that holds the gradients of any of the shards.
int64_t SumElements(const std::vector<UnitKind>& kinds);

// What each shard has of the first counted(tensor) elements of each tensor of the stage. `counted`
// looks at sizes and uses of tensors only, for it is asked once for those of all units of a kind.
std::vector<int64_t> ElementsOfShards(const StageTensors& tensors,
                                      const std::vector<UnitKind>& kinds,
                                      const std::function<int64_t(const StageTensor&)>& counted);

// Columns of a tensor's rows as a tensor rank holds them.
int64_t LocalColumns(const StageTensor& entry);

// The buffer of the memory table that the model reads its weights from.
std::string WeightsBuffer(const v1::JobSpec& job, const v1::Layout& layout);

// Places of weights where they are gathered: all units but layers lie one after the other, behind
// them `places` for layers, which these take in turns. Sets model_offset and stage_layer of the
// units; returns the elements of the buffer.
int64_t PlaceWeights(const StageTensors& tensors, int places, std::vector<StateUnit>* units);
// Places of layers: one for that which is computed, and those that are gathered ahead.
int PlacesOfLayers(const v1::Layout& layout);

// Divides the units that have a stage_layer over as many neighbours that keep them; returns the
// elements of the buffer of one.
int64_t KeepOverNeighbours(int ranks, std::vector<StateUnit>* units);

// A shard's part of a unit, with the padding between its tensors.
struct ShardRange {
  int64_t begin = 0;  // elements of the unit
  int64_t elements = 0;
  int64_t state_offset = 0;  // as those of ShardPart
  int64_t sum_offset = 0;
  int64_t split_offset = 0;
};

// What a rank has, and what it updates.
struct RankShards {
  int shards = 1;
  std::vector<StateUnit> units;
  StateShard own;
  bool divides_master = false;  // DividesMasterWeights
  // The fp32 weights are those of a shard, or of all that is trained: they lie at state_offset, or
  // split_offset, and else at the place that the model reads.
  bool packs_master = false;
  bool divides_gradients = false;  // DividesGradients: else sums are where gradients are
  bool gathers_weights = false;    // GathersWeights
  bool splits_moments = false;     // KeepNear: some units are near, and others are not
  bool splits_master = false;      // the same of the fp32 weights
  int replicas = 1;                // ReplicasOf
  int replica = 0;                 // that of this rank
  int places = 0;                  // PlacesOfLayers
  bool frozen_apart = false;       // KeepsFrozenApart
  // The buffer of frozen weights, and what it holds.
  std::string frozen_buffer;
  Precision frozen_precision;
  // The tensors of the stage, with parameter_offset as the model reads them.
  StageTensors of_model;

  bool divided() const { return shards > 1; }

  // The shard's part of a unit, for the rank with this index among those that divide the state.
  ShardRange RangeOf(const StateUnit& unit, int rank) const;
};
RankShards ShardsOfRank(const v1::JobSpec& job, const v1::RankPlan& plan,
                        const StageTensors& tensors);

}  // namespace tercio::plan
