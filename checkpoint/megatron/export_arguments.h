// The arguments that a written Megatron-LM checkpoint holds: those that Megatron-LM compares with
// its own or takes over (check_checkpoint_args and load_args_from_checkpoint in
// megatron/training/checkpointing.py), those that its converters ask for (tools/checkpoint), and
// those that this folder reads. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "checkpoint/float_format.h"
#include "checkpoint/megatron/names.h"
#include "checkpoint/megatron/shards.h"
#include "checkpoint/torch/torch_writer.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

// INVALID_ARGUMENT when Megatron-LM's arguments cannot express the model.
absl::Status CheckHasMegatronForm(const v1::ModelSpec& model);

// The vocabulary rounded up as Megatron-LM does (_vocab_size_with_padding in
// megatron/training/tokenizer/tokenizer.py, with its usual --make-vocab-size-divisible-by).
int64_t MegatronPaddedVocabulary(int64_t vocab_size, int tensor);

struct MegatronWritten {
  MegatronSplit split;
  MegatronLayout layout = MegatronLayout::kLegacy;
  int pipeline = 1;
  int64_t iteration = 0;
  FloatFormat format = FloatFormat::kF32;
};

// `model` is as it is stored. REQUIRES: CheckHasMegatronForm(model).ok().
TorchMembers MegatronArguments(const v1::ModelSpec& model, const MegatronWritten& written);

}  // namespace tercio::checkpoint
