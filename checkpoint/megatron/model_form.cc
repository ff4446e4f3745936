#include "checkpoint/megatron/model_form.h"

#include "model/architecture.h"

namespace tercio::checkpoint {
namespace {

const char* WhatAttentionLacks(const model::AttentionOptions& attention) {
  if (attention.head_norm.has_value()) return "norms of queries and keys";
  if (attention.window > 0) return "a sliding window";
  if (attention.softcap > 0 || attention.scale > 0) return "scaled or capped scores";
  if (attention.bias != attention.output_bias) return "biases in parts of attention only";
  if (!attention.rotary.has_value()) return nullptr;
  if (attention.rotary->width != attention.head_dim) return "rotary positions of a part of a head";
  return attention.rotary->interleaved ? "interleaved rotary positions" : nullptr;
}

const char* WhatBranchLacks(const model::Branch& branch) {
  if (branch.result_norm.has_value()) return "norms of a branch's result";
  if (const auto* attention = std::get_if<model::AttentionOptions>(&branch.block)) {
    return WhatAttentionLacks(*attention);
  }
  const auto& mlp = std::get<model::MlpOptions>(branch.block);
  const bool usual = mlp.gated ? mlp.activation == model::Activation::kSilu
                               : mlp.activation == model::Activation::kGelu ||
                                     mlp.activation == model::Activation::kGeluTanh;
  return usual ? nullptr : "this activation";
}

const char* WhatFormLacks(const model::Architecture& architecture) {
  if (architecture.kinds.size() > 1) return "layers of different kinds";
  for (const model::Sublayer& sublayer : architecture.kinds.front().sublayers) {
    if (sublayer.branches.size() > 1) return "parallel branches";
    if (const char* lacks = WhatBranchLacks(sublayer.branches.front())) return lacks;
  }
  if (architecture.embedding.first_position > 0)
    return "positions that begin behind a table's start";
  if (architecture.embedding.scale != 1) return "scaled embeddings";
  const model::Head& head = architecture.head;
  if (head.language.has_value() && head.language->bias) return "a bias of the head";
  return head.language.has_value() && head.language->softcap > 0 ? "capped logits" : nullptr;
}

// Megatron-LM's layers are all of one kind, and have each kind of block once.
void AddBlocks(const model::Layer& layer, MegatronForm* form) {
  for (const model::Sublayer& sublayer : layer.sublayers) {
    form->post_norm |= sublayer.sum_norm.has_value();
    const std::optional<model::Norm>& norm =
        sublayer.sum_norm.has_value() ? sublayer.sum_norm : sublayer.branches.front().norm;
    form->rms_norm |= norm.has_value() && norm->options.rms;
    for (const model::Branch& branch : sublayer.branches) {
      if (const auto* mlp = std::get_if<model::MlpOptions>(&branch.block)) {
        form->gated_mlp = mlp->gated;
        form->exact_gelu = mlp->activation == model::Activation::kGelu;
      }
    }
  }
}

}  // namespace

MegatronForm MegatronFormOf(const v1::ModelSpec& spec) {
  const model::Architecture architecture = model::ArchitectureOf(spec);
  MegatronForm form;
  form.learned_positions = architecture.embedding.positions > 0;
  form.token_types = architecture.embedding.types;
  form.causal = architecture.causal;
  form.tied_head = architecture.head.tied;
  form.predicts_tokens = architecture.head.predicts_tokens();
  form.norm_eps = spec.norm_eps() > 0 ? spec.norm_eps() : architecture.causal ? 1e-5 : 1e-12;
  form.lacks = WhatFormLacks(architecture);
  AddBlocks(architecture.kinds.front(), &form);
  const model::AttentionOptions& attention = *model::AttentionsOf(architecture).front();
  form.kv_heads = attention.key_heads;
  form.head_dim = attention.head_dim;
  return form;
}

}  // namespace tercio::checkpoint
