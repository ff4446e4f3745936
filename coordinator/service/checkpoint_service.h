// Takes in streamed checkpoints and gives out slices of them (checkpoint_service.proto).
//
// A save is committed by the upload that completes it, so that a rank which has its answer knows
// that its part is on disk, and the last one that the whole is visible.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/reader.h"
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
  // A save in progress.
  struct Save {
    int32_t attempt = 0;
    std::map<int, checkpoint::Manifest> parts;  // by rank
    std::string training_state;
    std::string tokenizer;
    bool failed = false;
  };
  using SaveKey = std::pair<std::string, int64_t>;  // job, step

  absl::Status Receive(grpc::ServerReader<v1::UploadMessage>* reader, const v1::UploadBegin& begin);
  absl::Status AddPart(const v1::UploadBegin& begin, const checkpoint::Manifest& part);
  absl::Status CommitSave(const v1::UploadBegin& begin, const Save& save);
  void FailSave(const v1::UploadBegin& begin, const absl::Status& status);
  absl::StatusOr<std::shared_ptr<checkpoint::Reader>> OpenReader(const std::string& job,
                                                                 int64_t step);

  Coordinator& coordinator_;
  std::mutex mutex_;
  std::map<SaveKey, Save> saves_;
  // The checkpoint that ranks load from now: opened once for all of them.
  std::string reader_path_;
  std::shared_ptr<checkpoint::Reader> reader_;
};

}  // namespace tercio::coordinator
