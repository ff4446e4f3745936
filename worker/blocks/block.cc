#include "worker/blocks/block.h"

#include "absl/strings/str_cat.h"
#include "worker/blocks/attention.h"
#include "worker/blocks/mlp.h"

namespace tercio::blocks {

kernels::Values Tools::Scratch(const char* name) const {
  return Values(absl::StrCat("workspace.", name));
}

std::unique_ptr<Block> MakeBlock(const model::BlockOptions& options, const WeightFinder& weights,
                                 int layer, ProductId first, const Tools& tools) {
  if (const auto* attention = std::get_if<model::AttentionOptions>(&options)) {
    return std::make_unique<Attention>(*attention, weights, layer, first, tools);
  }
  return std::make_unique<Mlp>(std::get<model::MlpOptions>(options), weights, first, tools);
}

void BackwardWeight(const Pass& pass, ProductId product, WeightRef weight, WeightRef bias,
                    kernels::ConstValues dy, kernels::ConstValues x, int64_t n, int64_t k,
                    const Tools& tools, GradientLanes& lanes) {
  tools.products.BeginBackward(product, dy, pass.rows);
  lanes.Assign(pass.batch.index, {weight, bias}, tools.ops,
               [&](const plan::LaneSegment& segment, const Gradients& gradients, bool accumulate) {
                 const int64_t row = segment.first_sequence * pass.tokens;
                 tools.products.BackwardWeight(product,
                                               {.dy = dy + row * n,
                                                .x = x + row * k,
                                                .dw = weight.GradientIn(gradients),
                                                .dbias = bias.GradientIn(gradients),
                                                .m = segment.sequences * pass.tokens,
                                                .n = n,
                                                .k = k,
                                                .rows_per_leaf = pass.tokens,
                                                .accumulate = accumulate},
                                               row);
               });
}

}  // namespace tercio::blocks
