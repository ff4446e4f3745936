#include "plan/planner/cost/testing/software_memory.h"

#include <algorithm>
#include <cmath>

#include "model/architecture.h"
#include "model/architectures/registry.h"

namespace tercio::plan::cost {
namespace {

constexpr double kMebibyte = 1 << 20;
constexpr double kHalf = 2;    // bytes of bf16 and fp16
constexpr double kSingle = 4;  // and of fp32

bool IsGated(const v1::ModelSpec& model) { return model::FactsOf(model.architecture()).gated; }

// LayerNorm has a bias, with biases of products and without; RMSNorm has none.
double NormParameters(const v1::ModelSpec& model) {
  const model::Head head = model::ArchitectureOf(model).head;
  const bool is_rms = head.norm.has_value() && head.norm->options.rms;
  return (is_rms ? 1.0 : 2.0) * model.hidden();
}

// s b.
double RowsOfMicroBatch(const v1::ModelSpec& model, const v1::Layout& layout) {
  return static_cast<double>(model.context()) / std::max(1, layout.context_parallel()) *
         layout.micro_batch();
}

// Tensor ranks that divide what is not of one head or one column.
double RowRanks(const v1::Layout& layout) {
  return layout.sequence_parallel() ? layout.tensor() : 1;
}

// s b h of a rank.
double HiddenElements(const v1::ModelSpec& model, const v1::Layout& layout) {
  return RowsOfMicroBatch(model, layout) * model.hidden() / RowRanks(layout);
}

double KeyShare(const v1::ModelSpec& model) {
  return static_cast<double>(model.kv_heads()) / model.heads();
}

// V/t, padded.
double VocabularyOfRank(const v1::ModelSpec& model, const v1::Layout& layout,
                        const MemoryTraits& traits) {
  const double unit = traits.vocabulary_unit;
  return std::ceil(model.vocab_size() / (unit * layout.tensor())) * unit;
}

// Bytes of each score that stay until the backward pass.
double ScoreBytes(const v1::ModelSpec& model, AttentionKernel attention) {
  if (!StoresScores(attention)) return 0;
  const double softmax = attention == AttentionKernel::kUnfused ? kSingle : kHalf;
  return softmax + (model.dropout() > 0 ? 1 + kHalf : 0);
}

double ScoresOfRank(const v1::ModelSpec& model, const v1::Layout& layout) {
  return RowsOfMicroBatch(model, layout) * model.context() * model.heads() / layout.tensor();
}

double LayerParameters(const v1::ModelSpec& model, int tensor) {
  const double h = model.hidden();
  const double queries_keys_values = h * (1 + 2 * KeyShare(model));
  const double f = model.ffn_hidden();
  double divided = h * queries_keys_values + h * h + (IsGated(model) ? 3 : 2) * h * f;
  double whole = 2 * NormParameters(model);
  if (model.bias()) {
    divided += queries_keys_values + f;
    whole += 2 * h;
  }
  return divided / tensor + whole;
}

bool IsLast(const v1::Layout& layout, int stage) { return stage == layout.pipeline() - 1; }

int MicroBatchesInFlight(const v1::Layout& layout, int stage) {
  return std::min(layout.pipeline() - stage, layout.micro_batches());
}

double InputsBetweenSteps(const v1::ModelSpec& model, const v1::Layout& layout, int stage) {
  const int receiving = layout.virtual_pipeline() - (stage == 0 ? 1 : 0);
  if (layout.pipeline() == 1) return 0;
  return receiving * 2 * kHalf * HiddenElements(model, layout);
}

}  // namespace

double ModelStateBytes(double parameters, const StateBytes& bytes, int zero_stage, int ranks) {
  const auto share = [&](int from) { return zero_stage >= from ? 1.0 / ranks : 1.0; };
  return parameters *
         (bytes.weight * share(3) + bytes.gradient * share(2) + bytes.optimizer * share(1));
}

double DeepSpeedEstimate(double parameters, double largest_layer, int ranks,
                         EstimatorOffload offload) {
  double divided = 0;
  switch (offload) {
    case EstimatorOffload::kNone:
      divided = 18;
      break;
    case EstimatorOffload::kOptimizer:
      divided = 2;
      break;
    case EstimatorOffload::kAll:
      break;
  }
  return 4 * largest_layer + divided * parameters / ranks;
}

MemoryTraits TraitsOf(const Recipe& recipe) {
  MemoryTraits traits;
  traits.attention = recipe.attention;
  traits.states.gradient = recipe.gradient_bytes;
  traits.deferred_head_gradients = recipe.deferred_head_gradients;
  return traits;
}

double MegatronWorkspace(bool hopper, bool transformer_engine) {
  const double engine = transformer_engine ? (hopper ? 32 : 4) : 0;
  return kMebibyte * (2 * 32 + engine);
}

double LayersOfRank(const v1::ModelSpec& model, const v1::Layout& layout,
                    const MemoryTraits& traits, int stage) {
  if (stage == 0 && traits.first_layers > 0) return traits.first_layers;
  if (IsLast(layout, stage) && traits.last_layers > 0) return traits.last_layers;
  const int named = (traits.first_layers > 0 ? 1 : 0) + (traits.last_layers > 0 ? 1 : 0);
  return static_cast<double>(model.layers() - traits.first_layers - traits.last_layers) /
         (layout.pipeline() - named);
}

double RankParameters(const v1::ModelSpec& model, const v1::Layout& layout,
                      const MemoryTraits& traits, int stage) {
  const double h = model.hidden();
  const double table = VocabularyOfRank(model, layout, traits) * h;
  double parameters =
      LayersOfRank(model, layout, traits, stage) * LayerParameters(model, layout.tensor());
  if (stage == 0) parameters += table + (traits.has_positions ? h * model.context() : 0);
  if (IsLast(layout, stage)) {
    parameters += NormParameters(model);
    if (stage > 0 || model.untied_head()) parameters += table;
  }
  return parameters;
}

double LayerActivationBytes(const v1::ModelSpec& model, const v1::Layout& layout,
                            const MemoryTraits& traits) {
  const double h = model.hidden();
  if (layout.recompute() == v1::RECOMPUTE_FULL) return kHalf * HiddenElements(model, layout);
  const double masks = model.dropout() > 0 ? 2 : 0;
  const double keys = kHalf * (1 + 2 * KeyShare(model)) * h;
  const double feed_forward = (IsGated(model) ? 3 : 2) * kHalf * model.ffn_hidden();
  double divided = keys + kHalf * h + feed_forward;
  if (traits.norms_queries) divided += kHalf * (1 + KeyShare(model)) * h;
  double scores = 0;
  if (layout.recompute() != v1::RECOMPUTE_SELECTIVE) {
    scores = ScoreBytes(model, traits.attention) * ScoresOfRank(model, layout);
  }
  return HiddenElements(model, layout) * (4 * kHalf + masks) +
         RowsOfMicroBatch(model, layout) * divided / layout.tensor() + scores;
}

double LayersInFlight(const v1::ModelSpec& model, const v1::Layout& layout,
                      const MemoryTraits& traits, int stage) {
  const double layers = LayersOfRank(model, layout, traits, stage);
  const int p = layout.pipeline();
  const int v = std::max(1, layout.virtual_pipeline());
  if (v == 1) return MicroBatchesInFlight(layout, stage) * layers;
  const int group = traits.group > 0 ? traits.group : p;
  const int chunks = 2 * (p - 1 - stage) + (v - 1) * group + 1;
  return std::min(chunks, layout.micro_batches() * v) * layers / v;
}

double EmbeddingBytes(const v1::ModelSpec& model, const v1::Layout& layout,
                      const MemoryTraits& /*traits*/, int stage) {
  if (stage > 0 || model.dropout() == 0) return 0;
  return MicroBatchesInFlight(layout, stage) * HiddenElements(model, layout);
}

double HeadBytes(const v1::ModelSpec& model, const v1::Layout& layout, const MemoryTraits& traits,
                 int stage) {
  if (!IsLast(layout, stage)) return 0;
  const double logits = RowsOfMicroBatch(model, layout) * VocabularyOfRank(model, layout, traits);
  const double hidden = HiddenElements(model, layout);
  const double waiting = traits.deferred_head_gradients * kHalf * (logits + hidden);
  return 2 * kHalf * hidden + (kHalf + kSingle) * logits + waiting;
}

RankMemory MemoryOfRank(const v1::ModelSpec& model, const v1::Layout& layout,
                        const MemoryTraits& traits, int stage) {
  RankMemory memory;
  memory.states =
      ModelStateBytes(RankParameters(model, layout, traits, stage), traits.states,
                      layout.zero_stage(), layout.shard() > 0 ? layout.shard() : layout.data());
  memory.layers =
      LayersInFlight(model, layout, traits, stage) * LayerActivationBytes(model, layout, traits);
  if (layout.recompute() == v1::RECOMPUTE_FULL) {
    v1::Layout again = layout;
    again.set_recompute(v1::RECOMPUTE_NONE);
    memory.recomputed = LayerActivationBytes(model, again, traits);
  }
  memory.embedding = EmbeddingBytes(model, layout, traits, stage);
  memory.head = HeadBytes(model, layout, traits, stage);
  memory.buffers = traits.workspace;
  if (traits.has_score_buffer) memory.buffers += kHalf * ScoresOfRank(model, layout);
  memory.inputs = InputsBetweenSteps(model, layout, stage);
  return memory;
}

}  // namespace tercio::plan::cost
