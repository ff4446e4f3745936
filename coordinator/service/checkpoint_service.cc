#include "coordinator/service/checkpoint_service.h"

#include <deque>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/store.h"
#include "checkpoint/upload_message.h"
#include "common/grpc_status.h"
#include "common/status_macros.h"

namespace tercio::coordinator {
namespace {

constexpr int64_t kChunkElements = 1 << 18;  // 1 MiB

}  // namespace

// One rank's upload. gRPC's threads must not wait, and nearly all here may: for the disk, for the
// coordinator. So messages are handled by the pool's threads, in order, while the next ones are
// read. Deletes itself when the call is over.
class CheckpointServiceImpl::UploadCall : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  UploadCall(CheckpointHost& host, Saves& saves, ReaderCache& readers, ThreadPool& pool)
      : host_(host), saves_(saves), readers_(readers), pool_(pool) {
    std::lock_guard<std::mutex> lock(mutex_);
    ReadAhead();
  }

  void OnReadDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    reading_ = false;
    if (over_) return;
    if (ok) {
      arrived_.push_back(std::exchange(incoming_, grpc::ByteBuffer()));
    } else {
      stream_ended_ = true;
    }
    ReadAhead();
    if (!std::exchange(handling_, true)) pool_.Run([this] { HandleArrived(); });
  }
  void OnCancel() override {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    if (waiting_) saves_.GiveUp(*save_, RankIsGone());
  }
  void OnDone() override { delete this; }

 private:
  static constexpr size_t kReadAhead = 3;  // messages

  static absl::Status RankIsGone() { return absl::AbortedError("a rank has gone away"); }

  // With mutex_ held.
  void ReadAhead() {
    if (reading_ || stream_ended_ || over_ || arrived_.size() == kReadAhead) return;
    reading_ = true;
    StartRead(&incoming_);
  }

  enum class Next { kMessage, kNothingYet, kEnd };

  // The last thing it does may delete this.
  void HandleArrived() {
    absl::Status status;
    while (status.ok() && !committed_ && !complete_) {
      grpc::ByteBuffer message;
      switch (TakeNext(&message)) {
        case Next::kMessage:
          status = Handle(message);
          break;
        case Next::kNothingYet:
          return;
        case Next::kEnd:
          status = absl::DataLossError(
              absl::StrCat("the stream of rank ", begin_.rank(), " ended early"));
      }
    }
    WantNoMore();
    if (status.ok() && complete_) {
      AwaitOutcome();
      return;
    }
    if (save_ != nullptr) saves_.GiveUp(*save_, status);
    End(status);
  }

  // After kNothingYet the next message that arrives is handled by another task.
  Next TakeNext(grpc::ByteBuffer* message) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!arrived_.empty()) {
      *message = arrived_.front();
      arrived_.pop_front();
      ReadAhead();
      return Next::kMessage;
    }
    handling_ = stream_ended_;
    return stream_ended_ ? Next::kEnd : Next::kNothingYet;
  }

  void WantNoMore() {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
    arrived_.clear();
  }

  absl::Status Handle(grpc::ByteBuffer message) {
    TERCIO_ASSIGN_OR_RETURN(const checkpoint::ReceivedUpload received,
                            checkpoint::ParseUpload(message));
    if (save_ == nullptr) return Begin(received.message);
    if (const auto outcome = saves_.OutcomeOf(*save_)) {
      committed_ = outcome->ok();
      return *outcome;
    }
    for (const std::string_view bytes : received.chunk) {
      TERCIO_RETURN_IF_ERROR(file_->Write(bytes));
    }
    if (!received.message.has_end()) return absl::OkStatus();
    TERCIO_RETURN_IF_ERROR(file_->Finish(received.message.end()));
    saves_.AddPart(begin_, file_->part(), *save_);
    file_ = nullptr;
    complete_ = true;
    return absl::OkStatus();
  }

  absl::Status Begin(const v1::UploadMessage& message) {
    if (!message.has_begin()) {
      return absl::InvalidArgumentError("the first message must be begin");
    }
    begin_ = message.begin();
    if (begin_.rank() < 0 || begin_.rank() >= begin_.world_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no rank ", begin_.rank(), " of ", begin_.world_size()));
    }
    if (!host_.IsPresent(begin_.run(), begin_.token())) {
      return absl::AbortedError("this attempt is over");
    }
    TERCIO_ASSIGN_OR_RETURN(save_, saves_.Join(begin_));
    readers_.Forget(begin_.run().job_id());  // a job that saves has loaded
    committed_ = save_ == nullptr;           // its answer was lost on the way
    if (committed_) return absl::OkStatus();
    TERCIO_ASSIGN_OR_RETURN(file_, host_.store().Begin(begin_));
    return absl::OkStatus();
  }

  void AwaitOutcome() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      waiting_ = true;
      if (cancelled_) saves_.GiveUp(*save_, RankIsGone());
    }
    saves_.Await(*save_, [this](const absl::Status& outcome) {
      pool_.Run([this, outcome] { End(outcome); });
    });
  }

  void End(const absl::Status& status) {
    file_ = nullptr;
    if (save_ != nullptr) saves_.Leave(*save_);
    Finish(ToGrpc(status));
  }

  CheckpointHost& host_;
  Saves& saves_;
  ReaderCache& readers_;
  ThreadPool& pool_;

  // Of the thread that handles messages.
  v1::UploadBegin begin_;
  Saves::SavePtr save_;  // set by the first message
  std::unique_ptr<checkpoint::RankUpload> file_;
  bool committed_ = false;  // with this rank's part as it was sent before
  bool complete_ = false;

  std::mutex mutex_;
  grpc::ByteBuffer incoming_;
  std::deque<grpc::ByteBuffer> arrived_;
  bool reading_ = false;
  bool stream_ended_ = false;
  bool handling_ = false;
  bool over_ = false;  // no more messages are wanted
  bool waiting_ = false;
  bool cancelled_ = false;
};

