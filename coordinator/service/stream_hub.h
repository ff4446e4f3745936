// Streams to people (watch, history, events, logs): as many as are allowed, each at the pace of its
// client. A stream holds one page of messages at most and asks for the next when the client has
// taken the last, so a client that is slow costs a page, and one that does not read at all is cut
// off with RESOURCE_EXHAUSTED. Streams cost no thread: one thread reads for all of them, beside
// those that serve agents.
//
// Threads: Open and figures from any. `read` functions are called from the hub's thread, one at a
// time. The hub must outlive the server that its streams belong to.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/grpc_status.h"
#include "common/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace tercio::coordinator {

struct StreamLimits {
  // Limit of streams that last until their job ends, and separately of those that end by
  // themselves, so that idle watchers do not block queries.
  int streams = 256;
  // A client that has read nothing for this long is notified and disconnected; after the same time
  // again its call is dropped.
  absl::Duration patience = absl::Seconds(30);
};

// Messages that one read may bring.
inline constexpr size_t kMostPageMessages = 256;

// The next messages of a stream.
template <typename Message>
struct Page {
  std::deque<Message> messages;
  bool more = false;   // available immediately; otherwise it is asked again after a change
  bool ended = false;  // nothing follows these
};

// The hub's interface to a stream.
class HubStream {
 public:
  using Time = std::chrono::steady_clock::time_point;
  virtual ~HubStream() = default;
  // Reads the next page where the last is sent, and ends what is not read. `version` is that of the
  // state before anything is read.
  virtual void Advance(Time now, uint64_t version) = 0;
};

class StreamHub {
 public:
  // `version` changes with each change of the state.
  StreamHub(StreamLimits limits, std::function<uint64_t()> version);
  ~StreamHub();

  template <typename Message>
  using Read = std::function<absl::StatusOr<Page<Message>>()>;
  enum class Kind { kFollows, kEnds };
  // A stream of what `read` says, until it has ended or failed. RESOURCE_EXHAUSTED when there are
  // too many of its kind already.
  template <typename Message>
  grpc::ServerWriteReactor<Message>* Open(grpc::CallbackServerContext* context, Kind kind,
                                          Read<Message> read);

  struct Figures {
    int64_t open = 0;     // streams of both kinds
    int64_t refused = 0;  // ever
    int64_t cut_off = 0;  // ever
  };
  Figures figures() const TERCIO_EXCLUDES(mutex_);

  // Applies to new streams, and to what open ones have not read.
  void SetLimits(StreamLimits limits) TERCIO_EXCLUDES(mutex_);

  // ---- for streams ----
  void Remove(HubStream* stream, Kind kind) TERCIO_EXCLUDES(mutex_);
  void Wake() TERCIO_EXCLUDES(mutex_);
  void CountCutOff() TERCIO_EXCLUDES(mutex_);
  StreamLimits limits() const TERCIO_EXCLUDES(mutex_);
  absl::Status CutOffStatus() const;

 private:
  // A place for one more. A stream that is refused has one as well, until gRPC is done with it.
  absl::Status Reserve(Kind kind) TERCIO_EXCLUDES(mutex_);
  void Add(std::shared_ptr<HubStream> stream) TERCIO_EXCLUDES(mutex_);
  void Run() TERCIO_EXCLUDES(mutex_);

  const std::function<uint64_t()> version_;
  mutable Mutex mutex_;
  StreamLimits limits_ TERCIO_GUARDED_BY(mutex_);
  ConditionVariable woken_;
  std::map<HubStream*, std::shared_ptr<HubStream>> streams_ TERCIO_GUARDED_BY(mutex_);
  Figures figures_ TERCIO_GUARDED_BY(mutex_);
  std::map<Kind, int64_t> open_ TERCIO_GUARDED_BY(mutex_);
  bool wake_ TERCIO_GUARDED_BY(mutex_) = false;
  bool stopping_ TERCIO_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

template <typename Message>
class PagedStream final : public grpc::ServerWriteReactor<Message>, public HubStream {
 public:
  // Ends immediately with `admitted` where that is an error.
  PagedStream(StreamHub& hub, grpc::CallbackServerContext* context, StreamHub::Kind kind,
              StreamHub::Read<Message> read, const absl::Status& admitted)
      : hub_(hub), context_(context), kind_(kind), read_(std::move(read)) {
    if (!admitted.ok()) FinishOnce(ToGrpc(admitted));
  }

