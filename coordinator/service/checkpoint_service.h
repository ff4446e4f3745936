// Takes in streamed checkpoints and gives out slices of them (checkpoint_service.proto).
//
// An upload is answered when the whole save is visible, or given up: a rank that has its answer
// need not send again. A save is given up when one of its uploads fails, when a rank begins a later
// one (ranks begin the next only after the answer to the last, or when they no longer want it),
// when its attempt is over, or when no part has come for kSilence. What it has written is removed
// then.
//
// Threads: gRPC's; uploads of one save wait for each other here.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "checkpoint/reader.h"
#include "common/steady_time.h"
#include "coordinator/service/coordinator.h"
#include "proto/tercio/v1/checkpoint_service.grpc.pb.h"

namespace tercio::coordinator {

class CheckpointServiceImpl : public v1::CheckpointService::Service {
 public:
  explicit CheckpointServiceImpl(Coordinator& coordinator) : coordinator_(coordinator) {}

  grpc::Status Upload(grpc::ServerContext*, grpc::ServerReader<v1::UploadMessage>*,
                      v1::UploadResponse*) override;
  grpc::Status GetManifest(grpc::ServerContext*, const v1::GetManifestRequest*,
                           v1::GetManifestResponse*) override;
  grpc::Status ReadTensor(grpc::ServerContext*, const v1::ReadTensorRequest*,
                          grpc::ServerWriter<v1::TensorChunk>*) override;

 private:
  // A save in progress, or the last one that was given up.
  struct Save {
    v1::RunId run;
    int64_t step = 0;
    absl::Time begun = SteadyNow();
    std::map<int, checkpoint::Manifest> parts;  // by rank
    std::string training_state;
    std::string tokenizer;
    std::vector<v1::StepRecord> steps;
    int uploads = 0;  // under way, or waiting for the others
    bool ended = false;
    absl::Status outcome;  // when ended
  };
  using SavePtr = std::shared_ptr<Save>;

  // The save that an upload belongs to, null when it is committed already; ABORTED when the upload
  // comes too late.
  absl::StatusOr<SavePtr> Join(const v1::UploadBegin& begin);
  absl::Status Receive(grpc::ServerReader<v1::UploadMessage>* reader, const v1::UploadBegin& begin,
                       Save& save);
  void AddPart(const v1::UploadBegin& begin, const checkpoint::Manifest& part, Save& save);
  absl::Status CommitSave(const v1::UploadBegin& begin, const Save& save);
  absl::Status AwaitOutcome(const grpc::ServerContext& context, const v1::UploadBegin& begin,
                            Save& save);
  void Leave(Save& save);
  // With mutex_ held.
  void End(Save& save, const absl::Status& outcome);
  absl::StatusOr<std::shared_ptr<checkpoint::Reader>> OpenReader(const std::string& job,
                                                                 int64_t step);

  Coordinator& coordinator_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, SavePtr> saves_;  // by job; one at a time
  // The checkpoint that ranks load from now: opened once for all of them.
  std::string reader_path_;
  std::shared_ptr<checkpoint::Reader> reader_;
};

}  // namespace tercio::coordinator
