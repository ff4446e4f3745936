// What the files of a Megatron-LM checkpoint say of the model: the arguments of the training (the
// namespace `args` in every rank's file), and the names and shapes of tensors where these say more.
//
// A model is one of Tercio's only if all of its arguments say so: learned positions, LayerNorm,
// GELU and biases are a gpt2, or a bert with norms before; rotary positions, RMSNorm and SwiGLU
// without biases are a llama. Anything else is refused by the name of the argument.
//
// Threads: any.
// Errors: DATA_LOSS for arguments that are missing, of a wrong type, or contradict the tensors;
// INVALID_ARGUMENT for a model that Tercio does not support. All faults are in one message.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/megatron/directory.h"
#include "checkpoint/megatron/rank_state.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

struct MegatronDescription {
  v1::ModelSpec model;
  int64_t padded_vocabulary = 0;
  std::vector<std::string> notes;  // for people who import it
};

// `first` and `last` are the files of tensor rank 0 in the first and the last stage; `tokenizer` is
// the number of ids of the tokenizer beside the checkpoint, 0 where there is none.
absl::StatusOr<MegatronDescription> DescribeMegatron(const MegatronFiles& files,
                                                     const MegatronRank& first,
                                                     const MegatronRank& last, int64_t tokenizer);

// The description, from as few files as possible, of what FindMegatronFiles(directory) found.
absl::StatusOr<MegatronDescription> DescribeMegatronFiles(const std::string& directory,
                                                          const MegatronFiles& files);

// DATA_LOSS names the first value in which two ranks differ that were written together.
absl::Status CheckSameTraining(const MegatronRank& one, const MegatronRank& other);

// The scaling of rotary frequencies that use_rope_scaling means, but for its factor (_apply_scaling
// in megatron/core/models/common/embeddings/rotary_pos_embedding.py).
inline constexpr double kMegatronLowFrequency = 1;
inline constexpr double kMegatronHighFrequency = 4;
inline constexpr int32_t kMegatronOriginalContext = 8192;

}  // namespace tercio::checkpoint
