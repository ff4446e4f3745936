// The messages between neighbouring pipeline stages: non-blocking, one outstanding per buffer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "proto/tercio/v1/plan.pb.h"
#include "worker/collective/communicator.h"
#include "worker/collective/pipeline_edges.h"
#include "worker/device/device.h"

namespace tercio::engine {

// Neighbours of the rank's stage: the first and last are neighbours if a stage has several chunks.
inline int PreviousStage(const v1::RankPlan& plan) {
  const int stages = plan.layout().pipeline();
  return (plan.placement().pipeline_index() + stages - 1) % stages;
}
inline int NextStage(const v1::RankPlan& plan) {
  return (plan.placement().pipeline_index() + 1) % plan.layout().pipeline();
}

class PipelineLinks {
 public:
  PipelineLinks(collective::Communicator& group, device::Stream& stream)
      : group_(group), stream_(stream) {}

  enum Tag : uint32_t {
    kActivation = collective::kActivationTag,
    kGradient = collective::kGradientTag,
    kTied = collective::kTiedTag
  };

  // Start a message of `bytes`; `buffer` is free again after WaitSend, or holds the message after
  // WaitReceive.
  void Send(Tag tag, int buffer_index, const void* data, int64_t bytes, int peer);
  void Receive(Tag tag, int buffer_index, void* data, int64_t bytes, int peer);

  // In stream order; no-ops if nothing is outstanding for that buffer.
  void WaitSend(Tag tag, int buffer_index);
  void WaitReceive(Tag tag, int buffer_index);
  void WaitAll();

 private:
  using Key = std::pair<uint32_t, int>;
  using Outstanding = std::map<Key, std::shared_ptr<collective::Transfer>>;
  void WaitFor(Outstanding& transfers, const Key& key);

  collective::Communicator& group_;
  device::Stream& stream_;
  Outstanding sends_;
  Outstanding receives_;
};

}  // namespace tercio::engine
