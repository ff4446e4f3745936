// The trainer's end of its conversation with its agent (trainer.proto).
//
// The agent may die and be restarted: the link reconnects, introduces itself and resends messages
// that were not received. A trainer whose agent stays away for longer than agent_grace ends, and so
// does one that the agent no longer knows.
//
// Threads: all methods from any thread; none waits for the agent, except Put, Get and the
// destructor. Two threads of its own, one that reads and connects, one that writes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/tercio/v1/trainer.grpc.pb.h"
#include "worker/collective/gloo_transport.h"
#include "worker/progress/record_file.h"
#include "worker/trainer/outbox.h"

namespace tercio::trainer {

class AgentLink : public collective::RendezvousStore {
 public:
  // Must end the process; called from one of the link's threads.
  using Abandon = std::function<void(const std::string& reason)>;

  // Sends the hello and waits for the assignment. While the agent is away, messages that it has not
  // received are also in the file `untold` (empty: none): this process may die before the agent
  // returns.
  static absl::StatusOr<std::unique_ptr<AgentLink>> Connect(const std::string& socket,
                                                            const v1::TrainerHello& hello,
                                                            const std::string& untold,
                                                            Abandon abandon);
  // Waits until the agent has received everything, at most agent_grace.
  ~AgentLink() override;

  const v1::TrainerAssignment& assignment() const { return assignment_; }

  // The agent's request since the last call.
  enum class Request { kNone = 0, kSave = 1, kSaveAndStop = 2 };
  Request TakeRequest();
  // A drill: whether a bit of this rank's weights is to be flipped.
  bool TakeFlipBit();

  void Send(v1::TrainerMessage message);
  void SendPhase(v1::TrainerPhase phase);

  // These retry while the agent, or the coordinator behind it, is away.
  absl::Status Put(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                               absl::Duration timeout) override;

 private:
  // One stream to an agent.
  struct Connection {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::TrainerMessage, v1::TrainerCommand>> stream;
    Mutex writing;
    bool finished TERCIO_GUARDED_BY(writing) = false;
  };

  AgentLink(v1::TrainerHello hello, std::string untold, Abandon abandon)
      : hello_(std::move(hello)), untold_path_(std::move(untold)), abandon_(std::move(abandon)) {}
  enum class Greeting { kFirst, kAgain };
  absl::Status Greet(Greeting greeting);
  void ReadLoop();
  void ReadCommands(Connection& connection);
  bool ConnectAgain();
  void WriteLoop();
  bool IsLost() const TERCIO_REQUIRES(mutex_);
  void BeginUntold() TERCIO_REQUIRES(mutex_);

  v1::TrainerHello hello_;
  const std::string untold_path_;
  const Abandon abandon_;
  std::unique_ptr<v1::TrainerService::Stub> stub_;
  v1::TrainerAssignment assignment_;  // answer to the first greeting

  mutable Mutex mutex_;
  ConditionVariable changed_;
  Outbox outbox_ TERCIO_GUARDED_BY(mutex_);
  progress::RecordFile untold_ TERCIO_GUARDED_BY(mutex_);  // open while the agent is away
  uint64_t sent_ TERCIO_GUARDED_BY(mutex_) = 0;            // on the present connection
  // Replaced only by the thread that reads, under the mutex; that thread reads it without the
  // mutex.
  std::shared_ptr<Connection> connection_;
  bool attached_ TERCIO_GUARDED_BY(mutex_) = false;
  // When the last connection ended; valid when not attached.
  absl::Time lost_ TERCIO_GUARDED_BY(mutex_);
  bool refused_ TERCIO_GUARDED_BY(mutex_) = false;  // the agent no longer knows this rank
  bool closing_ TERCIO_GUARDED_BY(mutex_) = false;
  bool stopping_ TERCIO_GUARDED_BY(mutex_) = false;
  Request request_ TERCIO_GUARDED_BY(mutex_) = Request::kNone;
  bool flip_bit_ TERCIO_GUARDED_BY(mutex_) = false;
  std::thread reader_;
  std::thread writer_;
};

}  // namespace tercio::trainer