grpc::ServerReadReactor<grpc::ByteBuffer>* CheckpointServiceImpl::Upload(
    grpc::CallbackServerContext*, grpc::ByteBuffer* response) {
  const grpc::Slice empty(v1::UploadResponse().SerializeAsString());
  *response = grpc::ByteBuffer(&empty, 1);
  return new UploadCall(host_, saves_, readers_, pool_);
}

grpc::Status CheckpointServiceImpl::ReadTensor(grpc::ServerContext*,
                                               const v1::ReadTensorRequest* request,
                                               grpc::ServerWriter<v1::TensorChunk>* writer) {
  if (!host_.IsPresent(request->run(), request->token())) {
    return ToGrpc(absl::AbortedError("this attempt is over"));
  }
  // A node sees the weights of the jobs that it works for, and of no others.
  if (request->job_id() != request->run().job_id()) {
    return ToGrpc(absl::PermissionDeniedError(
        absl::StrCat("an attempt of ", request->run().job_id(), " reads no other job's weights")));
  }
  const auto reader =
      readers_.Open(request->job_id(), host_.store().PathOf(request->job_id(), request->step()));
  if (!reader.ok()) return ToGrpc(reader.status());
  const v1::TensorSlice& slice = request->slice();
  if (const absl::Status known = (*reader)->CheckSlice(slice); !known.ok()) return ToGrpc(known);
  // Never more than a chunk in memory, however large the tensor.
  v1::TensorChunk chunk;
  for (const v1::TensorSlice& part : checkpoint::DivideSlice(slice, kChunkElements)) {
    const int64_t elements =
        (part.row_end() - part.row_begin()) * (part.column_end() - part.column_begin());
    std::string* data = chunk.mutable_data();
    data->resize(static_cast<size_t>(elements) * sizeof(float));
    const absl::Status read = (*reader)->ReadSlice(part, reinterpret_cast<float*>(data->data()));
    if (!read.ok()) return ToGrpc(read);
    if (!writer->Write(chunk)) break;  // the trainer is gone
  }
  return grpc::Status::OK;
}

}  // namespace tercio::coordinator
