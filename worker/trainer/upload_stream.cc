#include "worker/trainer/upload_stream.h"

#include <chrono>
#include <utility>

#include "common/grpc_status.h"
#include "common/steady_time.h"

namespace tercio::trainer {
namespace {

constexpr char kMethod[] = "/tercio.v1.CheckpointService/Upload";

}  // namespace

UploadStream::UploadStream(const std::shared_ptr<grpc::Channel>& channel, absl::Time deadline)
    : stub_(channel) {
  // gRPC counts deadlines on the wall clock.
  context_.set_deadline(std::chrono::system_clock::now() +
                        absl::ToChronoMilliseconds(deadline - SteadyNow()));
  // In a generic call the caller makes the bytes, without a copy of the values in a message.
  call_ = stub_.PrepareCall(&context_, kMethod, &queue_);
  call_->StartCall(this);
  open_ = Await();
}

UploadStream::~UploadStream() {
  // gRPC wants a queue to be empty when it is destroyed.
  queue_.Shutdown();
  while (Await()) {
  }
}

bool UploadStream::Await() {
  void* tag = nullptr;
  bool ok = false;
  return queue_.Next(&tag, &ok) && ok;
}

bool UploadStream::Write(const grpc::ByteBuffer& message) {
  AwaitWrite();
  if (!open_) return false;
  // The next chunk is prepared while this one is being sent.
  call_->Write(message, this);
  writing_ = true;
  return true;
}

// One write may be under way at a time.
void UploadStream::AwaitWrite() {
  if (std::exchange(writing_, false)) open_ = Await();
}

absl::Status UploadStream::Finish() {
  AwaitWrite();
  if (open_) {
    call_->WritesDone(this);
    open_ = Await();
  }
  // The answer is an empty message; what counts is the status.
  grpc::ByteBuffer answer;
  call_->Read(&answer, this);
  Await();
  grpc::Status status;
  call_->Finish(&status, this);
  Await();
  return FromGrpc(status);
}

}  // namespace tercio::trainer
