// Megatron-LM's names of a model's tensors, which canonical tensors (plan/model_tensors.h) each
// holds, and how each is cut over tensor ranks. One table; everything else that reads or writes
// Megatron-LM's checkpoints walks it. Pure.
//
// Two layouts are known. `legacy` is that of megatron/model (later megatron/legacy): nested maps,
// model["language_model"]["encoder"]["layers.0.self_attention.dense.weight"]. `core` is that of
// megatron/core: one map, model["decoder.layers.0.self_attention.linear_proj.weight"]. Names of
// both and of all their ages become the same plain name, which is that of the legacy layout without
// the folders that carry no information ("layers.0.self_attention.dense.weight").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

enum class MegatronLayout { kLegacy, kCore };

// kRows: column-parallel layers, whose outputs are cut; kColumns: row-parallel ones.
enum class MegatronCut { kWhole, kRows, kColumns };

// The stage of the pipeline that holds a tensor.
enum class MegatronStage { kFirst, kOfLayer, kLast };

struct MegatronTensor {
  std::string name;    // plain; of a layer with its number in the model
  std::string legacy;  // path through nested maps with '/', '*' for the layer's number in its stage
  std::string core;
  MegatronStage stage = MegatronStage::kFirst;
  int layer = -1;
  MegatronCut cut = MegatronCut::kWhole;
  bool is_vector = false;
  bool vocabulary = false;  // rows are token ids
  int64_t rows = 0;         // those of all ranks, without padding
  int64_t columns = 1;
  std::vector<std::string> parts;  // canonical: one; query, key and value; gate and up
};

// In the order of the layers. REQUIRES: gpt2, llama or a bert with norms before, vocab_size > 0.
std::vector<MegatronTensor> MegatronTensors(const v1::ModelSpec& model);

// The table of a tied head that the last of several stages keeps. REQUIRES: as above.
MegatronTensor MegatronTiedHead(const v1::ModelSpec& model);

// The plain name of a stored tensor, whose path is joined by dots; as it is when it is not known.
std::string MegatronPlainName(std::string_view stored);

// Whether the name is that of state that carries no weights: Transformer Engine's, frequencies.
bool IsIgnoredByMegatron(std::string_view plain);

// The number of the layer that a plain name belongs to; -1: to none.
int64_t LayerOfMegatronName(std::string_view plain);

}  // namespace tercio::checkpoint
