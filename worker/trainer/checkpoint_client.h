// A rank's part of saving and loading checkpoints, as a client of the coordinator's
// CheckpointService.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "proto/tercio/v1/checkpoint_service.grpc.pb.h"
#include "worker/engine/training_engine.h"
#include "worker/trainer/chunks.h"

namespace tercio {

struct CheckpointIdentity {
  v1::RunId run;
  std::string token;
  int rank = 0;
  int world_size = 1;
};

// What a checkpoint holds besides tensors (checkpoint_service.proto).
struct CheckpointTexts {
  std::string training_state;
  std::string tokenizer;              // of rank 0 only
  std::vector<v1::StepRecord> steps;  // of rank 0 only: since the checkpoint before
};

class CheckpointClient {
 public:
  CheckpointClient(std::shared_ptr<grpc::Channel> channel, CheckpointIdentity identity)
      : channel_(std::move(channel)),
        stub_(v1::CheckpointService::NewStub(channel_)),
        identity_(std::move(identity)) {}
  ~CheckpointClient();

  // Reads every slice the engine needs from the checkpoint of `step`.
  absl::Status Load(int64_t step, TrainingEngine& engine);

  // Streams the values (of one slice each) in the background; they must stay unchanged until
  // WaitForUpload returns. The same thread calls `before` first, where there is something to do
  // with them that does not wait for the coordinator. While nobody answers it tries again for as
  // long as `patience`.
  // `done(status, bytes, seconds)` is called from the uploading thread when the whole checkpoint is
  // visible, or given up.
  using Done = std::function<void(const absl::Status&, int64_t bytes, double seconds)>;
  void StartUpload(int64_t step, const std::vector<v1::TensorSlice>& slices,
                   const ValueParts& values, CheckpointTexts texts, absl::Duration patience,
                   Done done, std::function<void()> before = {});
  // An upload that nobody has answered is not tried again; one under way goes on.
  void StopRetrying();
  // How the last upload ended; OK before the first. `still_waiting` is called every second
  // meanwhile: the coordinator answers when the whole checkpoint is visible, which may take long.
  absl::Status WaitForUpload(const std::function<void()>& still_waiting = [] {});

 private:
  absl::Status ReadSlice(int64_t step, const v1::TensorSlice& slice, std::vector<float>* values);
  absl::Status Upload(const v1::UploadBegin& begin, const ValueParts& values);
  // Waits for the next try; true when there is to be none.
  bool StopsWithin();

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::CheckpointService::Stub> stub_;
  CheckpointIdentity identity_;
  std::thread uploader_;
  absl::Status outcome_;  // written by the uploader, read when it has ended
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  bool uploading_ = false;
};

}  // namespace tercio
