#include "coordinator/service/checkpoint_service.h"

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/store.h"
#include "checkpoint/upload_message.h"
#include "common/catch_all.h"
#include "common/grpc_status.h"
#include "common/mutex.h"
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
  UploadCall(CheckpointHost& host, Saves& saves, ReaderCache& readers, UploadBudget& budget,
             KeyedPool& disks, KeyedPool& answers)
      : host_(host),
        saves_(saves),
        readers_(readers),
        budget_(budget),
        disks_(disks),
        answers_(answers),
        link_(std::make_shared<Link>()) {
    MutexLock lock(link_->mutex);
    link_->call = this;
    ReadAhead();
  }

  void OnReadDone(bool ok) override {
    // The budget may begin reads of other calls, which takes their locks: none is held here.
    const UploadBudget::Id id = read_id_;
    if (ok && id != 0) budget_.Arrived(id, static_cast<int64_t>(incoming_.Length()));
    if (!TakeIn(ok, id) && id != 0) budget_.Release(id);
  }
  void OnCancel() override {
    UploadBudget::Id unused = 0;
    {
      MutexLock lock(link_->mutex);
      cancelled_ = true;
      if (waiting_) saves_.GiveUp(*save_, RankIsGone());
      // A call that waits for room reads nothing: its end would go unnoticed until there is room.
      if (std::exchange(wants_room_, false)) {
        unused = std::exchange(read_id_, 0);
        Read();  // nothing; the end is seen like any other
      }
    }
    if (unused != 0) budget_.Release(unused);
  }
  void OnDone() override {
    // Whoever holds the link after this finds null, so that no late call reaches a deleted object.
    {
      MutexLock lock(link_->mutex);
      link_->call = nullptr;
    }
    delete this;
  }

 private:
  static constexpr size_t kReadAhead = 3;  // messages
  // Handled at a time: then others of the same job take their turn.
  static constexpr int kMostInARow = 16;

  // The part of the call that may still be used when the call is over.
  struct Link {
    Mutex mutex;
    UploadCall* call TERCIO_GUARDED_BY(mutex) = nullptr;  // null once it is over
  };
  struct Message {
    UploadBudget::Id id = 0;  // in the budget; 0: not charged to it
    grpc::ByteBuffer bytes;
  };

  static absl::Status RankIsGone() { return absl::AbortedError("a rank has disconnected"); }

  // Whether what was read is kept.
  bool TakeIn(bool ok, UploadBudget::Id id) {
    MutexLock lock(link_->mutex);
    reading_ = false;
    // The caller gives the room back for what is not kept.
    if (over_) return false;
    if (ok) {
      arrived_.push_back({id, std::exchange(incoming_, grpc::ByteBuffer())});
    } else {
      stream_ended_ = true;
    }
    ReadAhead();
    if (!std::exchange(handling_, true)) HandleLater();
    return ok;
  }

  // The first message says which job it is.
  void ReadAhead() TERCIO_REQUIRES(link_->mutex) {
    if (reading_ || wants_room_ || stream_ended_ || over_ || arrived_.size() == kReadAhead) return;
    if (std::exchange(has_read_, true) && !knows_job_) return;
    read_id_ = 0;
    if (!cancelled_) {
      // Not checked: clang cannot know that the link's call has this link.
      const auto begin = [link = link_]() TERCIO_NO_THREAD_SAFETY_ANALYSIS {
        MutexLock lock(link->mutex);
        if (link->call == nullptr || !std::exchange(link->call->wants_room_, false)) return;
        link->call->Read();
      };
      wants_room_ = !budget_.Ask(job_, &read_id_, begin);
    }
    if (!wants_room_) Read();
  }

  void Read() TERCIO_REQUIRES(link_->mutex) {
    reading_ = true;
    StartRead(&incoming_);
  }

  enum class Next { kMessage, kNothingYet, kEnd };

  // The job is known from the first message on, which is read without the disk.
  void HandleLater() {
    disks_.Run(begin_.run().job_id(), [this] { HandleArrived(); });
  }

  // The last thing it does may delete this.
  void HandleArrived() {
    absl::Status status;
    for (int handled = 0; status.ok() && !committed_ && !complete_; ++handled) {
      // The task is queued behind those of the job's other uploads.
      if (handled == kMostInARow) return HandleLater();
      if (stage_ == Stage::kBegin) {
        stage_ = Stage::kParts;
        status = CatchAll([&] { return Begin(); });
        continue;
      }
      Message message;
      switch (TakeNext(&message)) {
        case Next::kMessage:
          status = CatchAll([&] { return Handle(message.bytes); });
          // The bytes go before the room is given back, or
          // the budget would count less than is held.
          message.bytes.Clear();
          if (message.id != 0) budget_.Release(message.id);
          // From now on it runs in a thread of the job's own.
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
  Next TakeNext(Message* message) {
    MutexLock lock(link_->mutex);
    if (!arrived_.empty()) {
      *message = std::move(arrived_.front());
      arrived_.pop_front();
      ReadAhead();
      return Next::kMessage;
    }
    handling_ = stream_ended_;
    return stream_ended_ ? Next::kEnd : Next::kNothingYet;
  }

  // Called in the thread that handles messages, so that none is handled at the same time.
  void WantNoMore() {
    std::deque<Message> unwanted;
    {
      MutexLock lock(link_->mutex);
      over_ = true;
      unwanted.swap(arrived_);
      if (std::exchange(wants_room_, false)) unwanted.push_back({read_id_, {}});
    }
    for (Message& message : unwanted) {
      message.bytes.Clear();
      if (message.id != 0) budget_.Release(message.id);
    }
  }

  absl::Status Handle(grpc::ByteBuffer message) {
    TERCIO_ASSIGN_OR_RETURN(const checkpoint::ReceivedUpload received,
                            checkpoint::ParseUpload(message));
    if (stage_ == Stage::kFirst) return TakeBegin(received.message);
    // Another rank may have ended the save meanwhile; the rest of this part would be in vain.
    if (const auto outcome = saves_.OutcomeOf(*save_)) {
      committed_ = outcome->ok();
      return *outcome;
    }
    if (received.message.has_failure()) {
      saves_.GiveUpForRank(*save_, begin_.rank(), received.message.failure());
      const auto outcome = saves_.OutcomeOf(*save_);
      return outcome ? *outcome : absl::FailedPreconditionError("the save already has all parts");
    }
    saves_.Progress(*save_);
    if (!received.chunk.empty() && file_ == nullptr) {
      return absl::InvalidArgumentError("a part that the rank writes itself must not have chunks");
    }
    for (const std::string_view bytes : received.chunk) {
      TERCIO_RETURN_IF_ERROR(file_->Write(bytes));
    }
    if (!received.message.has_end()) return absl::OkStatus();
    TERCIO_ASSIGN_OR_RETURN(checkpoint::Manifest part, FinishPart(received.message.end()));
    file_ = nullptr;
    complete_ = true;
    auto commit = saves_.AddPart(begin_, std::move(part), save_);
    // The commit reads back the files of all ranks, so it gets a task of its own.
    if (commit) disks_.Run(begin_.run().job_id(), std::move(commit));
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
    MutexLock lock(link_->mutex);
    job_ = begin_.run().job_id();
    knows_job_ = true;
    ReadAhead();
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
      MutexLock lock(link_->mutex);
      waiting_ = true;
      if (cancelled_) saves_.GiveUp(*save_, RankIsGone());
    }
    // The callback may come from a thread that holds the lock of the saves, and End
    // may delete this call: hence a thread that does nothing but answer.
    saves_.Await(*save_, [this](const absl::Status& outcome) {
      answers_.Run("", [this, outcome] { End(outcome); });
    });
  }

  // The answer goes first: leaving may wait for a disk that hangs. Finish may delete this.
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
  UploadBudget& budget_;
  KeyedPool& disks_;
  KeyedPool& answers_;

  // Used by the thread that handles messages.
  enum class Stage { kFirst, kBegin, kParts } stage_ = Stage::kFirst;
  v1::UploadBegin begin_;
  Saves::SavePtr save_;  // set by the first message
  std::unique_ptr<checkpoint::RankUpload> file_;
  bool committed_ = false;  // with this rank's part as it was sent before
  bool complete_ = false;

  // incoming_ and read_id_ are gRPC's while it reads.
  const std::shared_ptr<Link> link_;
  grpc::ByteBuffer incoming_;
  UploadBudget::Id read_id_ = 0;  // the message being read, or waiting for room
  std::deque<Message> arrived_ TERCIO_GUARDED_BY(link_->mutex);
  std::string job_ TERCIO_GUARDED_BY(link_->mutex);
  bool knows_job_ TERCIO_GUARDED_BY(link_->mutex) = false;
  bool has_read_ TERCIO_GUARDED_BY(link_->mutex) = false;
  bool wants_room_ TERCIO_GUARDED_BY(link_->mutex) = false;  // for the next message
  bool reading_ TERCIO_GUARDED_BY(link_->mutex) = false;
  bool stream_ended_ TERCIO_GUARDED_BY(link_->mutex) = false;
  bool handling_ TERCIO_GUARDED_BY(link_->mutex) = false;
  bool over_ TERCIO_GUARDED_BY(link_->mutex) = false;  // no more messages are wanted
  bool waiting_ TERCIO_GUARDED_BY(link_->mutex) = false;
  bool cancelled_ TERCIO_GUARDED_BY(link_->mutex) = false;
};

// Data on a stream that is not being read is bounded by HTTP/2's initial 64 KiB; gRPC would raise
// that to megabytes, too much for the streams of hundreds of ranks together.
void CheckpointServiceImpl::Configure(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* CheckpointServiceImpl::Upload(
    grpc::CallbackServerContext*, grpc::ByteBuffer* response) {
  const grpc::Slice empty(v1::UploadResponse().SerializeAsString());
  // The answer is fixed from the start: it is sent only with an OK, and says nothing more.
  *response = grpc::ByteBuffer(&empty, 1);
  return new UploadCall(host_, saves_, readers_, budget_, disks_, answers_);
}

// A reader, chunk by chunk: the next is read when the trainer has taken the last, never more than
// one is in memory, however large the tensor. Deletes itself when the call is over.
class CheckpointServiceImpl::ReadCall : public grpc::ServerWriteReactor<v1::TensorChunk> {
 public:
  ReadCall(CheckpointHost& host, ReaderCache& readers, KeyedPool& disks,
           v1::ReadTensorRequest request)
      : host_(host), readers_(readers), disks_(disks), request_(std::move(request)) {
    const absl::Status admitted = Admit();
    if (admitted.ok()) {
      ReadLater();
    } else {
      Finish(ToGrpc(admitted));
    }
  }

  void OnWriteDone(bool ok) override {
    if (ok) return ReadLater();
    End(absl::CancelledError("the trainer is gone"));
  }
  void OnDone() override { delete this; }

 private:
  // Reads the checkpoint.
  struct Source {
    explicit Source(std::shared_ptr<checkpoint::Reader> opened)
        : reader(std::move(opened)), cursor(*reader) {}
    const std::shared_ptr<checkpoint::Reader> reader;
    checkpoint::SliceCursor cursor;
  };

  absl::Status Admit() const {
    if (!host_.IsPresent(request_.run(), request_.token())) {
      return absl::AbortedError("this attempt is over");
    }
    // A node may read the weights of the jobs that it works for, and of no others.
    if (request_.job_id() == request_.run().job_id()) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat("an attempt of ", request_.run().job_id(),
                                                    " cannot read another job's weights"));
  }

  void ReadLater() {
    disks_.Run(request_.job_id(), [this] { ReadNext(); });
  }

  // The last thing it does may delete this.
  void ReadNext() {
    const absl::Status status =
        // Exceptions of the file system must not leave a thread of the pool.
        CatchAll([&] { return source_ == nullptr ? Open() : absl::OkStatus(); });
    if (!status.ok() || next_ == parts_.size()) return End(status);
    const absl::Status read = CatchAll([&] { return ReadPart(parts_[next_]); });
    if (!read.ok()) return End(read);
    ++next_;
    StartWrite(&chunk_);
  }

  absl::Status Open() {
    const std::string& job = request_.job_id();
    TERCIO_ASSIGN_OR_RETURN(auto reader,
                            readers_.Open(job, host_.StoreOf(job).PathOf(job, request_.step())));
    // The slice comes from a trainer: its bounds are checked once, before any part is read.
    TERCIO_RETURN_IF_ERROR(reader->CheckSlice(request_.slice()));
    source_ = std::make_shared<Source>(std::move(reader));
    parts_ = checkpoint::DivideSlice(request_.slice(), kChunkElements);
    return absl::OkStatus();
  }

  absl::Status ReadPart(const v1::TensorSlice& part) {
    const int64_t elements =
        (part.row_end() - part.row_begin()) * (part.column_end() - part.column_begin());
    std::string* data = chunk_.mutable_data();
    data->resize(static_cast<size_t>(elements) * sizeof(float));
    return source_->cursor.Read(part, reinterpret_cast<float*>(data->data()));
  }

  // Finish may delete this; closing files may take a disk that hangs.
  void End(const absl::Status& status) {
    disks_.Run(request_.job_id(), [source = std::move(source_)]() mutable { source = nullptr; });
    Finish(ToGrpc(status));
  }

  CheckpointHost& host_;
  ReaderCache& readers_;
  KeyedPool& disks_;
  const v1::ReadTensorRequest request_;
  std::shared_ptr<Source> source_;  // null: not open yet
  std::vector<v1::TensorSlice> parts_;
  size_t next_ = 0;
  v1::TensorChunk chunk_;
};

grpc::ServerWriteReactor<v1::TensorChunk>* CheckpointServiceImpl::ReadTensor(
    grpc::CallbackServerContext*, const v1::ReadTensorRequest* request) {
  return new ReadCall(host_, readers_, disks_, *request);
}

}  // namespace tercio::coordinator
