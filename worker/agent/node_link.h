// The agent's stream to the coordinator: kept up, reconnected with jittered back-off, messages
// queued while it is down.
//
// Threads: Send from any thread; `on_message` and `on_connected` come from the link's own thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "grpcpp/channel.h"
#include "proto/tercio/v1/node_service.grpc.pb.h"

namespace tercio {

class NodeLink {
 public:
  // Makes the hello of a new connection: what runs here may have changed.
  using MakeHello = std::function<v1::AgentHello()>;
  using MakeHeartbeat = std::function<v1::AgentHeartbeat()>;
  using OnMessage = std::function<void(const v1::CoordinatorMessage&)>;

  NodeLink(std::shared_ptr<grpc::Channel> channel, MakeHello hello, MakeHeartbeat heartbeat,
           OnMessage on_message);
  ~NodeLink() { Stop(); }

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
  void Serve(Stream& stream, grpc::ClientContext& context);
  void WriteLoop(Stream& stream, grpc::ClientContext& context);
  bool WaitOrStop(double seconds);

  std::unique_ptr<v1::NodeService::Stub> stub_;
  MakeHello hello_;
  MakeHeartbeat heartbeat_;
  OnMessage on_message_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::AgentMessage> queue_;
  uint64_t sequence_ = 0;
  bool stopping_ = false;
  bool broken_ = false;  // the present connection
  double heartbeat_seconds_ = 5;
  std::thread thread_;
};

}  // namespace tercio
