#include "model/architecture.h"

#include <algorithm>
#include <utility>

#include "model/adapters.h"
#include "model/architectures/registry.h"
#include "model/layer.h"

namespace tercio::model {
namespace {

void Append(std::vector<Tensor> from, std::vector<Tensor>* to) {
  for (Tensor& tensor : from) to->push_back(std::move(tensor));
}

// From the hidden size, on every tensor rank.
void AddLinear(const std::string& name, int64_t rows, int64_t hidden, std::vector<Tensor>* out) {
  out->push_back(Matrix(name + ".weight", rows, hidden, Cut::kWhole));
  out->push_back(Vector(name + ".bias", rows, Cut::kWhole));
}

std::vector<Tensor> MaskedHeadTensors(const MaskedHeadOptions& head, int64_t hidden,
                                      int64_t vocabulary) {
  std::vector<Tensor> tensors;
  AddLinear("head.transform", hidden, hidden, &tensors);
  Append(TensorsOf(Norm{"head.norm", head.norm}, hidden), &tensors);
  tensors.push_back(Vector("head.bias", vocabulary, Cut::kRows));
  tensors.back().vocabulary = true;
  return tensors;
}

}  // namespace

std::vector<Tensor> EmbeddingTensors(const Architecture& architecture) {
  const EmbeddingOptions& o = architecture.embedding;
  // Rows of the token table are cut as those of the head, so that both can be one tensor.
  std::vector<Tensor> tensors = {Matrix(kTokenTable, o.vocabulary, o.hidden, Cut::kRows)};
  tensors.back().vocabulary = true;
  if (o.positions > 0) {
    tensors.push_back(Matrix("embedding.position.weight", o.positions, o.hidden, Cut::kWhole));
  }
  if (o.types > 0) {
    tensors.push_back(Matrix("embedding.type.weight", o.types, o.hidden, Cut::kWhole));
  }
  if (o.norm.has_value()) Append(TensorsOf(*o.norm, o.hidden), &tensors);
  return tensors;
}

std::vector<Tensor> HeadTensors(const Architecture& architecture) {
  const Head& head = architecture.head;
  const int64_t hidden = architecture.hidden;
  const int64_t vocabulary = architecture.embedding.vocabulary;
  std::vector<Tensor> tensors;
  if (head.norm.has_value()) tensors = TensorsOf(*head.norm, hidden);
  const size_t of_task = tensors.size();
  if (head.masked.has_value()) {
    Append(MaskedHeadTensors(*head.masked, hidden, vocabulary), &tensors);
  }
  if (head.classes.has_value()) {
    AddLinear("pooler", hidden, hidden, &tensors);
    AddLinear(head.classes->name, head.classes->classes, hidden, &tensors);
  }
  for (size_t i = of_task; i < tensors.size(); ++i) tensors[i].of_task = true;
  // A tied head is the token table; listing it twice would save it twice.
  if (head.predicts_tokens() && !head.tied) {
    tensors.push_back(Matrix("head.weight", vocabulary, hidden, Cut::kRows));
    tensors.back().vocabulary = true;
  }
  if (head.language.has_value() && head.language->bias) {
    tensors.push_back(Vector("head.bias", vocabulary, Cut::kRows));
    tensors.back().vocabulary = true;
  }
  return tensors;
}

namespace {

// The sum over the model's layers of a number for each token that layers of one kind share, on
// average over the tokens of a sequence.
template <typename Number>
double SumOverLayers(const Architecture& architecture, const Number& of_kind) {
  std::vector<double> numbers;
  const auto all = static_cast<double>(architecture.tokens_of_sequence());
  for (const Layer& kind : architecture.kinds) {
    const double share = architecture.streams.size() == 1
                             ? 1
                             : static_cast<double>(architecture.stream_of(kind).tokens) / all;
    numbers.push_back(share * of_kind(kind));
  }
  double sum = 0;
  for (const int kind : architecture.layers) sum += numbers[static_cast<size_t>(kind)];
  return sum;
}

}  // namespace

Architecture ArchitectureOf(const v1::ModelSpec& model) {
  Architecture architecture = FactsOf(model.architecture()).describe(model);
  if (model.has_adapter()) AddAdapters(model.adapter(), &architecture);
  return architecture;
}

std::vector<const AttentionOptions*> AttentionsOf(const Architecture& architecture) {
  std::vector<const AttentionOptions*> found;
  for (const Layer& kind : architecture.kinds) {
    ForBlocks(kind, [&](const BlockOptions& block) {
      if (const auto* attention = std::get_if<AttentionOptions>(&block)) found.push_back(attention);
    });
  }
  return found;
}

std::vector<DividedSize> SizesThatTensorDivides(const Architecture& architecture) {
  std::vector<DividedSize> sizes;
  for (const Layer& kind : architecture.kinds) {
    ForBlocks(kind, [&](const BlockOptions& block) {
      const std::vector<DividedSize> divided = Describe(block, 1).divided;
      sizes.insert(sizes.end(), divided.begin(), divided.end());
    });
  }
  return sizes;
}

int LayersOf(const v1::ModelSpec& model) { return model.layers() + model.decoder_layers(); }

double WeightsInProducts(const Architecture& architecture) {
  return SumOverLayers(architecture, [&](const Layer& kind) {
    const auto tokens = static_cast<double>(architecture.stream_of(kind).tokens);
    const auto of_memory = static_cast<double>(architecture.streams.front().tokens);
    double weights = 0;
    for (const Product& product : Describe(kind, architecture.hidden, 1).products) {
      const double rows = product.of_memory ? of_memory / tokens : 1;
      weights += rows * static_cast<double>(product.outputs) * static_cast<double>(product.inputs);
    }
    return weights;
  });
}

double ElementsTimesKeys(const Architecture& architecture, AttentionCount count) {
  return SumOverLayers(architecture, [&](const Layer& kind) {
    double products = 0;
    ForBlocks(kind, [&](const BlockOptions& block) {
      const BlockDescription described = Describe(block, 1);
      const Stream& stream =
          described.reads_memory ? architecture.streams.front() : architecture.stream_of(kind);
      const int64_t keys =
          described.most_keys > 0 ? std::min(described.most_keys, stream.tokens) : stream.tokens;
      const bool half = count == AttentionCount::kCausalHalf && described.causal;
      products += (half ? 0.5 : 1.0) * static_cast<double>(described.elements_per_key) *
                  static_cast<double>(keys);
    });
    return products;
  });
}

}  // namespace tercio::model
