// The agent's stream to the coordinator: kept up, reconnected with jittered back-off, messages
// queued while it is down. Step reports of the last seconds are sent again after a reconnection,
// since the coordinator may have died before it kept them; it knows them by their step.
//
// Threads: Send from any thread; callbacks come from the link's own threads and may call Send.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpcpp/channel.h"
#include "proto/tercio/v1/node_service.grpc.pb.h"

namespace tercio {

class NodeLink {
 public:
  struct Callbacks {
    // Makes the hello of a new connection: what runs here may have changed.
    std::function<v1::AgentHello()> hello;
    std::function<v1::AgentHeartbeat()> heartbeat;
    // Said on a new connection before what waits in the queue, and after it.
    std::function<std::vector<v1::AgentMessage>()> told_first;
    std::function<std::vector<v1::AgentMessage>()> told_last;
    std::function<void(const v1::CoordinatorMessage&)> on_message;
  };

  explicit NodeLink(std::shared_ptr<grpc::Channel> channel);
  ~NodeLink() { Stop(); }

  // Called once. Messages may be queued before.
  void Start(Callbacks callbacks);

  // Ends the connection; no callback comes after it. Later messages are kept and never sent.
  void Stop();

  // Messages are delivered in order; those that a broken connection had not taken are sent again.
  void Send(v1::AgentMessage message);

  v1::NodeService::Stub& stub() { return *stub_; }

  // Waits for the queue to drain, at most `seconds`.
  void Drain(double seconds);

 private:
  using Stream = grpc::ClientReaderWriter<v1::AgentMessage, v1::CoordinatorMessage>;

  void Run();
  void QueueForNewConnection();
  v1::AgentMessage NextMessage(std::unique_lock<std::mutex>& lock, bool* queued);
  void Delivered(const v1::AgentMessage& message);
  void Serve(Stream& stream, grpc::ClientContext& context);
  void WriteLoop(Stream& stream, grpc::ClientContext& context);
  bool WaitOrStop(double seconds);

  std::unique_ptr<v1::NodeService::Stub> stub_;
  Callbacks callbacks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::AgentMessage> queue_;
  // Step reports on their way to the coordinator or just there.
  std::deque<std::pair<std::chrono::steady_clock::time_point, v1::AgentMessage>> sent_;
  uint64_t sequence_ = 0;
  bool stopping_ = false;
  bool broken_ = false;                      // the present connection
  grpc::ClientContext* greeting_ = nullptr;  // of a connection that waits for the first answer
  double heartbeat_seconds_ = 5;
  std::chrono::steady_clock::time_point heartbeat_due_;
  std::thread thread_;
};

}  // namespace tercio
