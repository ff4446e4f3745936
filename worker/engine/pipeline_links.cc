#include "worker/engine/pipeline_links.h"

#include "common/check.h"

namespace tercio::engine {

// Only a faulty schedule uses a buffer again whose message is still on its way.
void PipelineLinks::Send(Tag tag, int buffer_index, const void* data, int64_t bytes, int peer) {
  const bool inserted =
      sends_.emplace(Key{tag, buffer_index}, group_.Send(stream_, data, bytes, peer, tag)).second;
  TERCIO_CHECK(inserted);
}

void PipelineLinks::Receive(Tag tag, int buffer_index, void* data, int64_t bytes, int peer) {
  const bool inserted =
      receives_.emplace(Key{tag, buffer_index}, group_.Receive(stream_, data, bytes, peer, tag))
          .second;
  TERCIO_CHECK(inserted);
}

void PipelineLinks::WaitSend(Tag tag, int buffer_index) { WaitFor(sends_, {tag, buffer_index}); }

void PipelineLinks::WaitReceive(Tag tag, int buffer_index) {
  WaitFor(receives_, {tag, buffer_index});
}

void PipelineLinks::WaitFor(Outstanding& transfers, const Key& key) {
  const auto found = transfers.find(key);
  // The schedule waits before each use of a buffer, and the first use has nothing to wait for.
  if (found == transfers.end()) return;
  group_.Wait(stream_, found->second);
  transfers.erase(found);
}

// The next step uses all buffers again, so nothing may be left on its way.
void PipelineLinks::WaitAll() {
  for (Outstanding* transfers : {&sends_, &receives_}) {
    for (const auto& [key, transfer] : *transfers) group_.Wait(stream_, transfer);
    transfers->clear();
  }
}

}  // namespace tercio::engine
