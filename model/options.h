// What a model is made of: options of its blocks, in sizes of the whole model. Values only; what
// follows from them (tensors, fields, products) is in model/blocks/. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/tensor.h"

namespace tercio::model {

enum class Activation { kGeluTanh, kGelu, kRelu, kSilu };

struct NormOptions {
  bool rms = false;  // RMSNorm (Zhang and Sennrich 2019); else LayerNorm
  bool bias = true;
  bool unit_offset = false;  // multiplies with 1 + weight (Gemma)
  float eps = 1e-5f;
};

// A norm with the name of its tensors, e.g. "attention_norm".
struct Norm {
  std::string name;
  NormOptions options;
};

struct RotaryOptions {
  int64_t width = 0;         // channels of each head that are turned, from its first
  bool interleaved = false;  // pairs (2i, 2i + 1); else (i, i + width / 2)
};

// A bias that is added to the score of query i and key j (Raffel et al. 2020): of each head, by the
// bucket of j - i. Buckets of small distances hold one each, those of larger ones grow up to
// `distance`, from which on all share the last; queries that see keys on both sides give each side
// half of the buckets.
inline constexpr int64_t kMostRelativeBuckets = 256;  // of the kernels of attention
struct RelativeBiasOptions {
  int64_t buckets = 32;
  int64_t distance = 128;
  std::string shared;  // full name of the table (heads x buckets), which several layers share
};

// What is trained beside the frozen products of a block, for parts of their outputs ("query").
//   kLowRank  y += scale * B (A dropout(x)), A rank x inputs, B outputs x rank (Hu et al. 2022)
//   kScaled   y = l * y, elementwise, or, of a product that tensor ranks cut by columns, y of l * x
//             (Liu et al. 2022, "IA3")
enum class AdapterKind { kLowRank, kScaled };
struct AdapterOptions {
  std::vector<std::string> parts;  // empty: the block has none
  AdapterKind kind = AdapterKind::kLowRank;
  int64_t rank = 0;
  float scale = 1;
  float dropout = 0;  // of x
};

// Self-attention with grouped keys (Ainslie et al. 2023): query, key, value, output.
struct AttentionOptions {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t key_heads = 0;
  int64_t head_dim = 0;
  std::optional<RotaryOptions> rotary;
  std::optional<NormOptions> head_norm;  // of each head's query and key, before they are turned
  bool bias = false;                     // of query, key and value
  bool output_bias = false;
  bool causal = true;
  int64_t window = 0;  // keys that a query sees, its own included; 0: all before it
  float softcap = 0;   // scores become cap * tanh(score / cap); 0: as they are
  float scale = 0;     // scores are multiplied by it; 0: 1 / sqrt(head_dim)
  std::optional<RelativeBiasOptions> relative;
  Initialization output_initialization = Initialization::kResidualNormal;
  // Query, key and value are published as one product, whose adapters share A: one part.
  bool joined = false;
  AdapterOptions adapters;
};

// Attention of a stream's rows to those of the model's first stream, all of them (Vaswani et al.
// 2017, section 3.2.3): query of x, key and value of the memory, output.
struct CrossAttentionOptions {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  float scale = 0;  // as in AttentionOptions
  AdapterOptions adapters;
};

// down(f(up x)), or, gated, down(f(gate x) * up x) (Shazeer 2020).
struct MlpOptions {
  int64_t hidden = 0;
  int64_t width = 0;
  Activation activation = Activation::kGeluTanh;
  bool gated = false;
  bool bias = false;
  Initialization output_initialization = Initialization::kResidualNormal;
  bool joined = false;  // gate and up are published as one product: one part for adapters
  AdapterOptions adapters;
};

using BlockOptions = std::variant<AttentionOptions, MlpOptions, CrossAttentionOptions>;

// x + dropout(block(x') + bias), x' = norm(x).
struct Branch {
  std::string name;  // prefix of the block's tensors: "attention", "mlp"
  BlockOptions block;
  // Absent: x' is what the branch before it in the same sublayer reads, or, in the first, x.
  std::optional<Norm> norm;
  // The norm of the result, before it is added (Gemma 2): the block has no bias then, and drops
  // nothing.
  std::optional<Norm> result_norm;
  uint32_t dropout_site = 0;  // kernels/random.h
};

// Branches that all read the same x, and are added to it one after the other.
struct Sublayer {
  std::vector<Branch> branches;
  std::optional<Norm> sum_norm;  // of the sum, which is replaced by it (post-norm)
};

struct Layer {
  std::vector<Sublayer> sublayers;
  int stream = 0;  // of the model, whose rows it works on
};

// A model with several streams has the table of tokens only.
struct EmbeddingOptions {
  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t positions = 0;       // rows of the table of positions; 0: none
  int64_t first_position = 0;  // row of a sequence's first token
  int64_t types = 0;           // rows of the table of token types; 0: none
  std::optional<Norm> norm;    // of the sum
  float scale = 1;             // of the token's row
};

// The vocabulary's logits at every position.
struct LanguageHeadOptions {
  bool bias = false;
  float softcap = 0;
};

// Tokens at chosen positions, behind a transform: dense, GELU, norm (Devlin et al. 2019).
struct MaskedHeadOptions {
  NormOptions norm;
};

// Classes of whole sequences, from the first token through a pooler: dense, tanh, dense.
struct ClassHeadOptions {
  std::string name;  // of the last product: "classifier" or "sentence_order"
  int64_t classes = 0;
  bool drops = false;  // before the last product
};

}  // namespace tercio::model
