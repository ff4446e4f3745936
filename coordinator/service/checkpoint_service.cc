#include "coordinator/service/checkpoint_service.h"

#include <deque>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/store.h"
#include "checkpoint/upload_message.h"
#include "common/catch_all.h"
#include "common/grpc_status.h"
#include "common/status_macros.h"

namespace tercio::coordinator {
namespace {

constexpr int64_t kChunkElements = 1 << 18;  // 1 MiB

}  // namespace

// One rank's upload. gRPC's threads must not wait, and nearly all here may: for the disk, for the
// coordinator. So messages are handled by the pool's threads, in order and some at a time, while
// the next ones are read. Deletes itself when the call is over.
class CheckpointServiceImpl::UploadCall : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  UploadCall(CheckpointHost& host, Saves& saves, ReaderCache& readers, KeyedPool& disks,
             KeyedPool& answers)
      : host_(host), saves_(saves), readers_(readers), disks_(disks), answers_(answers) {
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
    if (!std::exchange(handling_, true)) HandleLater();
  }
  void OnCancel() override {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    if (waiting_) saves_.GiveUp(*save_, RankIsGone());
  }
  void OnDone() override { delete this; }

 private:
  static constexpr size_t kReadAhead = 3;  // messages
  // Handled at a time: then others of the same job take their turn.
  static constexpr int kMostInARow = 16;

  static absl::Status RankIsGone() { return absl::AbortedError("a rank has gone away"); }

  // With mutex_ held.
  void ReadAhead() {
    if (reading_ || stream_ended_ || over_ || arrived_.size() == kReadAhead) return;
    reading_ = true;
    StartRead(&incoming_);
  }

  enum class Next { kMessage, kNothingYet, kEnd };

  // The job is known from the first message on; reading that takes no disk.
  void HandleLater() {
    disks_.Run(begin_.run().job_id(), [this] { HandleArrived(); });
  }

  // The last thing it does may delete this.
  void HandleArrived() {
    absl::Status status;
    for (int handled = 0; status.ok() && !committed_ && !complete_; ++handled) {
      if (handled == kMostInARow) return HandleLater();
      if (stage_ == Stage::kBegin) {
        stage_ = Stage::kParts;
        status = CatchAll([&] { return Begin(); });
        continue;
      }
      grpc::ByteBuffer message;
      switch (TakeNext(&message)) {
        case Next::kMessage:
          status = CatchAll([&] { return Handle(message); });
          // From now on in a thread of the job's own.
          if (status.ok() && stage_ == Stage::kBegin) return HandleLater();
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
    if (stage_ == Stage::kFirst) return TakeBegin(received.message);
    if (const auto outcome = saves_.OutcomeOf(*save_)) {
      committed_ = outcome->ok();
      return *outcome;
    }
    saves_.Progress(*save_);
    if (!received.chunk.empty() && file_ == nullptr) {
      return absl::InvalidArgumentError("a part that its rank writes itself has no chunks");
    }
    for (const std::string_view bytes : received.chunk) {
      TERCIO_RETURN_IF_ERROR(file_->Write(bytes));
    }
    if (!received.message.has_end()) return absl::OkStatus();
    TERCIO_ASSIGN_OR_RETURN(checkpoint::Manifest part, FinishPart(received.message.end()));
    file_ = nullptr;
    saves_.AddPart(begin_, std::move(part), *save_);
    complete_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<checkpoint::Manifest> FinishPart(const v1::UploadEnd& end) {
    if (file_ != nullptr) return file_->Finish(end);
    return host_.StoreOf(begin_.run().job_id()).Adopt(begin_, end);
  }

  absl::Status TakeBegin(const v1::UploadMessage& message) {
    if (!message.has_begin()) {
      return absl::InvalidArgumentError("the first message must be begin");
    }
    begin_ = message.begin();
    stage_ = Stage::kBegin;
    return absl::OkStatus();
  }

  absl::Status Begin() {
    if (!host_.IsPresent(begin_.run(), begin_.token())) {
      return absl::AbortedError("this attempt is over");
    }
    TERCIO_ASSIGN_OR_RETURN(Saves::Joined joined, saves_.Join(begin_));
    save_ = std::move(joined.save);
    readers_.Forget(begin_.run().job_id());  // a job that saves has loaded
    committed_ = save_ == nullptr;           // its answer was lost on the way
    complete_ = joined.has_part;             // likewise, or its connection was
    if (committed_ || complete_ || !begin_.file().empty()) return absl::OkStatus();
    TERCIO_ASSIGN_OR_RETURN(file_, host_.StoreOf(begin_.run().job_id()).Begin(begin_));
    return absl::OkStatus();
  }

  void AwaitOutcome() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      waiting_ = true;
      if (cancelled_) saves_.GiveUp(*save_, RankIsGone());
    }
    saves_.Await(*save_, [this](const absl::Status& outcome) {
      answers_.Run("", [this, outcome] { End(outcome); });
    });
  }

  // First the answer: to leave may take a disk that hangs. Finish may delete this.
  void End(const absl::Status& status) {
    auto leave = [&saves = saves_, save = save_,
                  file = std::shared_ptr(std::move(file_))]() mutable {
      file = nullptr;
      if (save != nullptr) saves.Leave(*save);
    };
    disks_.Run(begin_.run().job_id(), std::move(leave));
    Finish(ToGrpc(status));
  }

  CheckpointHost& host_;
  Saves& saves_;
  ReaderCache& readers_;
  KeyedPool& disks_;
  KeyedPool& answers_;

  // Of the thread that handles messages.
  enum class Stage { kFirst, kBegin, kParts } stage_ = Stage::kFirst;
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
  return new UploadCall(host_, saves_, readers_, disks_, answers_);
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
      readers_.Open(request->job_id(),
                    host_.StoreOf(request->job_id()).PathOf(request->job_id(), request->step()));
  if (!reader.ok()) return ToGrpc(reader.status());
  const v1::TensorSlice& slice = request->slice();
  if (const absl::Status known = (*reader)->CheckSlice(slice); !known.ok()) return ToGrpc(known);
  // Never more than a chunk in memory, however large the tensor.
  v1::TensorChunk chunk;
  checkpoint::SliceCursor cursor(**reader);
  for (const v1::TensorSlice& part : checkpoint::DivideSlice(slice, kChunkElements)) {
    const int64_t elements =
        (part.row_end() - part.row_begin()) * (part.column_end() - part.column_begin());
    std::string* data = chunk.mutable_data();
    data->resize(static_cast<size_t>(elements) * sizeof(float));
    const absl::Status read = cursor.Read(part, reinterpret_cast<float*>(data->data()));
    if (!read.ok()) return ToGrpc(read);
    if (!writer->Write(chunk)) break;  // the trainer is gone
  }
  return grpc::Status::OK;
}

}  // namespace tercio::coordinator
