// The client's side of CheckpointService.Upload, with messages as bytes (checkpoint/
// upload_message.h).
//
// Threads: one at a time.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"

namespace tercio::trainer {

class UploadStream {
 public:
  // The call, and so every wait below, ends at `deadline` (common/steady_time.h) at the latest.
  UploadStream(const std::shared_ptr<grpc::Channel>& channel, absl::Time deadline);
  ~UploadStream();
  UploadStream(const UploadStream&) = delete;
  UploadStream& operator=(const UploadStream&) = delete;

  // The message is sent while the next is made. False: the call is over; Finish returns the reason.
  bool Write(const grpc::ByteBuffer& message);
  // Discards the upload; Finish comes next.
  void Cancel() { context_.TryCancel(); }
  // Ends the stream and waits for the answer. Called once, last.
  absl::Status Finish();

 private:
  void AwaitWrite();
  // Whether the last operation has succeeded.
  bool Await();

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool open_ = true;
  bool writing_ = false;
};

}  // namespace tercio::trainer
