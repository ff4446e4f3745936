// The place of a rank in the grid: the bijection between ranks and (pipeline, data, tensor)
// coordinates, and the process groups that follow from it. Pure.
//
//   rank = (pipeline_index * data + data_index) * tensor + tensor_index        (tensor fastest)
//
// Worked example, tensor 2 x pipeline 2 x data 2: rank 5 = (1*2 + 0)*2 + 1, so it is tensor rank 1
// of data rank 0 in pipeline stage 1. Its groups: tensor {4,5}, data {5,7}, pipeline {1,5}.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "model/description.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

struct Coordinates {
  int tensor = 0;
  int data = 0;
  int pipeline = 0;
  bool operator==(const Coordinates&) const = default;
};

// tensor * data * pipeline * context_parallel.
int WorldSize(const v1::Layout& layout);

// REQUIRES: 0 <= rank < WorldSize(layout).
Coordinates CoordinatesOfRank(const v1::Layout& layout, int rank);
int RankOfCoordinates(const v1::Layout& layout, const Coordinates& coordinates);

// Every group of the layout: "world", then "tensor.<i>", "data.<i>", "pipeline.<i>" in ascending
// order of their first rank; then those that divide the state, where they are not the data groups:
// "shard.<i>", "replica.<i>", "secondary.<i>" (plan/state_shards.h). Every rank is in exactly one
// group of each kind. Groups of one rank are included.
std::vector<v1::ProcessGroup> ProcessGroups(const v1::Layout& layout);

// The groups of one rank, in the same order; costs the same in a layout of any size.
std::vector<v1::ProcessGroup> GroupsOfRank(const v1::Layout& layout, int rank);

// The members, in the order of their ranks inside the group.
std::vector<int> RanksOf(const v1::ProcessGroup& group);

// The rank inside the group; -1: not a member.
int IndexInGroup(const v1::ProcessGroup& group, int rank);

// Sets what a job chooses beside the degrees and the micro-batches: schedule, recomputation,
// sequence parallelism, overlap, offload.share, with the defaults of what it leaves open.
void SetChoices(const v1::JobSpec& job, v1::Layout* layout);

// Whether ranks have the same parts of the state, and compute alike: wherever the state lies.
bool DivideAlike(v1::Layout a, v1::Layout b);

// Whether the model can be cut that way. Errors are INVALID_ARGUMENT, naming every number and the
// rule: heads and ffn_hidden divisible by tensor, layers by pipeline unless the layout says how
// many each stage has, global_batch by data * micro_batch and by the lanes, degrees positive,
// product equal to `ranks`.
absl::Status CheckLayout(const v1::JobSpec& job, const v1::Layout& layout, int ranks);
// The same where SizesThatTensorDivides of the job's model are known.
absl::Status CheckLayout(const v1::JobSpec& job, const v1::Layout& layout, int ranks,
                         const std::vector<model::DividedSize>& divided);

}  // namespace tercio::plan
