// A Megatron-LM checkpoint as a source of weights: the files of all tensor ranks and pipeline
// stages, of any degrees and of the checkpoint versions 0 to 3. Files are mapped; ranks are joined,
// and numbers become fp32, as they are read.
//
// The files are not trusted: every name, shape and dtype is checked before use. A file that shrinks
// while it is mapped ends the process (SIGBUS), as with any mapping.
//
// Threads: const methods from any thread.
// Errors: NOT_FOUND when there is no such checkpoint; DATA_LOSS for a damaged one: a rank that is
// missing or of another training, a tensor that is missing, extra or misshapen; INVALID_ARGUMENT
// for what this version does not support. Files and tensors are named, at most a few of them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/float_format.h"
#include "checkpoint/megatron/arguments.h"
#include "checkpoint/megatron/directory.h"
#include "checkpoint/megatron/rank_state.h"
#include "checkpoint/megatron/shards.h"
#include "checkpoint/weight_source.h"

namespace tercio::checkpoint {

class MegatronModel : public WeightSource {
 public:
  static absl::StatusOr<std::unique_ptr<MegatronModel>> Open(const std::string& directory);

  const v1::ModelSpec& model() const override { return description_.model; }
  // NOT_FOUND: Megatron-LM's checkpoints have none.
  absl::StatusOr<std::string> TokenizerJson() const override;
  bool Has(const std::string& tensor) const override { return places_.contains(tensor); }
  absl::Status ReadSlice(const v1::TensorSlice& slice, float* out) const override;
  std::vector<std::string> NotesFor(const v1::ModelSpec&) const override {
    return description_.notes;
  }

 private:
  // A part of a canonical tensor in a stored one.
  struct Piece {
    MegatronRun run;
    const TorchTensor* stored = nullptr;
    FloatFormat format = FloatFormat::kF32;
  };
  struct Place {
    std::vector<int64_t> shape;
    std::vector<Piece> pieces;
  };
  class Placing;

  const MegatronRank& rank(int tensor_rank, int stage) const {
    return *ranks_[static_cast<size_t>(stage * files_.tensor + tensor_rank)];
  }
  absl::Status OpenRanks();
  static void ReadPiece(const Piece& piece, const v1::TensorSlice& slice, float* out);

  std::string directory_;
  MegatronFiles files_;
  std::vector<std::unique_ptr<MegatronRank>> ranks_;  // in the order of files_.paths
  MegatronDescription description_;
  std::map<std::string, Place> places_;
};

}  // namespace tercio::checkpoint
