#include "worker/blocks/block.h"

#include "absl/strings/str_cat.h"
#include "worker/blocks/attention.h"
#include "worker/blocks/cross_attention.h"
#include "worker/blocks/mlp.h"

namespace tercio::blocks {

kernels::Values Tools::Scratch(const char* name) const {
  return Values(absl::StrCat("workspace.", name));
}

std::unique_ptr<Block> MakeBlock(const model::BlockOptions& options, const WeightFinder& weights,
                                 int layer, int stream, ProductId first, const Tools& tools) {
  if (const auto* attention = std::get_if<model::AttentionOptions>(&options)) {
    return std::make_unique<Attention>(*attention, weights, layer, stream, first, tools);
  }
  if (const auto* cross = std::get_if<model::CrossAttentionOptions>(&options)) {
    return std::make_unique<CrossAttention>(*cross, weights, layer, first, tools);
  }
  return std::make_unique<Mlp>(std::get<model::MlpOptions>(options), weights, layer, first, tools);
}

void BackwardWeight(const MicroBatch& batch, const PassRows& rows, ProductId product,
                    WeightRef weight, WeightRef bias, kernels::ConstValues dy,
                    kernels::ConstValues x, int64_t n, int64_t k, const Tools& tools,
                    GradientLanes& lanes) {
  tools.products.BeginBackward(product, dy, rows.rows);
  lanes.Assign(batch.index, {weight, bias}, tools.ops,
               [&](const plan::LaneSegment& segment, const Gradients& gradients, bool accumulate) {
                 const int64_t row = segment.first_sequence * rows.tokens;
                 tools.products.BackwardWeight(product,
                                               {.dy = dy + row * n,
                                                .x = x + row * k,
                                                .dw = weight.GradientIn(gradients),
                                                .dbias = bias.GradientIn(gradients),
                                                .m = segment.sequences * rows.tokens,
                                                .n = n,
                                                .k = k,
                                                .rows_per_leaf = rows.tokens,
                                                .accumulate = accumulate},
                                               row);
               });
}

}  // namespace tercio::blocks