  void Advance(Time now, uint64_t version) override {
    {
      MutexLock lock(mutex_);
      if (done_) return;
      if (finished_ || !pages_.empty()) return Hasten(now);
      const bool due = hungry_ || version != seen_ || now - read_at_ > kReadInterval;
      if (ended_ || !due) return;
      seen_ = version;
      read_at_ = now;
    }
    absl::StatusOr<Page<Message>> page = read_();
    MutexLock lock(mutex_);
    if (finished_) return;
    if (!page.ok()) return FinishOnce(ToGrpc(page.status()));
    hungry_ = page->more;
    ended_ = page->ended;
    pages_ = std::move(page->messages);
    Next();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    if (finished_) return;
    pages_.pop_front();
    if (!ok) return FinishOnce(grpc::Status::CANCELLED);
    Next();
    if (pages_.empty() && hungry_) hub_.Wake();
  }

  void OnCancel() override {
    MutexLock lock(mutex_);
    FinishOnce(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    {
      MutexLock lock(mutex_);
      done_ = true;
    }
    hub_.Remove(this, kind_);  // the hub's thread may still hold it
  }

 private:
  // Without a change: what depends on time only, such as the place in a queue.
  static constexpr std::chrono::milliseconds kReadInterval{500};

  // Writes the first of what is to be sent, if anything is.
  void Next() TERCIO_REQUIRES(mutex_) {
    if (pages_.empty()) {
      if (ended_) FinishOnce(grpc::Status::OK);
      return;
    }
    write_began_ = std::chrono::steady_clock::now();
    this->StartWrite(&pages_.front());
  }

  // The status reaches a client that reads again; the call of one that never does is dropped.
  void Hasten(Time now) TERCIO_REQUIRES(mutex_) {
    const auto patience = absl::ToChronoMilliseconds(hub_.limits().patience);
    if (finished_) {
      if (now - finished_at_ > patience) context_->TryCancel();
    } else if (now - write_began_ > patience) {
      hub_.CountCutOff();
      FinishOnce(ToGrpc(hub_.CutOffStatus()));
    }
  }

  void FinishOnce(const grpc::Status& status) TERCIO_REQUIRES(mutex_) {
    if (finished_) return;
    finished_ = true;
    finished_at_ = std::chrono::steady_clock::now();
    this->Finish(status);
  }

  StreamHub& hub_;
  grpc::CallbackServerContext* const context_;
  const StreamHub::Kind kind_;
  const StreamHub::Read<Message> read_;
  Mutex mutex_;
  // The first is being written; kept until the call is done.
  std::deque<Message> pages_ TERCIO_GUARDED_BY(mutex_);
  bool hungry_ TERCIO_GUARDED_BY(mutex_) = true;  // there is more than was read
  bool ended_ TERCIO_GUARDED_BY(mutex_) = false;
  bool finished_ TERCIO_GUARDED_BY(mutex_) = false;  // the status is on its way
  bool done_ TERCIO_GUARDED_BY(mutex_) = false;
  uint64_t seen_ TERCIO_GUARDED_BY(mutex_) = 0;
  Time read_at_ TERCIO_GUARDED_BY(mutex_);
  Time write_began_ TERCIO_GUARDED_BY(mutex_);
  Time finished_at_ TERCIO_GUARDED_BY(mutex_);
};

template <typename Message>
grpc::ServerWriteReactor<Message>* StreamHub::Open(grpc::CallbackServerContext* context, Kind kind,
                                                   Read<Message> read) {
  auto stream =
      std::make_shared<PagedStream<Message>>(*this, context, kind, std::move(read), Reserve(kind));
  PagedStream<Message>* const raw = stream.get();
  Add(std::move(stream));
  return raw;
}

}  // namespace tercio::coordinator
