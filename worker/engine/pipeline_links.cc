#include "worker/engine/pipeline_links.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace tercio {

PipelineLinks::~PipelineLinks() {
  if (sends_.empty() && receives_.empty()) return;
  // Left over after an error: buffers must not be written once the arena is gone.
  group_.Abort();
  for (auto& [key, transfer] : sends_) group_.Wait(*transfer).IgnoreError();
  for (auto& [key, transfer] : receives_) group_.Wait(*transfer).IgnoreError();
}

void PipelineLinks::Send(Tag tag, int buffer_index, const void* data, int64_t bytes, int peer) {
  stream_.RunOnHost([=, this] {
    auto [entry, inserted] =
        sends_.emplace(std::pair{tag, buffer_index}, group_.Send(data, bytes, peer, tag));
    TERCIO_CHECK(inserted);
    return absl::OkStatus();
  });
}

void PipelineLinks::Receive(Tag tag, int buffer_index, void* data, int64_t bytes, int peer) {
  stream_.RunOnHost([=, this] {
    auto [entry, inserted] =
        receives_.emplace(std::pair{tag, buffer_index}, group_.Receive(data, bytes, peer, tag));
    TERCIO_CHECK(inserted);
    return absl::OkStatus();
  });
}

void PipelineLinks::WaitSend(Tag tag, int buffer_index) { WaitFor(sends_, tag, buffer_index); }

void PipelineLinks::WaitReceive(Tag tag, int buffer_index) {
  WaitFor(receives_, tag, buffer_index);
}

void PipelineLinks::WaitFor(Outstanding& transfers, Tag tag, int buffer_index) {
  stream_.RunOnHost([=, this, &transfers] {
    const auto found = transfers.find({tag, buffer_index});
    if (found == transfers.end()) return absl::OkStatus();
    const absl::Status status = group_.Wait(*found->second);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("group ", group_.group(), ", rank ", group_.rank(), " of ",
                                       group_.size(), ": ", std::string(status.message())));
    }
    transfers.erase(found);
    return absl::OkStatus();
  });
}

void PipelineLinks::WaitAll() {
  for (Outstanding* transfers : {&sends_, &receives_}) {
    stream_.RunOnHost([=, this] {
      for (auto& [key, transfer] : *transfers) {
        if (absl::Status status = group_.Wait(*transfer); !status.ok()) return status;
      }
      transfers->clear();
      return absl::OkStatus();
    });
  }
}

}  // namespace tercio
