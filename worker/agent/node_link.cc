#include "worker/agent/node_link.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace tercio {
namespace {

constexpr double kFirstBackoffSeconds = 0.1;
constexpr double kLongestBackoffSeconds = 5;
// A coordinator that has not kept a report after so long has lost more than reports.
constexpr double kResendSeconds = 10;
constexpr double kShortestHeartbeat = 0.05;
constexpr double kFarewellSeconds = 1;
constexpr size_t kLongestQueue = 100'000;

std::chrono::nanoseconds Seconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

}  // namespace

NodeLink::NodeLink(std::shared_ptr<grpc::Channel> channel)
    : stub_(v1::NodeService::NewStub(channel)) {}

void NodeLink::Start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  thread_ = std::thread([this] { Run(); });
}

void NodeLink::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    if (greeting_ != nullptr) greeting_->TryCancel();  // a frozen coordinator may never answer
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void NodeLink::Send(v1::AgentMessage message) {
  std::lock_guard<std::mutex> lock(mutex_);
  // While the coordinator is away for long, the newest log lines give way; nothing else does.
  if (queue_.size() >= kLongestQueue && message.has_logs()) return;
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
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (stopping_) return;
        greeting_ = &context;
      }
      const auto stream = stub_->Attach(&context);
      Serve(*stream, context);
      context.TryCancel();
      const grpc::Status status = stream->Finish();
      std::lock_guard<std::mutex> lock(mutex_);
      greeting_ = nullptr;
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

void NodeLink::QueueForNewConnection() {
  std::vector<v1::AgentMessage> first = callbacks_.told_first();
  std::vector<v1::AgentMessage> last = callbacks_.told_last();
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto sent = sent_.rbegin(); sent != sent_.rend(); ++sent) {
    queue_.push_front(std::move(sent->second));
  }
  sent_.clear();
  queue_.insert(queue_.begin(), std::make_move_iterator(first.begin()),
                std::make_move_iterator(first.end()));
  queue_.insert(queue_.end(), std::make_move_iterator(last.begin()),
                std::make_move_iterator(last.end()));
}

void NodeLink::Serve(Stream& stream, grpc::ClientContext& context) {
  v1::AgentMessage hello;
  *hello.mutable_hello() = callbacks_.hello();
  if (!stream.Write(hello)) return;
  v1::CoordinatorMessage answer;
  if (!stream.Read(&answer) || !answer.has_hello_accepted()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    heartbeat_seconds_ =
        std::max(kShortestHeartbeat, answer.hello_accepted().heartbeat_interval_seconds());
    broken_ = false;
    greeting_ = nullptr;
    if (stopping_) return;
  }
  QueueForNewConnection();
  std::thread writer([&] { WriteLoop(stream, context); });
  v1::CoordinatorMessage message;
  while (stream.Read(&message)) callbacks_.on_message(message);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
    changed_.notify_all();
  }
  writer.join();
}

void NodeLink::WriteLoop(Stream& stream, grpc::ClientContext& context) {
  std::unique_lock<std::mutex> lock(mutex_);
  heartbeat_due_ = std::chrono::steady_clock::now() + Seconds(heartbeat_seconds_);
  while (true) {
    changed_.wait_until(lock, heartbeat_due_,
                        [this] { return stopping_ || broken_ || !queue_.empty(); });
    if (stopping_) {
      lock.unlock();
      stream.WritesDone();
      lock.lock();
      // A cancelled stream loses what is on its way: let the coordinator end it.
      changed_.wait_for(lock, Seconds(kFarewellSeconds), [this] { return broken_; });
      context.TryCancel();
      return;
    }
    if (broken_) return;
    bool queued = false;
    const v1::AgentMessage message = NextMessage(lock, &queued);
    lock.unlock();
    const bool written = stream.Write(message);
    lock.lock();
    if (!written) {
      context.TryCancel();
      return;
    }
    if (queued) Delivered(message);
    if (queue_.empty()) changed_.notify_all();
  }
}

// The oldest waiting message, which stays in the queue until it is written, or a heartbeat, which
// comes in time also when there is always something to say.
v1::AgentMessage NodeLink::NextMessage(std::unique_lock<std::mutex>& lock, bool* queued) {
  const auto now = std::chrono::steady_clock::now();
  *queued = !queue_.empty() && now < heartbeat_due_;
  v1::AgentMessage message;
  if (*queued) {
    message = queue_.front();
  } else {
    heartbeat_due_ = now + Seconds(heartbeat_seconds_);
    lock.unlock();  // the heartbeat asks others, who may be waiting to Send
    *message.mutable_heartbeat() = callbacks_.heartbeat();
    lock.lock();
  }
  message.set_sequence(++sequence_);
  return message;
}

void NodeLink::Delivered(const v1::AgentMessage& message) {
  queue_.pop_front();
  const auto now = std::chrono::steady_clock::now();
  if (message.has_step_report()) sent_.emplace_back(now, message);
  while (!sent_.empty() && now - sent_.front().first > Seconds(kResendSeconds)) sent_.pop_front();
}

}  // namespace tercio
