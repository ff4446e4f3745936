// The communicators of one rank: one for each kind of group, also where the rank is alone in it.
//
// Threads: Abort and SentBytes any, once all are made; else that of the engine.
#pragma once

#include <array>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/collective/communicator.h"

namespace tercio::engine {

class Communicators {
 public:
  using Make = absl::FunctionRef<absl::StatusOr<std::unique_ptr<collective::Communicator>>(
      const v1::ProcessGroup& group)>;

  // Makes those of the rank's groups in the order of the plan, which all ranks keep: making one is
  // collective.
  static absl::StatusOr<Communicators> Create(const v1::RankPlan& plan, Make make);

  // None yet.
  Communicators() = default;

  // REQUIRES: the plan has a group of the kind.
  collective::Communicator& Of(v1::GroupKind kind) const;
  collective::Communicator& world() const { return Of(v1::GROUP_KIND_WORLD); }
  collective::Communicator& tensor() const { return Of(v1::GROUP_KIND_TENSOR); }
  collective::Communicator& data() const { return Of(v1::GROUP_KIND_DATA); }
  collective::Communicator& pipeline() const { return Of(v1::GROUP_KIND_PIPELINE); }
  // Ranks that divide the state: the data ranks, or a group of them.
  collective::Communicator& shard() const {
    return has(v1::GROUP_KIND_SHARD) ? Of(v1::GROUP_KIND_SHARD) : data();
  }
  // The same ranks, for sums of gradients. It is shard() unless has_sums().
  collective::Communicator& sums() const { return has_sums() ? Of(v1::GROUP_KIND_SUMS) : shard(); }
  bool has_sums() const { return has(v1::GROUP_KIND_SUMS); }
  // Ranks that have the same shard, and neighbours that keep gathered layers; null: none.
  collective::Communicator* replicas() const { return Find(v1::GROUP_KIND_REPLICA); }
  collective::Communicator* secondary() const { return Find(v1::GROUP_KIND_SECONDARY); }

  void Abort() const;
  // The bytes that the rank has sent, by kind of group; groups of data ranks count as data.
  v1::CommunicationBytes SentBytes() const;

 private:
  collective::Communicator* Find(v1::GroupKind kind) const {
    return by_kind_[static_cast<size_t>(kind)].get();
  }
  bool has(v1::GroupKind kind) const { return Find(kind) != nullptr; }

  std::array<std::unique_ptr<collective::Communicator>, v1::GroupKind_ARRAYSIZE> by_kind_;
};

}  // namespace tercio::engine
