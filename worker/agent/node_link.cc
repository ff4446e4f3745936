#include "worker/agent/node_link.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace tercio {
namespace {

constexpr double kFirstBackoffSeconds = 0.1;
constexpr double kLongestBackoffSeconds = 5;
constexpr size_t kLongestQueue = 100'000;

std::chrono::duration<double> Seconds(double seconds) {
  return std::chrono::duration<double>(seconds);
}

}  // namespace

NodeLink::NodeLink(std::shared_ptr<grpc::Channel> channel, MakeHello hello, MakeHeartbeat heartbeat,
                   OnMessage on_message)
    : stub_(v1::NodeService::NewStub(channel)),
      hello_(std::move(hello)),
      heartbeat_(std::move(heartbeat)),
      on_message_(std::move(on_message)),
      thread_([this] { Run(); }) {}

void NodeLink::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void NodeLink::Send(v1::AgentMessage message) {
  std::lock_guard<std::mutex> lock(mutex_);
  message.set_sequence(++sequence_);
  // While the coordinator is away for long, the oldest log lines and steps give way.
  if (queue_.size() >= kLongestQueue) queue_.pop_front();
  queue_.push_back(std::move(message));
  changed_.notify_all();
}

void NodeLink::Drain(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, Seconds(seconds), [this] { return queue_.empty(); });
}

bool NodeLink::WaitOrStop(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, Seconds(seconds), [this] { return stopping_; });
}

void NodeLink::Run() {
  std::mt19937 random{std::random_device{}()};
  double backoff = kFirstBackoffSeconds;
  while (true) {
    const auto start = std::chrono::steady_clock::now();
    {
      grpc::ClientContext context;
      const auto stream = stub_->Attach(&context);
      Serve(*stream, context);
      const grpc::Status status = stream->Finish();
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      LogWarning(absl::StrCat("connection to the coordinator lost: ", status.error_message()));
    }
    if (std::chrono::steady_clock::now() - start > Seconds(kLongestBackoffSeconds)) {
      backoff = kFirstBackoffSeconds;
    }
    const double jitter = std::uniform_real_distribution<double>(0.5, 1.0)(random);
    if (WaitOrStop(backoff * jitter)) return;
    backoff = std::min(kLongestBackoffSeconds, backoff * 2);
  }
}

void NodeLink::Serve(Stream& stream, grpc::ClientContext& context) {
  v1::AgentMessage hello;
  *hello.mutable_hello() = hello_();
  if (!stream.Write(hello)) return;
  v1::CoordinatorMessage answer;
  if (!stream.Read(&answer) || !answer.has_hello_accepted()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    heartbeat_seconds_ = answer.hello_accepted().heartbeat_interval_seconds();
    broken_ = false;
  }
  std::thread writer([&] { WriteLoop(stream, context); });
  v1::CoordinatorMessage message;
  while (stream.Read(&message)) on_message_(message);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
    changed_.notify_all();
  }
  writer.join();
}

void NodeLink::WriteLoop(Stream& stream, grpc::ClientContext& context) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait_for(lock, Seconds(heartbeat_seconds_),
                      [this] { return stopping_ || broken_ || !queue_.empty(); });
    if (stopping_) {
      lock.unlock();
      stream.WritesDone();
      context.TryCancel();
      return;
    }
    if (broken_) return;
    v1::AgentMessage message;
    const bool queued = !queue_.empty();
    if (queued) {
      message = queue_.front();
    } else {
      lock.unlock();  // the heartbeat asks others, who may be waiting to Send
      *message.mutable_heartbeat() = heartbeat_();
      lock.lock();
    }
    lock.unlock();
    const bool written = stream.Write(message);
    lock.lock();
    if (!written) {
      context.TryCancel();
      return;
    }
    if (queued) queue_.pop_front();
    if (queue_.empty()) changed_.notify_all();
  }
}

}  // namespace tercio
