#include "worker/engine/communicators.h"

#include <utility>

#include "common/check.h"

namespace tercio::engine {

absl::StatusOr<Communicators> Communicators::Create(const v1::RankPlan& plan, Make make) {
  Communicators made;
  for (const v1::ProcessGroup& group : plan.groups()) {
    absl::StatusOr<std::unique_ptr<collective::Communicator>> communicator = make(group);
    if (!communicator.ok()) {
      // The others must not wait for a rank that has given up.
      made.Abort();
      return communicator.status();
    }
    made.by_kind_.at(static_cast<size_t>(group.kind())) = *std::move(communicator);
  }
  return made;
}

collective::Communicator& Communicators::Of(v1::GroupKind kind) const {
  const auto& found = by_kind_.at(static_cast<size_t>(kind));
  TERCIO_CHECK(found != nullptr);
  return *found;
}

void Communicators::Abort() const {
  for (const auto& communicator : by_kind_) {
    if (communicator != nullptr) communicator->Abort();
  }
}

v1::CommunicationBytes Communicators::SentBytes() const {
  v1::CommunicationBytes bytes;
  bytes.set_tensor(tensor().sent_bytes());
  bytes.set_pipeline(pipeline().sent_bytes());
  int64_t of_data = data().sent_bytes();
  for (const v1::GroupKind kind : {v1::GROUP_KIND_SHARD, v1::GROUP_KIND_REPLICA,
                                   v1::GROUP_KIND_SECONDARY, v1::GROUP_KIND_SUMS}) {
    if (has(kind)) of_data += Of(kind).sent_bytes();
  }
  bytes.set_data(of_data);
  bytes.set_gathered(shard().gathered_bytes() +
                     (secondary() != nullptr ? secondary()->gathered_bytes() : 0));
  bytes.set_world(world().sent_bytes());
  return bytes;
}

}  // namespace tercio::engine
