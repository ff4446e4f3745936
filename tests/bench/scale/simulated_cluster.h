// Agents without machines: real gRPC streams to a coordinator, behind which ranks do at once what
// they are told. They prepare data, start, exchange unique ids as NCCL's ranks do (the first rank
// of each group leaves 128 bytes, all its members fetch them), run, and report as real ones do:
// heartbeats with the timing of every rank, a step each second. Counts what goes over the wire.
//
// Threads: public methods from one thread; the streams live on gRPC's own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "proto/tercio/v1/node_service.grpc.pb.h"

namespace tercio::bench {

struct ClusterOptions {
  std::string coordinator;  // HOST:PORT
  int agents = 8;
  int devices = 8;      // devices of each agent
  int connections = 0;  // that the agents share; 0: one for each, as in life
};

// Sums over all agents, of serialised messages.
struct Traffic {
  std::atomic<int64_t> registered{0};    // agents that were accepted
  std::atomic<int64_t> starts{0};        // orders to start
  std::atomic<int64_t> start_bytes{0};   // bytes of those orders
  std::atomic<int64_t> id_calls{0};      // puts and gets of unique ids
  std::atomic<int64_t> id_bytes{0};      // both directions
  std::atomic<int64_t> ids_received{0};  // values
  std::atomic<int64_t> messages_to{0};   // the coordinator, on streams
  std::atomic<int64_t> bytes_to{0};
  std::atomic<int64_t> messages_from{0};
  std::atomic<int64_t> bytes_from{0};
  std::atomic<int64_t> ranks_running{0};  // as told to the coordinator
  std::atomic<int64_t> faults{0};         // broken streams, wrong ids
};

class SimulatedCluster {
 public:
  explicit SimulatedCluster(ClusterOptions options);
  // Ends all streams.
  ~SimulatedCluster();

  // Says hello from all nodes; from then on they live.
  void Attach();
  // From then on the first agent reports a step every second.
  void BeginSteps() { stepping_ = true; }

  const Traffic& traffic() const { return traffic_; }

 private:
  class Agent;
  struct Call;

  void Opened();
  void Closed();
  void Live();

  const ClusterOptions options_;
  Traffic traffic_;
  std::vector<std::unique_ptr<v1::NodeService::Stub>> stubs_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::atomic<bool> stepping_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  int open_ = 0;  // streams and calls that are not over
  std::thread life_;
};

}  // namespace tercio::bench
