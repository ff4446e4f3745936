// The agent's stream to the coordinator: kept up, reconnected with jittered back-off. Messages come
// from the store's spool, in order, and all that are not acknowledged are sent again after a
// reconnection; transient messages are sent once or not at all.
//
// Threads: Say from any thread; callbacks come from the link's own threads and may call Say and
// commit to the store.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "grpcpp/channel.h"
#include "proto/tercio/v1/node_service.grpc.pb.h"
#include "worker/agent/link/agent_store.h"

namespace tercio::agent {

class NodeLink {
 public:
  struct Callbacks {
    // Makes the hello of a new connection: the set of runs on this node may have changed.
    std::function<v1::AgentHello()> hello;
    std::function<v1::AgentHeartbeat()> heartbeat;
    // Transient messages, sent first on every new connection.
    std::function<std::vector<v1::AgentMessage>()> said_first;
    std::function<void(const v1::CoordinatorMessage&)> on_message;
    // Describes, for people, why a connection broke or could not be made.
    std::function<std::string(const grpc::Status&)> explain;
  };

  // The store must outlive the link.
  NodeLink(std::shared_ptr<grpc::Channel> channel, AgentStore& store);
  ~NodeLink() { Stop(); }

  // Called once.
  void Start(Callbacks callbacks);

  // Breaks the connection and does not reconnect for `seconds`: for drills.
  void StayAway(double seconds);

  // Ends the connection; no callback follows.
  void Stop();

  // Sends a transient message, which is lost if there is no connection.
  void Send(v1::AgentMessage message);

  // Whether the coordinator has accepted this node on the present stream.
  bool connected();

  v1::NodeService::Stub& stub() { return *stub_; }

  // Waits until everything has been sent, at most `seconds`.
  void Drain(double seconds);

 private:
  using Stream = grpc::ClientReaderWriter<v1::AgentMessage, v1::CoordinatorMessage>;

  void Run();
  void Serve(Stream& stream, grpc::ClientContext& context);
  void Receive(const v1::CoordinatorMessage& message);
  void WriteLoop(Stream& stream, grpc::ClientContext& context);
  bool WriteNews(Stream& stream);
  bool WriteBatch(Stream& stream, std::vector<v1::AgentMessage> batch);
  bool WriteSaid(Stream& stream);
  void SayGoodbye(Stream& stream);
  double SecondsAway();
  bool Stops();
  double LongestBackoff();  // seconds
  bool WaitOrStop(double seconds);

  AgentStore& store_;
  std::unique_ptr<v1::NodeService::Stub> stub_;
  Callbacks callbacks_;
  Mutex mutex_;
  ConditionVariable changed_;
  // Messages of the present connection.
  std::deque<v1::AgentMessage> said_ TERCIO_GUARDED_BY(mutex_);
  // The last sequence of the spool that was sent on the present connection.
  uint64_t sent_ TERCIO_GUARDED_BY(mutex_) = 0;
  bool news_ TERCIO_GUARDED_BY(mutex_) = false;  // the spool may hold more
  bool connected_ TERCIO_GUARDED_BY(mutex_) = false;
  bool stopping_ TERCIO_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point away_until_ TERCIO_GUARDED_BY(mutex_);
  bool broken_ TERCIO_GUARDED_BY(mutex_) = false;  // the present connection
  // That of a connection that waits for the first answer.
  grpc::ClientContext* greeting_ TERCIO_GUARDED_BY(mutex_) = nullptr;
  grpc::ClientContext* present_ TERCIO_GUARDED_BY(mutex_) = nullptr;  // context of any connection
  // Whether the present coordinator accepts several messages in one; set before the writer of the
  // connection begins.
  bool takes_news_ = false;
  double heartbeat_seconds_ = 5;
  std::thread thread_;
};

}  // namespace tercio::agent
