// Parts that several architectures are made of, with the sizes of a ModelSpec. Pure.
#pragma once

#include "model/architecture.h"
#include "model/options.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::model {

// The spec's epsilon, or `otherwise`.
NormOptions LayerNormOf(const v1::ModelSpec& model, double otherwise = 1e-5);
NormOptions RmsNormOf(const v1::ModelSpec& model, double otherwise = 1e-5);

// Biases everywhere or nowhere, as the spec says; no positions.
AttentionOptions AttentionOf(const v1::ModelSpec& model);
RotaryOptions RotaryOf(const v1::ModelSpec& model);
MlpOptions MlpOf(const v1::ModelSpec& model, Activation usual);

// Without norms.
Branch AttentionBranch(const AttentionOptions& attention);
Branch MlpBranch(const MlpOptions& mlp);

// x + attention(norm(x)), then x + mlp(norm(x)).
Layer PreNormLayer(const NormOptions& norm, const AttentionOptions& attention,
                   const MlpOptions& mlp);
// norm(x + attention(x)), then norm(x + mlp(x)): Vaswani et al. 2017. Its residual sums do not grow
// with the depth, so that its last products begin like all others.
Layer PostNormLayer(const NormOptions& norm, AttentionOptions attention, MlpOptions mlp);

// x + attention(y) + mlp(y), y = norm(x) (Wang and Komatsuzaki 2021), or, with a second norm,
// x + attention(norm(x)) + mlp(second norm(x)) (Black et al. 2022).
enum class ParallelNorms { kOne, kTwo };
Layer ParallelLayer(const NormOptions& norm, ParallelNorms norms, const AttentionOptions& attention,
                    const MlpOptions& mlp);

// Llama's attention and feed-forward part: rotary positions, a gate with SiLU.
AttentionOptions RotaryAttentionOf(const v1::ModelSpec& model);
MlpOptions GatedMlpOf(const v1::ModelSpec& model);

// Sizes, the token table, and `layers` times the layer; a language model's tied or untied head
// behind the norm.
Architecture RepeatedLayer(const v1::ModelSpec& model, const Layer& layer);
Head LanguageHead(const v1::ModelSpec& model, const NormOptions& norm);

// Llama but for its attention, and for its feed-forward part.
Architecture LlamaWith(const v1::ModelSpec& model, const AttentionOptions& attention);
Architecture LlamaWith(const v1::ModelSpec& model, const AttentionOptions& attention,
                       const MlpOptions& mlp);

}  // namespace tercio::model
