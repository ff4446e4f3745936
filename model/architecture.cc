#include "model/architecture.h"

#include <algorithm>
#include <utility>

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

// body(const BlockOptions&) for the blocks of a layer.
template <typename Body>
void ForBlocks(const Layer& layer, const Body& body) {
  for (const Sublayer& sublayer : layer.sublayers) {
    for (const Branch& branch : sublayer.branches) body(branch.block);
  }
}

// The sum over the model's layers of a number that layers of one kind share.
template <typename Number>
double SumOverLayers(const Architecture& architecture, const Number& of_kind) {
  std::vector<double> numbers;
  for (const Layer& kind : architecture.kinds) numbers.push_back(of_kind(kind));
  double sum = 0;
  for (const int kind : architecture.layers) sum += numbers[static_cast<size_t>(kind)];
  return sum;
}

}  // namespace

Architecture ArchitectureOf(const v1::ModelSpec& model) {
  return FactsOf(model.architecture()).describe(model);
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

double WeightsInProducts(const Architecture& architecture) {
  return SumOverLayers(architecture, [&](const Layer& kind) {
    double weights = 0;
    for (const Product& product : Describe(kind, architecture.hidden, 1).products) {
      weights += static_cast<double>(product.outputs) * static_cast<double>(product.inputs);
    }
    return weights;
  });
}

double ElementsTimesKeys(const Architecture& architecture) {
  return SumOverLayers(architecture, [&](const Layer& kind) {
    double products = 0;
    ForBlocks(kind, [&](const BlockOptions& block) {
      const BlockDescription described = Describe(block, 1);
      const int64_t keys = described.most_keys > 0
                               ? std::min(described.most_keys, architecture.context)
                               : architecture.context;
      products += static_cast<double>(described.elements_per_key) * static_cast<double>(keys);
    });
    return products;
  });
}

}  // namespace tercio::model
