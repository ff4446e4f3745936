// A model as a list of units: what is computed, reduced and recomputed together. Everything that is
// known of a model before the first buffer (tensors, memory, products, FLOPs, which layouts divide
// it) follows from this value. Pure.
//
//   unit 0             the embedding
//   units 1 .. L       layers 0 .. L-1
//   unit L + 1         the head: final norm, predictions
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/description.h"
#include "model/options.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::model {

struct Head {
  std::optional<Norm> norm;  // of the last layer's output
  std::optional<LanguageHeadOptions> language;
  std::optional<MaskedHeadOptions> masked;
  std::optional<ClassHeadOptions> classes;
  bool tied = true;       // the matrix of the vocabulary is the token table
  float input_scale = 1;  // the norm's result is multiplied by it

  bool predicts_tokens() const { return language.has_value() || masked.has_value(); }
  // Whether the token table has a second use here.
  bool reads_token_table() const { return tied && predicts_tokens(); }
};

// A sequence of rows on its way through the layers: an encoder's, a decoder's. The layers of a
// stream follow those of the streams before it, and all streams begin in the embedding.
struct Stream {
  int64_t tokens = 0;  // of a sequence
};

struct Architecture {
  int64_t hidden = 0;
  std::vector<Stream> streams;  // the last one is the head's
  EmbeddingOptions embedding;
  // The different layers of the model, and which of them each layer is: most models repeat one.
  std::vector<Layer> kinds;
  std::vector<int> layers;
  Head head;
  // Whether every token of the head's stream is predicted from those before it. Else the tokens of
  // a sequence all see each other, sequences may be padded, and the data says what is predicted.
  bool causal = true;
  // With adapters, which are trained, as are the tensors that one of these patterns describes. All
  // others are frozen.
  bool adapted = false;
  std::vector<std::string> trained;
  // Whether keys of randomness are a tensor's place in the model, as in the first architectures.
  // Keys of all others follow from names, and stay when a model gets further tensors.
  bool keys_by_place = false;

  const Layer& layer(int i) const {
    return kinds[static_cast<size_t>(layers[static_cast<size_t>(i)])];
  }
  const Stream& stream_of(const Layer& layer) const {
    return streams[static_cast<size_t>(layer.stream)];
  }
  // All streams together.
  int64_t tokens_of_sequence() const {
    int64_t tokens = 0;
    for (const Stream& stream : streams) tokens += stream.tokens;
    return tokens;
  }
};

// The token table, and every other tensor outside the layers, with full names.
inline constexpr char kTokenTable[] = "embedding.token.weight";
std::vector<Tensor> EmbeddingTensors(const Architecture& architecture);
std::vector<Tensor> HeadTensors(const Architecture& architecture);

// REQUIRES: a supported architecture, and sizes that passed CheckModel or come from a plan.
Architecture ArchitectureOf(const v1::ModelSpec& model);

// body(const BlockOptions&) for the blocks of a layer.
template <typename Body>
void ForBlocks(const Layer& layer, const Body& body) {
  for (const Sublayer& sublayer : layer.sublayers) {
    for (const Branch& branch : sublayer.branches) body(branch.block);
  }
}

std::vector<DividedSize> SizesThatTensorDivides(const Architecture& architecture);

// All layers of the model, those of a decoder included.
int LayersOf(const v1::ModelSpec& model);

// The weights that a token is multiplied with in the layers, without attention's own products; on
// average over the tokens of a sequence.
double WeightsInProducts(const Architecture& architecture);

// Options of all attention of the model, once for each kind of layer that has some.
std::vector<const AttentionOptions*> AttentionsOf(const Architecture& architecture);

// How the products of causal attention count: all of them (12 l h s), or the half that its mask
// leaves (6 l h s; planner formulas, Megatron convention).
enum class AttentionCount { kWhole, kCausalHalf };

// Elements that attention multiplies with each of the keys that a token sees, summed over all
// layers times those keys (all of the sequence, or those of a window); on average over the tokens
// of a sequence.
double ElementsTimesKeys(const Architecture& architecture, AttentionCount count);

}  // namespace tercio::model
