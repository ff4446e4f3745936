// Checks whether ranks that must hold the same bits still do: weights and moments of all
// data-parallel replicas, and the tensors that every tensor rank has a copy of; where data ranks
// divide the state (plan/state_shards.h), the weights that the model reads, and, where there are
// groups of them, shards that several have. They started alike and have added the same gradients
// ever since, so a difference is a fault of memory, processor or network that nothing else would
// show.
//
// Each rank has a digest of each of its tensors. The members of a group exchange one number; where
// these differ, a digest of each tensor. All ranks of the job learn the same verdict.
//
// Threads: those of the communicators. An error is theirs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/values.h"
#include "plan/model_tensors.h"
#include "plan/state_shards.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/communicators.h"
#include "worker/engine/state_store.h"

namespace tercio::engine {

struct ReplicaVerdict {
  bool equal = true;
  int odd_rank = -1;  // the job's rank whose bits differ from most replicas'; -1: unknown
  // "the weights of rank 2 differ from those of its replicas (layers.0.mlp.up.weight)"
  std::string text;
};

// Members whose bits differ from those of more than half of the group: all members if there is no
// such majority, none if all are equal. Ascending.
std::vector<int> OddMembers(absl::Span<const uint64_t> digests);

// The combined verdict of all groups. `suspicions[r]` is how many groups suspect rank r: one group
// of two cannot tell which of them is odd, but a rank that two groups suspect is. REQUIRES: not all
// are zero.
ReplicaVerdict JudgeReplicas(absl::Span<const int> suspicions, const std::string& tensor);

// A drill: flips one bit of a stage's weights on the device, in the middle of its largest tensor,
// an eighth of the weight or so: no number becomes infinite. `weights`: values of `element_bytes`,
// each tensor at its parameter_offset.
void FlipBit(const plan::StageTensors& tensors, std::byte* weights, int64_t element_bytes,
             device::Stream& stream);

// The same in the weights of the largest part of this rank's shard.
void FlipBitOfShard(const StateStore& store, device::Stream& stream);

// The tensors of a stage that ranks compare, at their places in what the model reads: all but those
// of layers that are gathered and forgotten, which count as further uses of the parameter.
plan::StageTensors ComparedTensors(const plan::RankShards& shards);

class ReplicaCheck {
 public:
  // The arguments must outlive it. `tensors`: ComparedTensors. `exchange`: memory of the device
  // (plan::ReplicaExchange doubles).
  ReplicaCheck(const v1::RankPlan& plan, const plan::StageTensors& tensors, double* exchange,
               const Communicators& communicators);

  // Whether there is anything to compare; the same on every rank.
  bool HasReplicas() const;

  static constexpr size_t kMostParts = 3;
  // The digest of each tensor's weights, each at its parameter_offset. `parts`: memory of the
  // device, kMostParts numbers for each tensor.
  absl::StatusOr<std::vector<uint64_t>> DigestsOf(kernels::ConstValues weights, uint64_t* parts,
                                                  device::Stream& stream) const;
  // The same of weights and moments of this rank's shard, which may be all of the state.
  absl::StatusOr<std::vector<uint64_t>> DigestsOf(const StateStore& store, uint64_t* parts,
                                                  device::Stream& stream) const;
  // Whether other ranks have the same shard.
  bool ComparesShards() const { return groups_.back().kind == v1::GROUP_KIND_REPLICA; }

  // digests[i] is that of tensors[i] with its moments; of_shard[i] the same of the shard, where
  // these are compared. Collective over the whole job.
  absl::StatusOr<ReplicaVerdict> Compare(device::Stream& stream, absl::Span<const uint64_t> digests,
                                         absl::Span<const uint64_t> of_shard);

 private:
  // Ranks that have the same, and those of them that differ.
  struct Group {
    v1::GroupKind kind;
    collective::Communicator* ranks;
    std::vector<int> odd = {};
  };
  using Parts = std::array<uint64_t, kMostParts>;  // digests of a tensor's weights and moments

  // The digests of a group's members, one row for each.
  using Rows = std::vector<std::vector<uint64_t>>;
  absl::StatusOr<std::vector<uint64_t>> Joined(uint64_t* parts, device::Stream& stream) const;
  // Replaces each number by its sum over the group.
  absl::Status Sum(collective::Communicator& group, device::Stream& stream,
                   absl::Span<double> numbers) const;
  absl::StatusOr<Rows> Exchange(collective::Communicator& group, device::Stream& stream,
                                absl::Span<const uint64_t> mine) const;
  // Members that differ, by a digest of all of `digests`.
  absl::StatusOr<std::vector<int>> CompareGroup(collective::Communicator& group,
                                                device::Stream& stream,
                                                absl::Span<const uint64_t> digests) const;
  absl::StatusOr<ReplicaVerdict> Locate(device::Stream& stream, absl::Span<const uint64_t> digests,
                                        absl::Span<const uint64_t> of_shard);
  // The tensors that the members of a group have alike, by their place in tensors_.
  std::vector<size_t> ComparedBy(const Group& group) const;
  // The first tensor in which the members of a group differ.
  absl::StatusOr<int> FirstDifference(const Group& group, device::Stream& stream,
                                      absl::Span<const uint64_t> digests) const;
  int RankOf(v1::GroupKind kind, int member) const;

  const v1::RankPlan& plan_;
  const plan::StageTensors& tensors_;
  double* exchange_;
  collective::Communicator& world_;
  std::vector<Group> groups_;  // data ranks, tensor ranks, those that have the same shard
};

}  // namespace tercio::engine
