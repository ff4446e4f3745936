// The file of one rank of a Megatron-LM checkpoint: model_optim_rng.pt. Optimizer and random
// numbers in it are passed over.
//
// Threads: immutable; any number of threads may read.
// Errors: those of TorchFile; DATA_LOSS for a file that holds no model, or a tensor twice;
// INVALID_ARGUMENT for a checkpoint version that is not known. Each names the file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/torch/pickle_value.h"
#include "checkpoint/torch/torch_file.h"

namespace tercio::checkpoint {

struct MegatronStored {
  std::string name;  // as the file has it, its path joined by dots
  const TorchTensor* tensor = nullptr;
};

// Tensors by their plain names (checkpoint/megatron/names.h); layers are counted from 0.
using MegatronChunk = std::map<std::string, MegatronStored>;

class MegatronRank {
 public:
  static absl::StatusOr<std::unique_ptr<MegatronRank>> Open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  int version() const { return version_; }
  int64_t iteration() const { return iteration_; }  // -1: none
  bool has_optimizer() const { return has_optimizer_; }
  // The arguments of the training; nullptr in files of 2019, and of converters.
  const PickleValue* args() const { return args_; }
  // The parts of the model that the rank holds, more than one with virtual pipeline stages.
  const std::vector<MegatronChunk>& chunks() const { return chunks_; }

 private:
  absl::Status ReadHeader();
  absl::Status ReadChunks();
  absl::Status Flatten(const PickleValue& map, const std::string& prefix, int depth,
                       MegatronChunk* chunk);

  std::unique_ptr<TorchFile> file_;
  const PickleValue* args_ = nullptr;
  int version_ = 0;
  int64_t iteration_ = -1;
  bool has_optimizer_ = false;
  std::vector<MegatronChunk> chunks_;
  int members_ = 0;  // members of all maps walked so far
};

// The number of layers in a chunk: one more than the last.
int64_t LayersOf(const MegatronChunk& chunk);

}  // namespace tercio::checkpoint
