#include "worker/collective/gloo_transport.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/mutex.h"
#include "common/steady_time.h"

namespace tercio::collective {
namespace {

// Gloo's timeouts have no finer unit.
std::chrono::milliseconds Milliseconds(absl::Duration duration) {
  return std::chrono::milliseconds(absl::ToInt64Milliseconds(duration));
}

// Adapts our store to Gloo's interface. Gloo reports errors by exceptions.
class StoreAdapter : public gloo::rendezvous::Store {
 public:
  StoreAdapter(RendezvousStore& store, std::string prefix, absl::Duration timeout)
      : store_(store), prefix_(std::move(prefix)), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const absl::Status status = store_.Put(prefix_ + key, std::string(data.begin(), data.end()));
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = Fetch({prefix_ + key}).front();
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    std::vector<std::string> full;
    for (const std::string& key : keys) full.push_back(prefix_ + key);
    Fetch(full);
  }
  // Our store has a timeout of its own, whose error names the missing ranks.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  std::vector<std::string> Fetch(const std::vector<std::string>& keys) {
    absl::StatusOr<std::vector<std::string>> values = store_.Get(keys, timeout_);
    if (!values.ok()) throw std::runtime_error(std::string(values.status().message()));
    return *std::move(values);
  }

  RendezvousStore& store_;
  std::string prefix_;
  absl::Duration timeout_;
};

class GlooTransfer;

// State that transfers and their transport share; outlives both.
struct Shared {
  std::shared_ptr<gloo::rendezvous::Context> context;
  Mutex mutex;
  ConditionVariable left;  // a transfer is no longer waiting
  bool aborted TERCIO_GUARDED_BY(mutex) = false;
  std::set<gloo::transport::UnboundBuffer*> waiting TERCIO_GUARDED_BY(mutex);
};

class GlooTransfer : public Transfer {
 public:
  GlooTransfer(std::shared_ptr<Shared> shared, void* data, int64_t bytes, bool is_send,
               std::string story)
      : shared_(std::move(shared)), is_send_(is_send), story_(std::move(story)) {
    if (bytes > 0) {
      buffer_ = shared_->context->createUnboundBuffer(data, static_cast<size_t>(bytes));
    }
  }

  // REQUIRES: called once, before Wait.
  void Start(int peer, uint64_t tag) {
    if (buffer_ == nullptr) return;  // an empty message, as both sides know
    try {
      if (is_send_) {
        buffer_->send(peer, tag);
      } else {
        buffer_->recv(peer, tag);
      }
    } catch (const std::exception& error) {
      // Starting a message reports no errors: Wait does.
      start_ = absl::UnavailableError(absl::StrCat(story_, ": ", error.what()));
    }
  }

  absl::Status Wait(absl::Duration timeout) override {
    if (!start_.ok() || buffer_ == nullptr) return start_;
    {
      MutexLock lock(shared_->mutex);
      if (shared_->aborted) return absl::AbortedError(story_ + ": aborted");
      // Abort takes the same lock: it sees this wait, or this wait sees it.
      shared_->waiting.insert(buffer_.get());
    }
    const absl::Status status = WaitRegistered(timeout);
    MutexLock lock(shared_->mutex);
    // The buffer ends with this transfer, and Abort must not touch it after that.
    shared_->waiting.erase(buffer_.get());
    shared_->left.NotifyAll();
    return status;
  }

 private:
  absl::Status WaitRegistered(absl::Duration timeout) {
    const absl::Time start = SteadyNow();
    try {
      int rank = 0;
      // A wait that was aborted returns false instead of throwing.
      const bool done = is_send_ ? buffer_->waitSend(&rank, Milliseconds(timeout))
                                 : buffer_->waitRecv(&rank, Milliseconds(timeout));
      return done ? absl::OkStatus() : absl::AbortedError(story_ + ": aborted");
    } catch (const std::exception& error) {
      // Gloo throws alike for both, so the clock has to tell a timeout from a lost connection.
      if (SteadyNow() - start >= timeout) {
        return absl::DeadlineExceededError(story_ + ": timed out");
      }
      return absl::UnavailableError(
          absl::StrCat(story_, ": the connection broke (", error.what(), ")"));
    }
  }

  std::shared_ptr<Shared> shared_;
  bool is_send_;
  std::string story_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  absl::Status start_;
};

class GlooTransport : public Transport {
 public:
  explicit GlooTransport(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  int rank() const override { return shared_->context->rank; }
  int size() const override { return shared_->context->size; }

  std::unique_ptr<Transfer> Send(const void* data, int64_t bytes, int peer, uint64_t tag) override {
    // Unbound buffers serve both directions; what is sent is only read.
    return Begin(const_cast<void*>(data), bytes, peer, tag, /*is_send=*/true);
  }
  std::unique_ptr<Transfer> Receive(void* data, int64_t bytes, int peer, uint64_t tag) override {
    return Begin(data, bytes, peer, tag, /*is_send=*/false);
  }

  void Abort() override {
    MutexLock lock(shared_->mutex);
    shared_->aborted = true;
    // Gloo forgets an abort that comes just before its wait begins: repeat it until all have left.
    while (!shared_->waiting.empty()) {
      for (gloo::transport::UnboundBuffer* buffer : shared_->waiting) {
        // The direction is not known here, and an abort of the other one has no effect.
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
      }
      shared_->left.WaitFor(shared_->mutex, std::chrono::milliseconds(5));
    }
  }

 private:
  std::unique_ptr<Transfer> Begin(void* data, int64_t bytes, int peer, uint64_t tag, bool is_send) {
    TERCIO_CHECK(peer >= 0 && peer < size() && peer != rank());
    auto transfer = std::make_unique<GlooTransfer>(
        shared_, data, bytes, is_send,
        absl::StrCat(is_send ? "send of " : "receive of ", bytes, " bytes ",
                     is_send ? "to" : "from", " rank ", peer));
    transfer->Start(peer, tag);
    return transfer;
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateGlooTransport(int rank, int size,
                                                               const std::string& group,
                                                               RendezvousStore& store,
                                                               const std::string& data_address,
                                                               absl::Duration timeout) {
  try {
    gloo::transport::tcp::attr attributes;
    // By itself Gloo would take the address of the host's name, which others may not reach.
    attributes.hostname = data_address;
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    auto shared = std::make_shared<Shared>();
    shared->context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    // By itself Gloo would give up after 30 seconds.
    shared->context->setTimeout(Milliseconds(timeout));
    // All groups of an attempt share a store.
    StoreAdapter adapter(store, group + "/", timeout);
    // Every rank sends a slice of each sum to every other one.
    shared->context->connectFullMesh(adapter, device);
    return std::unique_ptr<Transport>(std::make_unique<GlooTransport>(std::move(shared)));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("group ", group, ", rank ", rank, " of ", size,
                                               ": cannot connect: ", error.what()));
  }
}

}  // namespace tercio::collective
