// The whole model of a checkpoint or Hugging Face directory as one rank of this machine: the basis
// of generation and evaluation.
//
// Threads: one thread uses a model at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/weight_source.h"
#include "proto/tercio/v1/job.pb.h"
#include "tokenizer/tokenizer.h"
#include "worker/blocks/micro_batch.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"
#include "worker/engine/stage_model.h"
#include "worker/inference/adapter_set.h"
#include "worker/inference/key_cache.h"

namespace tercio::inference {

// A model whose weights are not in memory yet: what is needed to prepare its inputs.
struct OpenedModel {
  std::string directory;
  std::unique_ptr<checkpoint::WeightSource> weights;
  // None if none was given and the directory holds none that this version can read.
  std::optional<tokenizer::Tokenizer> tokenizer;
  // The model with each of the adapters among which texts choose (adapter_set.h); they need it.
  std::vector<std::unique_ptr<checkpoint::WeightSource>> adapters;

  const v1::ModelSpec& spec() const { return weights->model(); }
};

// Checks the digests of a checkpoint. A given `tokenizer` is used instead of the directory's, which
// is not read then. NOT_FOUND | DATA_LOSS | INVALID_ARGUMENT from the directory.
absl::StatusOr<OpenedModel> OpenModel(const std::string& directory,
                                      std::optional<tokenizer::Tokenizer> tokenizer);

// Adds an adapter, of peft or of a checkpoint, among which texts choose. What is its own besides
// (peft's modules_to_save) cannot be chosen by a text: INVALID_ARGUMENT. Errors of
// checkpoint::OpenAdapterOf.
absl::Status AddAdapter(const std::string& directory, OpenedModel* opened);

// What a model processes at a time. No number changes the bits of a result.
struct PassSize {
  int64_t sequences = 1;
  int64_t context = 0;  // shortens the model's, which takes less memory and time; 0 keeps it
  int64_t decoder_context = 0;  // likewise of a decoder, whose sequences may also be longer
  // Positions of a causal model's texts, of which `sequences` grow at once, whose keys and values
  // have memory (key_cache.h); 0: those of whole contexts.
  int64_t cache_tokens = 0;
};

// Ids of prompts that a pass has room for beside an id of each text.
inline constexpr int64_t kPromptRows = 256;

// INVALID_ARGUMENT for a context that is longer than the model's.
absl::Status CheckContext(const OpenedModel& opened, int64_t context);

// What a model takes on this machine, before its weights are read.
struct PlannedBytes {
  int64_t weights = 0;
  int64_t texts = 0;  // activations, with keys and values, of all sequences
  int64_t workspace = 0;
  // The part of `texts` that is keys and values of growing texts, and for how many tokens; 0 where
  // there is no cache.
  int64_t cache = 0;
  int64_t cache_tokens = 0;
  int64_t adapters = 0;
  int64_t total() const { return weights + texts + workspace + adapters; }
};
// Errors of CheckContext and PlanCache.
absl::StatusOr<PlannedBytes> PlanBytes(const OpenedModel& opened, int threads, PassSize pass);

class WholeModel {
 public:
  // Errors of CheckContext, of PlanCache and of the directory.
  static absl::StatusOr<std::unique_ptr<WholeModel>> Load(const OpenedModel& opened, int threads,
                                                          PassSize pass);

  const v1::ModelSpec& spec() const { return spec_.model(); }
  const plan::StageShape& shape() const { return shape_; }
  // Null if none was given and the directory holds none that this version can read.
  const tokenizer::Tokenizer* tokenizer() const {
    return tokenizer_.has_value() ? &*tokenizer_ : nullptr;
  }
  const AdapterSet& adapters() const { return *adapters_; }
  // The most texts that grow at once, each within the context: PassSize::sequences.
  int64_t texts() const { return texts_; }
  // The cache of a model that has one: with pages == 0 there is none.
  const CachePlan& cache_plan() const { return cache_plan_; }
  const blocks::KeyCache& cache() const { return cache_; }
  engine::StageModel& stage() { return model_; }
  engine::Arena& arena() { return arena_; }

 private:
  WholeModel(const v1::JobSpec& spec, const v1::RankPlan& plan,
             std::unique_ptr<device::Device> device, engine::Arena arena,
             std::optional<tokenizer::Tokenizer> tokenizer);

  v1::JobSpec spec_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<collective::Communicator> group_;
  engine::Arena arena_;
  plan::StageShape shape_;
  plan::StageTensors tensors_;
  engine::StageModel model_;
  std::unique_ptr<AdapterSet> adapters_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
  int64_t texts_ = 0;
  CachePlan cache_plan_;
  std::unique_ptr<device::DeviceMemory> cache_memory_;
  blocks::KeyCache cache_;
};

}  // namespace tercio::inference
