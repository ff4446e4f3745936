// For tests: checkpoints as every version of Megatron-LM would have written a model, in any
// degrees, cut value by value from the definition of the formats and by none of the code that is
// tested. A test may change the files before they are written.
//
// Threads: any. Errors: programmer errors end the process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/torch/torch_writer.h"
#include "checkpoint/weight_source.h"

namespace tercio::checkpoint {

struct TestTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;  // row-major
  bool operator==(const TestTensor&) const = default;
};

// The names of the tensors of an age of Megatron-LM.
enum class TestNames {
  kOldest,  // transformer, attention: to 2021
  kLegacy,  // encoder, self_attention
  kNorm,    // legacy since 2023: input_norm, post_attention_norm, final_norm
  kCore,    // decoder.layers.0.self_attention.linear_qkv.weight
  kFused,   // the core's with Transformer Engine: norms belong to the matrices behind them
};

struct TestCut {
  int version = 3;
  int tensor = 1;
  int pipeline = 1;
  int chunks = 1;  // virtual pipeline stages of each rank
  TestNames names = TestNames::kLegacy;
  int64_t divisible = 8;  // make_vocab_size_divisible_by
};

// One rank's file.
struct TestRank {
  std::string folder;  // "mp_rank_00_001"
  std::optional<double> version;
  int64_t iteration = 7;
  TorchMembers args;
  // Name with '/' between nested maps -> tensor, for each part of the model.
  std::vector<std::map<std::string, TestTensor>> chunks;
  TorchMembers more;  // beside the model

  // The argument of this name, added where it is missing.
  TorchValue& arg(const std::string& name);
};

// A model with weights that are all different, and exact in bf16.
std::unique_ptr<WeightSource> MadeUpWeights(const v1::ModelSpec& model);

// Small models of every sort that Megatron-LM and Tercio share, by their names.
std::map<std::string, v1::ModelSpec> SharedModels();

// All values of a source by canonical tensor.
std::map<std::string, TestTensor> ReadAllTensors(const WeightSource& source);

std::vector<TestRank> CutAsMegatron(const WeightSource& source, const TestCut& cut);

// Writes the file of a rank into its folder in `directory`.
void WriteTestRank(const TestRank& rank, const std::string& directory);

// Writes a whole checkpoint with its iteration file; the ranks lie in iter_0000007.
void WriteTestCheckpoint(const std::vector<TestRank>& ranks, const std::string& directory);

}  // namespace tercio::checkpoint
