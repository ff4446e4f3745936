// The messages between neighbouring pipeline stages: non-blocking, one outstanding per buffer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "worker/collective/communicator.h"
#include "worker/collective/pipeline_edges.h"
#include "worker/device/device.h"

namespace tercio::engine {

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
