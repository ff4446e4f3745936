// A rank's part of keeping and loading copies of snapshots in the memory of agents, as a client of
// their SnapshotService (snapshot_service.proto).
//
// Threads: Put from one thread at a time. Errors name the agent.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tercio/v1/snapshot_service.grpc.pb.h"
#include "worker/engine/training_engine.h"
#include "worker/trainer/checkpoint_client.h"
#include "worker/trainer/chunks.h"
#include "worker/trainer/state_loader.h"

namespace tercio::trainer {

class SnapshotClient {
 public:
  // The time that an agent may take beyond that for the bytes: training must not wait for one that
  // has stalled.
  static constexpr absl::Duration kPatience = absl::Seconds(20);
  // `holders`: addresses of agents (HOST:PORT or unix:PATH), in the order in which they are served.
  SnapshotClient(CheckpointIdentity identity, std::vector<std::string> holders,
                 absl::Duration patience = kPatience)
      : identity_(std::move(identity)), holders_(std::move(holders)), patience_(patience) {}

  // Sends every holder a copy, one after the other. An error of one holder does not affect the
  // others; errors are returned for the log.
  std::vector<absl::Status> Put(int64_t step, const std::vector<v1::TensorSlice>& slices,
                                const ValueParts& values, const std::vector<v1::StepRecord>& steps);

  // Fills the engine from the copy that `holder` has of this rank's snapshot. On an error the
  // engine holds no state that could be trained on: DATA_LOSS (checksum, or other slices than the
  // engine needs), NOT_FOUND (it is gone), or the error of the call. `loaded` is called as bytes
  // arrive.
  absl::Status Load(const std::string& holder, int attempt, int64_t step, const LoadedBytes& loaded,
                    engine::TrainingEngine& engine);

 private:
  absl::StatusOr<v1::SnapshotService::Stub*> StubOf(const std::string& holder);
  absl::Status PutTo(const std::string& holder, const v1::SnapshotBegin& begin,
                     const ValueParts& values, std::string* checksum);

  const CheckpointIdentity identity_;
  const std::vector<std::string> holders_;
  const absl::Duration patience_;
  std::map<std::string, std::unique_ptr<v1::SnapshotService::Stub>> stubs_;
};

}  // namespace tercio::trainer
