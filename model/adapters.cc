#include "model/adapters.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "model/blocks/attention.h"
#include "model/blocks/cross_attention.h"
#include "model/blocks/mlp.h"
#include "model/name_pattern.h"

namespace tercio::model {
namespace {

const Tensor& WeightOf(const BlockDescription& block, const std::string& name) {
  const auto found = std::find_if(block.tensors.begin(), block.tensors.end(),
                                  [&](const Tensor& t) { return t.name == name + ".weight"; });
  TERCIO_CHECK(found != block.tensors.end());
  return *found;
}

AdapterOptions& AdaptersOf(BlockOptions& block) {
  return *std::visit([](auto& options) { return &options.adapters; }, block);
}

bool IsCutByRows(const AdaptablePart& part, const BlockDescription& block) {
  return WeightOf(block, part.weights.front()).cut == Cut::kRows;
}

// A and B, in the order of flat buffers.
std::vector<Tensor> LowRankTensors(const AdaptablePart& part, int64_t rank,
                                   const BlockDescription& block) {
  const bool by_rows = IsCutByRows(part, block);
  std::vector<Tensor> tensors = {
      Matrix(part.name + kLoraA, rank, WeightOf(block, part.weights.front()).columns,
             by_rows ? Cut::kWhole : Cut::kColumns, Initialization::kUniform)};
  tensors.back().partial = by_rows;
  for (const std::string& weight : part.weights) {
    tensors.push_back(Matrix(weight + kLoraB, WeightOf(block, weight).rows, rank,
                             by_rows ? Cut::kRows : Cut::kWhole, Initialization::kZeros));
    tensors.back().partial = !by_rows;
    tensors.back().continues = tensors.size() > 2;
  }
  return tensors;
}

// The factors of outputs, or of inputs.
std::vector<Tensor> ScaledTensors(const AdaptablePart& part, const BlockDescription& block) {
  const bool by_rows = IsCutByRows(part, block);
  std::vector<Tensor> tensors;
  for (const std::string& weight : part.weights) {
    const Tensor& declared = WeightOf(block, weight);
    tensors.push_back(Vector(weight + kIa3, by_rows ? declared.rows : declared.columns, Cut::kRows,
                             Initialization::kOnes));
    tensors.back().continues = tensors.size() > 1;
  }
  return tensors;
}

// The outputs of the parts of each product, on this rank.
std::vector<AdaptedPart> PlacesOf(const std::vector<AdaptablePart>& parts, int tensor,
                                  uint32_t first_site, const BlockDescription& block) {
  std::vector<AdaptedPart> places;
  std::vector<int64_t> outputs(block.products.size());  // so far
  for (size_t i = 0; i < parts.size(); ++i) {
    AdaptedPart place;
    place.name = parts[i].name;
    place.weights = parts[i].weights;
    for (const std::string& weight : parts[i].weights) {
      const Tensor& declared = WeightOf(block, weight);
      place.outputs += declared.cut == Cut::kRows ? declared.rows / tensor : declared.rows;
    }
    int64_t& first = outputs[static_cast<size_t>(parts[i].product)];
    place.first_output = first;
    first += place.outputs;
    place.site = first_site + static_cast<uint32_t>(i);
    places.push_back(std::move(place));
  }
  return places;
}

// What the adapters of a product keep and need besides.
void AddBuffers(const AdapterOptions& options, bool is_last, Product* product,
                BlockDescription* block) {
  const Rows rows = product->of_memory ? Rows::kMemory : Rows::kAll;
  const bool scaled = options.kind == AdapterKind::kScaled;
  int64_t width = 0;  // of the field
  for (const AdaptedPart& part : product->adapted) {
    width += scaled ? part.outputs : options.rank;
    if (scaled || part.outputs < product->outputs) {
      block->scratch.push_back({"adapter_output", rows, part.outputs});
    }
  }
  if (scaled && product->summed == Summed::kForward) {
    block->scratch.back() = {"adapter_input", rows, product->inputs};
    return;
  }
  if (!scaled && options.dropout > 0) {
    block->scratch.push_back({"adapter_input", rows, product->inputs});
  }
  product->adapted_field = static_cast<int>(block->fields.size());
  // Recomputation leaves out a layer's last product.
  block->fields.push_back(
      {"adapted", rows, width, false, is_last ? Kept::kAlways : Kept::kUnlessFull});
  if (!scaled) block->scratch.push_back({"adapter_gradient", rows, width});
}

}  // namespace

std::vector<AdaptablePart> AdaptablePartsOf(const BlockOptions& block) {
  return std::visit([](const auto& options) { return AdaptablePartsOf(options); }, block);
}

std::vector<std::string> AdaptableNames(const Architecture& architecture) {
  std::vector<std::string> names;
  for (const Layer& kind : architecture.kinds) {
    for (const Sublayer& sublayer : kind.sublayers) {
      for (const Branch& branch : sublayer.branches) {
        for (const AdaptablePart& part : AdaptablePartsOf(branch.block)) {
          const std::string name = branch.name + "." + part.name;
          if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
        }
      }
    }
  }
  return names;
}

bool IsTarget(const v1::AdapterSpec& adapter, const std::string& name) {
  return std::any_of(adapter.targets().begin(), adapter.targets().end(),
                     [&](const std::string& target) {
                       return target == kAllLinear || MatchesPattern(name, target);
                     });
}

double LowRankScale(const v1::AdapterSpec& adapter) {
  if (adapter.kind() == v1::ADAPTER_KIND_IA3) return 1;
  const double rank = adapter.rank();
  return adapter.alpha() / (adapter.rslora() ? std::sqrt(rank) : rank);
}

void AddAdapters(const v1::AdapterSpec& adapter, Architecture* architecture) {
  architecture->adapted = true;
  architecture->trained = {adapter.train().begin(), adapter.train().end()};
  for (Layer& kind : architecture->kinds) {
    for (Sublayer& sublayer : kind.sublayers) {
      for (Branch& branch : sublayer.branches) {
        AdapterOptions& options = AdaptersOf(branch.block);
        options.kind =
            adapter.kind() == v1::ADAPTER_KIND_IA3 ? AdapterKind::kScaled : AdapterKind::kLowRank;
        options.rank = adapter.rank();
        options.scale = static_cast<float>(LowRankScale(adapter));
        options.dropout = static_cast<float>(adapter.dropout());
        for (const AdaptablePart& part : AdaptablePartsOf(branch.block)) {
          if (IsTarget(adapter, branch.name + "." + part.name)) options.parts.push_back(part.name);
        }
      }
    }
  }
}

void DescribeAdapters(const AdapterOptions& options, const std::vector<AdaptablePart>& parts,
                      int tensor, uint32_t first_site, BlockDescription* block) {
  if (options.parts.empty()) return;
  const std::vector<AdaptedPart> places = PlacesOf(parts, tensor, first_site, *block);
  for (size_t i = 0; i < parts.size(); ++i) {
    const AdaptablePart& part = parts[i];
    if (std::find(options.parts.begin(), options.parts.end(), part.name) == options.parts.end()) {
      continue;
    }
    std::vector<Tensor> tensors = options.kind == AdapterKind::kScaled
                                      ? ScaledTensors(part, *block)
                                      : LowRankTensors(part, options.rank, *block);
    for (Tensor& added : tensors) {
      added.of_adapter = true;
      block->tensors.push_back(std::move(added));
    }
    block->products[static_cast<size_t>(part.product)].adapted.push_back(places[i]);
  }
  for (Product& product : block->products) {
    if (product.adapted.empty()) continue;
    AddBuffers(options, &product == &block->products.back(), &product, block);
  }
}

}  // namespace tercio::model
