#include "worker/trainer/checkpoint_source.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/reader.h"
#include "common/grpc_status.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "grpcpp/client_context.h"
#include "proto/tercio/v1/checkpoint_service.grpc.pb.h"
#include "worker/engine/state_slices.h"

namespace tercio::trainer {
namespace {

// The attempt fails if the coordinator is away for longer.
constexpr absl::Duration kReadPatience = absl::Minutes(2);
constexpr absl::Duration kSourceRetryInterval = absl::Milliseconds(500);

class CheckpointSource : public StateSource {
 public:
  // Saved by a job that could not skip steps: the state of that tensor starts now.
  bool MayLack(const v1::TensorSlice& slice) const override {
    return engine::IsOptionalState(slice.tensor());
  }
};

class CoordinatorSource : public CheckpointSource {
 public:
  CoordinatorSource(const std::shared_ptr<grpc::Channel>& channel,
                    const CheckpointIdentity& identity, int64_t step)
      : stub_(v1::CheckpointService::NewStub(channel)) {
    request_.set_job_id(identity.run.job_id());
    request_.set_step(step);
    *request_.mutable_run() = identity.run;
    request_.set_token(identity.token);
  }

  // Retried if the coordinator is restarted meanwhile.
  absl::Status Read(const v1::TensorSlice& slice, absl::Span<float> values, const Arrived& arrived,
                    Check*) override {
    *request_.mutable_slice() = slice;
    const absl::Time end = SteadyNow() + kReadPatience;
    int64_t told = 0;
    const Arrived arrived_first = [&](int64_t bytes) {
      // A retry reads again what had arrived: progress must not count it twice.
      if (bytes > told) arrived(bytes - std::exchange(told, bytes));
    };
    while (true) {
      absl::Status status = ReadOnce(values, arrived_first);
      if (!absl::IsUnavailable(status) || SteadyNow() >= end ||
          CancelledWithin(kSourceRetryInterval)) {
        return status;
      }
    }
  }

  int64_t bytes_read() const override { return bytes_read_; }

  void Cancel() override {
    MutexLock lock(mutex_);
    cancelled_ = true;
    changed_.NotifyAll();
    // A call that begins later finds the flag, which Begin reads under the same lock.
    if (context_ != nullptr) context_->TryCancel();
  }

 private:
  // `arrived` is called with the number of bytes of this call so far.
  absl::Status ReadOnce(absl::Span<float> values, const Arrived& arrived) {
    const auto context = Begin();
    if (context == nullptr) return absl::CancelledError("loading has ended");
    const auto reader = stub_->ReadTensor(context.get(), request_);
    const size_t room = values.size() * sizeof(float);
    v1::TensorChunk chunk;
    size_t received = 0;  // bytes
    while (reader->Read(&chunk)) {
      // What is too much is counted, and refused below, but never written.
      if (received + chunk.data().size() <= room) {
        std::memcpy(reinterpret_cast<char*>(values.data()) + received, chunk.data().data(),
                    chunk.data().size());
      }
      received += chunk.data().size();
      bytes_read_ += static_cast<int64_t>(chunk.data().size());
      arrived(static_cast<int64_t>(received));
    }
    TERCIO_RETURN_IF_ERROR(FromGrpc(reader->Finish()));
    if (received != room) {
      return absl::DataLossError(absl::StrCat("tensor ", request_.slice().tensor(), " has ",
                                              received, " bytes instead of ", room));
    }
    return absl::OkStatus();
  }

  bool CancelledWithin(absl::Duration pause) {
    MutexLock lock(mutex_);
    return changed_.WaitFor(mutex_, absl::ToChronoMilliseconds(pause),
                            [this]() TERCIO_REQUIRES(mutex_) { return cancelled_; });
  }

  std::shared_ptr<grpc::ClientContext> Begin() {
    MutexLock lock(mutex_);
    if (cancelled_) return nullptr;
    // A context serves one call, so each attempt has its own.
    context_ = std::make_shared<grpc::ClientContext>();
    return context_;
  }

  const std::unique_ptr<v1::CheckpointService::Stub> stub_;
  v1::ReadTensorRequest request_;
  // One thread reads the values, another asks how many there were.
  std::atomic<int64_t> bytes_read_ = 0;
  Mutex mutex_;
  ConditionVariable changed_;
  std::shared_ptr<grpc::ClientContext> context_
      TERCIO_GUARDED_BY(mutex_);  // context of the call in progress
  bool cancelled_ TERCIO_GUARDED_BY(mutex_) = false;
};

class DirectorySource : public CheckpointSource {
 public:
  explicit DirectorySource(std::shared_ptr<const checkpoint::Reader> reader)
      : reader_(std::move(reader)), cursor_(*reader_) {}

  absl::Status Read(const v1::TensorSlice& slice, absl::Span<float> values, const Arrived& arrived,
                    Check* check) override {
    std::vector<checkpoint::UnverifiedBlock> blocks;
    TERCIO_RETURN_IF_ERROR(cursor_.Read(slice, values.data(), &blocks));
    // A file system does not tell how far a read is, so the piece arrives as a whole.
    arrived(static_cast<int64_t>(values.size() * sizeof(float)));
    if (blocks.empty()) return absl::OkStatus();
    // The caller computes the digests beside the next read. The expected ones lie in the reader.
    *check = [reader = reader_, blocks = std::move(blocks)] {
      for (const checkpoint::UnverifiedBlock& block : blocks) {
        TERCIO_RETURN_IF_ERROR(checkpoint::Verify(block));
      }
      return absl::OkStatus();
    };
    return absl::OkStatus();
  }

  int64_t bytes_read() const override { return reader_->bytes_read(); }

 private:
  const std::shared_ptr<const checkpoint::Reader> reader_;
  checkpoint::SliceCursor cursor_;
};

}  // namespace

std::shared_ptr<StateSource> CheckpointAtCoordinator(const std::shared_ptr<grpc::Channel>& channel,
                                                     const CheckpointIdentity& identity,
                                                     int64_t step) {
  return std::make_shared<CoordinatorSource>(channel, identity, step);
}

absl::StatusOr<std::shared_ptr<StateSource>> CheckpointInDirectory(const std::string& directory,
                                                                   const std::string& digest) {
  TERCIO_ASSIGN_OR_RETURN(auto reader,
                          checkpoint::Reader::Open(directory, checkpoint::DigestCheck::kNone));
  // Each node sees the directory through a mount of its own, which may be that of something else.
  if (!digest.empty() && reader->manifest_digest() != digest) {
    return absl::DataLossError(
        absl::StrCat(directory, ": its manifest is not the one that was committed"));
  }
  return std::make_shared<DirectorySource>(std::move(reader));
}

}  // namespace tercio::trainer
