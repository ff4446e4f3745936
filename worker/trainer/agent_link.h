// The trainer's end of its conversation with the agent that started it (trainer.proto).
//
// Threads: all methods from any thread. A thread of its own reads commands, and ends the process
// `agent_grace` after the agent has gone: a trainer never outlives its agent for long.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tercio/v1/trainer.grpc.pb.h"
#include "worker/collective/gloo_transport.h"

namespace tercio {

class AgentLink : public RendezvousStore {
 public:
  // Says hello and waits for the assignment.
  static absl::StatusOr<std::unique_ptr<AgentLink>> Connect(const std::string& socket,
                                                            const v1::TrainerHello& hello);
  ~AgentLink() override;

  const v1::TrainerAssignment& assignment() const { return assignment_; }

  // What the agent has asked for since the last call.
  enum class Request { kNone = 0, kSave = 1, kSaveAndStop = 2 };
  Request TakeRequest();

  void Send(const v1::TrainerMessage& message);
  void SendPhase(v1::TrainerPhase phase);

  absl::Status Put(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                               absl::Duration timeout) override;

 private:
  AgentLink() = default;
  void ReadCommands();

  std::unique_ptr<v1::TrainerService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::TrainerMessage, v1::TrainerCommand>> stream_;
  v1::RunId run_;
  std::string token_;
  v1::TrainerAssignment assignment_;
  std::atomic<int> request_{0};
  std::atomic<bool> closing_{false};
  std::atomic<bool> ended_{false};  // the agent's side of the stream
  std::mutex write_mutex_;
  std::thread reader_;
};

}  // namespace tercio
