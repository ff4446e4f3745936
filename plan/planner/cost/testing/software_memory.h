// What training programs other than Tercio keep in the memory of one GPU, by the formulas that were
// published for them; only tests use it, to compare published tables and measurements. Tercio's own
// memory is plan/memory_map.h. Pure. All results are bytes, as doubles, since formulas divide.
//
// Sources: Rajbhandari et al. 2020, "ZeRO", table 1; Korthikanti et al. 2022, "Reducing Activation
// Recomputation in Large Transformer Models", equations 1 to 6 and table 2; Narayanan et al. 2021,
// section 2.2 (interleaving); Megatron-LM, megatron/training/theoretical_memory_usage.py and
// megatron/core (what else it keeps; at each constant).
//
// Symbols: s tokens of a sequence on a rank, b sequences of a micro-batch, h hidden, f width of the
// feed-forward part, a heads, k key and value heads, V vocabulary (padded), L layers, t tensor
// ranks, p stages, v chunks of a stage, m micro-batches, d data ranks.
#pragma once

#include "plan/planner/cost/recipe.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan::cost {

// Bytes of each parameter.
struct StateBytes {
  double weight = 2;
  double gradient = 4;
  double optimizer = 12;  // fp32 weights and both moments
};
inline constexpr StateBytes kZeroPaper = {2, 2, 12};
inline constexpr StateBytes kMegatronStates = {2, 4, 12};

// ZeRO, table 1: stage 1 divides the optimizer's bytes by `ranks`, 2 the gradients' as well, 3 all.
// Megatron's distributed optimizer is stage 1: 6 + 12/d.
double ModelStateBytes(double parameters, const StateBytes& bytes, int zero_stage, int ranks);

// DeepSpeed's estimator of stage 3 (docs/code-docs/source/memory.rst): 18 bytes divided, and the
// largest layer whole, in 4. Offloaded: of the optimizer 2 bytes stay, of both nothing.
enum class EstimatorOffload { kNone, kOptimizer, kAll };
double DeepSpeedEstimate(double parameters, double largest_layer, int ranks,
                         EstimatorOffload offload);

// What differs between programs, beside the model and the layout.
struct MemoryTraits {
  // Unfused attention keeps the fp32 result of softmax, fused softmax one in 16 bits; both also a
  // mask of dropout and what it leaves (5 a s, equation 1). Kernels of one pass keep no scores.
  AttentionKernel attention = AttentionKernel::kFlash2;
  StateBytes states = kMegatronStates;
  // A table of positions, which tensor ranks do not divide.
  bool has_positions = true;
  // What goes into norms of queries and keys is kept beside what comes out (qk_layernorm).
  bool norms_queries = false;
  // Megatron Core's own attention (transformer_impl: local) has its scores made in one buffer that
  // stays (megatron/core/transformer/dot_product_attention.py, "mpu").
  bool has_score_buffer = false;
  // Recipe::deferred_head_gradients: logits' gradients and the head's inputs of so many
  // micro-batches wait (megatron/core/utils.py, drain_embedding_wgrad_compute).
  int deferred_head_gradients = 0;
  // Micro-batches of a group in the interleaved order; 0: p.
  int group = 0;
  // Layers of the first and of the last stage; 0: L/p.
  int first_layers = 0;
  int last_layers = 0;
  // The vocabulary is padded to a multiple of this times t.
  int vocabulary_unit = 128;
  double workspace = 0;
};
// Attention, bytes of gradients and deferred gradients are the recipe's.
MemoryTraits TraitsOf(const Recipe& recipe);

// PyTorch has a cuBLAS workspace for the thread of forward passes, and one for autograd's. Each has
// 32 MiB: by CUBLAS_WORKSPACE_CONFIG=:4096:8 in Megatron's tests, and by default on Hopper
// (PyTorch, CublasHandlePool.cpp). Transformer Engine has one more, of 32 MiB from Hopper on and 4
// before (get_cublas_workspace_size_bytes).
double MegatronWorkspace(bool hopper, bool transformer_engine);

// Layers of a stage. Where the first or the last has others, the rest divide what is left.
double LayersOfRank(const v1::ModelSpec& model, const v1::Layout& layout,
                    const MemoryTraits& traits, int stage);

// Parameters of a tensor rank of the stage: t divides matrices and biases of their rows, not norms,
// biases behind sums and positions. The table is on the first stage and, tied or not, on the last.
double RankParameters(const v1::ModelSpec& model, const v1::Layout& layout,
                      const MemoryTraits& traits, int stage);

// One layer and micro-batch, equations 1 to 4 and table 2, for general shapes:
//   not divided, or by t with sequence_parallel: s b h (8 + 2 masks of dropout)
//   divided by t: s b (h (2 + 4k/a) + 2h + 4f + scores), 6f with a gate (gate, up, product)
// RECOMPUTE_SELECTIVE keeps no scores, RECOMPUTE_FULL keeps 2 s b h.
double LayerActivationBytes(const v1::ModelSpec& model, const v1::Layout& layout,
                            const MemoryTraits& traits);

// Layers times micro-batches whose activations the stage has at once. 1F1B: min(p - stage, m) of
// L/p. Interleaved: chunks of L/(pv), 2 (p - 1 - stage) + (v - 1) group + 1 of at most m v.
double LayersInFlight(const v1::ModelSpec& model, const v1::Layout& layout,
                      const MemoryTraits& traits, int stage);

// Beside layers: on the first stage the mask of the embedding's dropout of each micro-batch in
// flight, s b h; on the last, for one micro-batch, input and result of the final norm, 4 s b h, and
// logits in 16 bits and fp32, 6 s b V/t (megatron/core/tensor_parallel/cross_entropy.py).
double EmbeddingBytes(const v1::ModelSpec& model, const v1::Layout& layout,
                      const MemoryTraits& traits, int stage);
double HeadBytes(const v1::ModelSpec& model, const v1::Layout& layout, const MemoryTraits& traits,
                 int stage);

struct RankMemory {
  double states = 0;
  double layers = 0;      // activations
  double recomputed = 0;  // of the layer that is computed again
  double embedding = 0;
  double head = 0;
  double buffers = 0;  // that stay: workspace, scores
  // Between steps a chunk that receives keeps its last input, and the gradient of it
  // (megatron/core/transformer/transformer_block.py, set_input_tensor): 4 s b h each.
  double inputs = 0;

  // The loss and a layer that is computed again have their room one after the other.
  double peak() const {
    return states + layers + embedding + buffers + (head > recomputed ? head : recomputed);
  }
  double between_steps() const { return states + buffers + inputs; }
};
RankMemory MemoryOfRank(const v1::ModelSpec& model, const v1::Layout& layout,
                        const MemoryTraits& traits, int stage);

}  // namespace tercio::plan::cost
