#include "worker/blocks/chosen_adapter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "model/adapters.h"
#include "model/architecture.h"
#include "model/layer.h"

namespace tercio::blocks {
namespace {

// visit(product, its block's name), in the order of ProductIds.
template <typename Visit>
void ForProducts(const v1::ModelSpec& model, const Visit& visit) {
  const model::Architecture architecture = model::ArchitectureOf(model);
  for (int layer = 0; layer < static_cast<int>(architecture.layers.size()); ++layer) {
    for (const model::Sublayer& sublayer : architecture.layer(layer).sublayers) {
      for (const model::Branch& branch : sublayer.branches) {
        const std::string block = absl::StrCat("layers.", layer, ".", branch.name);
        for (const model::Product& product : model::Describe(branch.block, 1).products) {
          visit(product, block);
        }
      }
    }
  }
}

bool IsLowRank(const v1::ModelSpec& model) {
  return model.adapter().kind() != v1::ADAPTER_KIND_IA3;
}

// As Adapters has it: of IA3, a product that tensor ranks would cut by columns.
bool ScalesInputOf(const v1::ModelSpec& model, const model::Product& product) {
  return !IsLowRank(model) && !product.adapted.empty() && product.summed == model::Summed::kForward;
}

}  // namespace

void ChosenAdapter::Widths::Cover(const Widths& other) {
  kept = std::max(kept, other.kept);
  output = std::max(output, other.output);
  input = std::max(input, other.input);
}

ChosenAdapter::Widths ChosenAdapter::WidthsOf(const v1::ModelSpec& adapted) {
  Widths widths;
  ForProducts(adapted, [&](const model::Product& product, const std::string&) {
    if (ScalesInputOf(adapted, product)) return widths.Cover({.input = product.inputs});
    for (const model::AdaptedPart& part : product.adapted) {
      if (!IsLowRank(adapted)) {
        widths.Cover({.kept = part.outputs});
        continue;
      }
      const bool whole = part.outputs == product.outputs;
      widths.Cover({.kept = adapted.adapter().rank(), .output = whole ? 0 : part.outputs});
    }
  });
  return widths;
}

ChosenAdapter::ChosenAdapter(const v1::ModelSpec& adapted, const plan::StageTensors& tensors,
                             kernels::ConstValues values, const Scratch& scratch)
    : is_low_rank_(IsLowRank(adapted)),
      rank_(adapted.adapter().rank()),
      scale_(static_cast<float>(model::LowRankScale(adapted.adapter()))),
      values_(values),
      scratch_(scratch) {
  const WeightFinder all(tensors);
  ForProducts(adapted, [&](const model::Product& product, const std::string& block) {
    AdaptedProduct& added = products_.emplace_back();
    added.inputs = product.inputs;
    added.outputs = product.outputs;
    added.scales_input = ScalesInputOf(adapted, product);
    for (const model::AdaptedPart& part : product.adapted) {
      added.parts.push_back(FindAdapterTensors(part, all.Under(block)));
    }
  });
}

void ChosenAdapter::ScaleInput(ProductId product, kernels::ConstValues x, kernels::Values scaled,
                               int64_t rows, kernels::Ops& ops) const {
  const AdaptedProduct& of = Of(product);
  TERCIO_CHECK(of.scales_input);
  blocks::ScaleInput(x, of.parts.front().factors.In(values_), scaled, rows, of.inputs, ops);
}

void ChosenAdapter::ChangeOutput(ProductId product, kernels::ConstValues x, kernels::Values y,
                                 int64_t rows, kernels::Ops& ops) const {
  const AdaptedProduct& of = Of(product);
  for (int64_t row = 0; row < rows; row += scratch_.rows) {
    const int64_t count = std::min(scratch_.rows, rows - row);
    for (const AdapterTensors& part : of.parts) {
      if (!is_low_rank_) {
        ScaleOutput({.y = y + row * of.outputs,
                     .factors = part.factors.In(values_),
                     .kept = scratch_.kept,
                     .rows = count,
                     .outputs = part.outputs,
                     .first = part.first_output,
                     .stride = of.outputs},
                    ops);
        continue;
      }
      AddLowRank({.x = x + row * of.inputs,
                  .a = part.a.In(values_),
                  .b = part.b.In(values_),
                  .y = y + row * of.outputs,
                  .kept = scratch_.kept,
                  .output = scratch_.output,
                  .rows = count,
                  .inputs = of.inputs,
                  .rank = rank_,
                  .outputs = part.outputs,
                  .first = part.first_output,
                  .stride = of.outputs,
                  .scale = scale_},
                 ops);
    }
  }
}

}  // namespace tercio::blocks
