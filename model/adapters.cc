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

LowRankOptions& LowRankOf(BlockOptions& block) {
  return *std::visit([](auto& options) { return &options.low_rank; }, block);
}

// A and B of a part, in the order of flat buffers.
std::vector<Tensor> TensorsOf(const AdaptablePart& part, int64_t rank,
                              const BlockDescription& block) {
  const bool by_rows = WeightOf(block, part.weights.front()).cut == Cut::kRows;
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
  for (Tensor& tensor : tensors) tensor.of_adapter = true;
  return tensors;
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
  const double rank = adapter.rank();
  return adapter.alpha() / (adapter.rslora() ? std::sqrt(rank) : rank);
}

void AddAdapters(const v1::AdapterSpec& adapter, Architecture* architecture) {
  architecture->adapted = true;
  architecture->trained = {adapter.train().begin(), adapter.train().end()};
  for (Layer& kind : architecture->kinds) {
    for (Sublayer& sublayer : kind.sublayers) {
      for (Branch& branch : sublayer.branches) {
        LowRankOptions& options = LowRankOf(branch.block);
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

void DescribeAdapters(const LowRankOptions& options, const std::vector<AdaptablePart>& parts,
                      int tensor, uint32_t first_site, BlockDescription* block) {
  if (options.parts.empty()) return;
  const auto is_adapted = [&](const std::string& name) {
    return std::find(options.parts.begin(), options.parts.end(), name) != options.parts.end();
  };
  std::vector<int64_t> outputs(block->products.size());  // of the parts so far
  for (size_t i = 0; i < parts.size(); ++i) {
    const AdaptablePart& part = parts[i];
    Product& product = block->products[static_cast<size_t>(part.product)];
    AdaptedPart adapted{.name = part.name, .weights = part.weights};
    for (const std::string& weight : part.weights) {
      const Tensor& declared = WeightOf(*block, weight);
      adapted.outputs += declared.cut == Cut::kRows ? declared.rows / tensor : declared.rows;
    }
    int64_t& first = outputs[static_cast<size_t>(part.product)];
    adapted.first_output = first;
    first += adapted.outputs;
    adapted.site = first_site + static_cast<uint32_t>(i);
    if (!is_adapted(part.name)) continue;
    for (Tensor& added : TensorsOf(part, options.rank, *block)) {
      block->tensors.push_back(std::move(added));
    }
    const Rows rows = product.of_memory ? Rows::kMemory : Rows::kAll;
    if (adapted.outputs < product.outputs) {
      block->scratch.push_back({"adapter_output", rows, adapted.outputs});
    }
    if (options.dropout > 0) block->scratch.push_back({"adapter_input", rows, product.inputs});
    product.adapted.push_back(std::move(adapted));
  }
  for (Product& product : block->products) {
    if (product.adapted.empty()) continue;
    const Rows rows = product.of_memory ? Rows::kMemory : Rows::kAll;
    const int64_t width = options.rank * static_cast<int64_t>(product.adapted.size());
    // Recomputation leaves out a layer's last product.
    const bool is_last = &product == &block->products.back();
    product.adapted_field = static_cast<int>(block->fields.size());
    block->fields.push_back(
        {"adapted", rows, width, false, is_last ? Kept::kAlways : Kept::kUnlessFull});
    block->scratch.push_back({"adapter_gradient", rows, width});
  }
}

}  // namespace tercio::model
