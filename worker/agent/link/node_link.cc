#include "worker/agent/link/node_link.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace tercio::agent {
namespace {

constexpr double kFirstBackoffSeconds = 0.1;
constexpr double kLongestBackoffSeconds = 5;
// A coordinator that names no interval must not make the writer spin.
constexpr double kShortestHeartbeat = 0.05;
// An agent that ends must not wait long for a coordinator that is frozen.
constexpr double kFarewellSeconds = 1;
constexpr int64_t kBatchBytes = 256 << 10;

std::chrono::nanoseconds Seconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

}  // namespace

NodeLink::NodeLink(std::shared_ptr<grpc::Channel> channel, AgentStore& store)
    : store_(store), stub_(v1::NodeService::NewStub(channel)) {}

void NodeLink::Start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  store_.SetListener([this] {
    MutexLock lock(mutex_);
    news_ = true;
    changed_.NotifyAll();
  });
  thread_ = std::thread([this] { Run(); });
}

void NodeLink::Stop() {
  // The listener refers to this object; a call that is under way is waited for here.
  store_.SetListener({});
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (greeting_ != nullptr) greeting_->TryCancel();  // a frozen coordinator may never answer
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void NodeLink::Send(v1::AgentMessage message) {
  MutexLock lock(mutex_);
  // Before the hello is accepted a message would come
  // too early; said_first then tells the present state.
  if (!connected_) return;
  said_.push_back(std::move(message));
  changed_.NotifyAll();
}

void NodeLink::StayAway(double seconds) {
  MutexLock lock(mutex_);
  away_until_ = std::chrono::steady_clock::now() +
                std::chrono::duration_cast<std::chrono::steady_clock::duration>(Seconds(seconds));
  // The time away is set first, so that the thread finds it when it looks how long to wait.
  if (present_ != nullptr) present_->TryCancel();
}

bool NodeLink::connected() {
  MutexLock lock(mutex_);
  return connected_;
}

void NodeLink::Drain(double seconds) {
  MutexLock lock(mutex_);
  changed_.WaitFor(mutex_, Seconds(seconds), [this]() TERCIO_REQUIRES(mutex_) {
    return connected_ && !news_ && said_.empty() && store_.Newest() <= sent_;
  });
}

double NodeLink::SecondsAway() {
  MutexLock lock(mutex_);
  return std::chrono::duration<double>(away_until_ - std::chrono::steady_clock::now()).count();
}

bool NodeLink::Stops() {
  MutexLock lock(mutex_);
  return stopping_;
}

bool NodeLink::WaitOrStop(double seconds) {
  MutexLock lock(mutex_);
  return changed_.WaitFor(mutex_, Seconds(seconds),
                          [this]() TERCIO_REQUIRES(mutex_) { return stopping_; });
}

// A lease is 2.75 heartbeats: the agent must not sleep through most of one.
double NodeLink::LongestBackoff() {
  MutexLock lock(mutex_);
  return std::clamp(heartbeat_seconds_ / 2, kFirstBackoffSeconds, kLongestBackoffSeconds);
}

void NodeLink::Run() {
  std::mt19937 random{std::random_device{}()};
  double backoff = kFirstBackoffSeconds;
  while (true) {
    const auto start = std::chrono::steady_clock::now();
    {
      grpc::ClientContext context;
      {
        MutexLock lock(mutex_);
        if (stopping_) return;
        greeting_ = &context;
        present_ = &context;
      }
      const auto stream = stub_->Attach(&context);
      Serve(*stream, context);
      if (Stops()) context.TryCancel();  // else the other side has ended it, and gives the reason
      const grpc::Status status = stream->Finish();
      // Finding out why may take a connection of its own, which an agent that ends does not need.
      const std::string why = Stops() ? "" : callbacks_.explain(status);
      MutexLock lock(mutex_);
      greeting_ = nullptr;
      present_ = nullptr;
      if (stopping_) return;
      LogWarning(absl::StrCat("connection to the coordinator lost: ", why));
    }
    // The coordinator was there, so it may be back soon.
    if (std::chrono::steady_clock::now() - start > Seconds(kLongestBackoffSeconds)) {
      backoff = kFirstBackoffSeconds;
    }
    // All nodes lose a coordinator at the same moment, but must not return to it in the same one.
    const double jitter = std::uniform_real_distribution<double>(0.5, 1.0)(random);
    if (WaitOrStop(std::max(backoff * jitter, SecondsAway()))) return;
    backoff = std::min(LongestBackoff(), backoff * 2);
  }
}

void NodeLink::Serve(Stream& stream, grpc::ClientContext& context) {
  v1::AgentMessage hello;
  *hello.mutable_hello() = callbacks_.hello();
  if (!stream.Write(hello)) return;
  v1::CoordinatorMessage answer;
  if (!stream.Read(&answer)) return;
  // Finish would wait for the end of a stream that nobody has ended.
  if (!answer.has_hello_accepted()) return context.TryCancel();
  {
    MutexLock lock(mutex_);
    heartbeat_seconds_ =
        std::max(kShortestHeartbeat, answer.hello_accepted().heartbeat_interval_seconds());
    takes_news_ = answer.hello_accepted().takes_news();
    broken_ = false;
    greeting_ = nullptr;
    if (stopping_) return;
    // These belong to the previous connection, and are out of date.
    said_.clear();
    // All that was not acknowledged is sent again: the coordinator drops numbers that it has seen.
    sent_ = 0;
    news_ = true;
    connected_ = true;
  }
  // A thread of its own writes, since a read blocks until the coordinator says something.
  std::thread writer([&] { WriteLoop(stream, context); });
  v1::CoordinatorMessage message;
  while (stream.Read(&message)) Receive(message);
  {
    MutexLock lock(mutex_);
    // The writer may be waiting for something to write, and has to end as well.
    connected_ = false;
    broken_ = true;
    changed_.NotifyAll();
  }
  writer.join();
}

void NodeLink::Receive(const v1::CoordinatorMessage& message) {
  if (message.has_acknowledge()) {
    store_.Acknowledge(message.acknowledge().sequence());
  } else {
    callbacks_.on_message(message);
  }
}

void NodeLink::WriteLoop(Stream& stream, grpc::ClientContext& context) {
  const std::vector<v1::AgentMessage> first = callbacks_.said_first();
  bool good = std::all_of(first.begin(), first.end(),
                          [&](const v1::AgentMessage& message) { return stream.Write(message); }) &&
              WriteNews(stream);
  auto heartbeat_due = std::chrono::steady_clock::now() + Seconds(heartbeat_seconds_);
  while (good) {
    {
      MutexLock lock(mutex_);
      changed_.WaitUntil(mutex_, heartbeat_due, [this]() TERCIO_REQUIRES(mutex_) {
        return stopping_ || broken_ || news_ || !said_.empty();
      });
      if (broken_) return;
      if (stopping_) break;
      news_ = false;
    }
    good = WriteSaid(stream) && WriteNews(stream);
    // A heartbeat is written even while news keep coming: without it the lease would end.
    if (good && std::chrono::steady_clock::now() >= heartbeat_due) {
      v1::AgentMessage message;
      *message.mutable_heartbeat() = callbacks_.heartbeat();
      good = stream.Write(message);
      heartbeat_due = std::chrono::steady_clock::now() + Seconds(heartbeat_seconds_);
    }
    changed_.NotifyAll();  // wakes Drain
  }
  if (good) SayGoodbye(stream);
  context.TryCancel();
}

bool NodeLink::WriteSaid(Stream& stream) {
  std::deque<v1::AgentMessage> said;
  {
    MutexLock lock(mutex_);
    said.swap(said_);
  }
  return std::all_of(said.begin(), said.end(),
                     [&](const v1::AgentMessage& message) { return stream.Write(message); });
}

// Writes the messages that the spool holds beyond those already sent.
bool NodeLink::WriteNews(Stream& stream) {
  while (true) {
    uint64_t sent = 0;
    {
      MutexLock lock(mutex_);
      if (broken_) return false;
      if (stopping_) return true;
      sent = sent_;
    }
    // A spool of many megabytes is not copied as a
    // whole; the lock is free while a piece is written.
    std::vector<v1::AgentMessage> batch = store_.After(sent, kBatchBytes);
    if (batch.empty()) return true;
    sent = batch.back().sequence();
    if (!WriteBatch(stream, std::move(batch))) return false;
    MutexLock lock(mutex_);
    sent_ = sent;
  }
}

// Messages that arrive together are sent together: each message costs more than its content.
bool NodeLink::WriteBatch(Stream& stream, std::vector<v1::AgentMessage> batch) {
  // Older coordinators know no news.
  if (!takes_news_ || batch.size() == 1) {
    return std::all_of(batch.begin(), batch.end(),
                       [&](const v1::AgentMessage& message) { return stream.Write(message); });
  }
  v1::AgentMessage news;
  for (v1::AgentMessage& message : batch) {
    *news.mutable_news()->add_messages() = std::move(message);
  }
  return stream.Write(news);
}

// A cancelled stream loses messages that are on their way, so the coordinator is left to end it.
void NodeLink::SayGoodbye(Stream& stream) {
  stream.WritesDone();
  MutexLock lock(mutex_);
  changed_.WaitFor(mutex_, Seconds(kFarewellSeconds),
                   [this]() TERCIO_REQUIRES(mutex_) { return broken_; });
}

}  // namespace tercio::agent
