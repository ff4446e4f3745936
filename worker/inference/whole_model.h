// The whole model of a checkpoint or Hugging Face directory as one rank of this machine, for one
// sequence at a time: the basis of generation and evaluation.
//
// Threads: one thread uses a model at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/job.pb.h"
#include "tokenizer/tokenizer.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"
#include "worker/engine/stage_model.h"

namespace tercio {

class WholeModel {
 public:
  // Checks the digests of a checkpoint. `context` shortens the model's, which takes less memory; 0
  // keeps it. A given `tokenizer` is used instead of the directory's, which is not read then.
  // NOT_FOUND | DATA_LOSS | INVALID_ARGUMENT from the directory; INVALID_ARGUMENT for a
  // longer context.
  static absl::StatusOr<std::unique_ptr<WholeModel>> Load(const std::string& directory, int threads,
                                                          int64_t context,
                                                          std::optional<data::Tokenizer> tokenizer);

  const v1::ModelSpec& spec() const { return spec_.model(); }
  const plan::StageShape& shape() const { return shape_; }
  // Null if none was given and the directory holds none that this version can read.
  const data::Tokenizer* tokenizer() const {
    return tokenizer_.has_value() ? &*tokenizer_ : nullptr;
  }
  StageModel& stage() { return model_; }
  Arena& arena() { return arena_; }

 private:
  WholeModel(const v1::JobSpec& spec, const v1::RankPlan& plan, std::unique_ptr<Device> device,
             Arena arena, std::optional<data::Tokenizer> tokenizer);

  v1::JobSpec spec_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Communicator> group_;
  Arena arena_;
  plan::StageShape shape_;
  plan::StageTensors tensors_;
  StageModel model_;
  std::optional<data::Tokenizer> tokenizer_;
};

}  // namespace tercio
