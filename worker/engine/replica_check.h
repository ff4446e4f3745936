// Whether ranks that must hold the same bits still do: weights and moments of all data-parallel
// replicas, and what every tensor rank has a copy of. They started alike and have added the same
// gradients ever since, so a difference is a fault of memory, processor or network that nothing
// else would show.
//
// Each rank has a digest of each of its tensors. The members of a group exchange one number; where
// these differ, a digest of each tensor. All ranks of the job learn the same verdict.
//
// Threads: those of the communicators. An error is theirs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plan/model_tensors.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"

namespace tercio {

struct ReplicaVerdict {
  bool equal = true;
  int odd_rank =
      -1;  // of the job, which has other bits than most of its replicas; -1: cannot be told
  // "the weights of rank 2 are not those of its replicas (layers.0.mlp.up.weight)"
  std::string text;
};

// Members that do not hold what more than half of the group holds: all of them where no such
// majority is, none where all are equal. Ascending.
std::vector<int> OddMembers(absl::Span<const uint64_t> digests);

// What all groups together say. `suspicions[r]` is how many groups suspect rank r: one group of two
// cannot tell which of them is odd, but a rank that two groups suspect is.
// REQUIRES: not all are zero.
ReplicaVerdict JudgeReplicas(absl::Span<const int> suspicions, const std::string& tensor);

class ReplicaCheck {
 public:
  // What it is given must outlive it. `exchange`: memory of the device
  // (plan::ReplicaExchange doubles).
  ReplicaCheck(const v1::RankPlan& plan, const plan::StageTensors& tensors, double* exchange,
               Communicator& world, Communicator& tensor, Communicator& data)
      : plan_(plan),
        tensors_(tensors),
        exchange_(exchange),
        world_(world),
        tensor_(tensor),
        data_(data) {}

  // Whether there is anything to compare; the same on every rank.
  bool HasReplicas() const;

  // digests[i] is that of tensors[i] with its moments. Collective over the whole job.
  absl::StatusOr<ReplicaVerdict> Compare(Stream& stream, absl::Span<const uint64_t> digests);

 private:
  // What the members of a group hold, one row for each.
  using Rows = std::vector<std::vector<uint64_t>>;
  // Each number becomes its sum over the group.
  absl::Status Sum(Communicator& group, Stream& stream, absl::Span<double> numbers) const;
  absl::StatusOr<Rows> Exchange(Communicator& group, Stream& stream,
                                absl::Span<const uint64_t> mine) const;
  // Members that differ, by a digest of all that `digests` has.
  absl::StatusOr<std::vector<int>> CompareGroup(Communicator& group, Stream& stream,
                                                absl::Span<const uint64_t> digests) const;
  absl::StatusOr<ReplicaVerdict> Locate(Stream& stream, absl::Span<const uint64_t> digests,
                                        const std::vector<int>& odd_of_data,
                                        const std::vector<int>& odd_of_tensor);
  int RankOf(v1::GroupKind kind, int member) const;

  const v1::RankPlan& plan_;
  const plan::StageTensors& tensors_;
  double* exchange_;
  Communicator& world_;
  Communicator& tensor_;
  Communicator& data_;
};

}  // namespace tercio
