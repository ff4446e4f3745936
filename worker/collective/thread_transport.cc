#include "worker/collective/thread_transport.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/mutex.h"

namespace tercio::collective {
namespace {

// Sender, receiver, tag.
using Route = std::tuple<int, int, uint64_t>;

// One side's part of a message. The mailbox and the transfer share it, as either may live longer.
struct Post {
  std::byte* destination = nullptr;   // destination of a receive
  const std::byte* source = nullptr;  // source of a send
  int64_t bytes = 0;
  bool done = false;
};

// Posts that have not met their counterpart. On each route one of the two queues is empty.
struct Mailbox {
  std::deque<std::shared_ptr<Post>> sends;
  std::deque<std::shared_ptr<Post>> receives;
};

struct Hub {
  Mutex mutex;
  ConditionVariable changed;
  std::map<Route, Mailbox> mailboxes TERCIO_GUARDED_BY(mutex);
  bool aborted TERCIO_GUARDED_BY(mutex) = false;
};

class ThreadTransfer : public Transfer {
 public:
  ThreadTransfer(std::shared_ptr<Hub> hub, std::shared_ptr<Post> post, std::string story)
      : hub_(std::move(hub)), post_(std::move(post)), story_(std::move(story)) {}

  absl::Status Wait(absl::Duration timeout) override {
    MutexLock lock(hub_->mutex);
    const bool in_time = hub_->changed.WaitFor(
        hub_->mutex, absl::ToChronoNanoseconds(timeout),
        [this]() TERCIO_REQUIRES(hub_->mutex) { return post_->done || hub_->aborted; });
    // A message that has arrived stays good if the group is aborted later.
    if (post_->done) return absl::OkStatus();
    if (!in_time) return absl::DeadlineExceededError(story_ + ": timed out");
    return absl::AbortedError(story_ + ": aborted");
  }

 private:
  std::shared_ptr<Hub> hub_;
  std::shared_ptr<Post> post_;
  std::string story_;
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Hub> hub, int rank, int size)
      : hub_(std::move(hub)), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Transfer> Send(const void* data, int64_t bytes, int peer, uint64_t tag) override {
    CheckPeer(peer);
    auto post = std::make_shared<Post>();
    // The bytes are read when both sides are there: a
    // sender that reuses its buffer too early is found.
    post->source = static_cast<const std::byte*>(data);
    post->bytes = bytes;
    MutexLock lock(hub_->mutex);
    Mailbox& mailbox = hub_->mailboxes[{rank_, peer, tag}];
    mailbox.sends.push_back(post);
    Match(mailbox);
    return std::make_unique<ThreadTransfer>(
        hub_, post, absl::StrCat("send of ", bytes, " bytes to rank ", peer));
  }

  std::unique_ptr<Transfer> Receive(void* data, int64_t bytes, int peer, uint64_t tag) override {
    CheckPeer(peer);
    auto post = std::make_shared<Post>();
    post->destination = static_cast<std::byte*>(data);
    post->bytes = bytes;
    MutexLock lock(hub_->mutex);
    // Either side may come first, so both look for the other's post.
    Mailbox& mailbox = hub_->mailboxes[{peer, rank_, tag}];
    mailbox.receives.push_back(post);
    Match(mailbox);
    return std::make_unique<ThreadTransfer>(
        hub_, post, absl::StrCat("receive of ", bytes, " bytes from rank ", peer));
  }

  void Abort() override {
    MutexLock lock(hub_->mutex);
    hub_->aborted = true;
    hub_->changed.NotifyAll();
  }

 private:
  void CheckPeer(int peer) const { TERCIO_CHECK(peer >= 0 && peer < size_ && peer != rank_); }

  // Buffers of posted messages are valid until Wait returns, and no unmatched post has been
  // reported as done: so both sides' buffers are alive here, unless aborted.
  void Match(Mailbox& mailbox) TERCIO_REQUIRES(hub_->mutex) {
    // The other side may have left Wait with an error, and freed its buffer.
    if (hub_->aborted) return;
    while (!mailbox.sends.empty() && !mailbox.receives.empty()) {
      Post& send = *mailbox.sends.front();
      Post& receive = *mailbox.receives.front();
      // Calls of different sizes have different tags (DataTag), whatever ranks do.
      TERCIO_CHECK_EQ(send.bytes, receive.bytes);
      if (send.bytes > 0) {
        std::memcpy(receive.destination, send.source, static_cast<size_t>(send.bytes));
      }
      send.done = receive.done = true;
      mailbox.sends.pop_front();
      mailbox.receives.pop_front();
    }
    hub_->changed.NotifyAll();
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  int size_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> CreateThreadTransports(int size) {
  // Ranks end at different times, so the last of them destroys the hub.
  auto hub = std::make_shared<Hub>();
  std::vector<std::unique_ptr<Transport>> result;
  for (int rank = 0; rank < size; ++rank) {
    result.push_back(std::make_unique<ThreadTransport>(hub, rank, size));
  }
  return result;
}

}  // namespace tercio::collective
