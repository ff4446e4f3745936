#include "worker/blocks/adapters.h"

#include <string>

#include "kernels/random.h"

namespace tercio::blocks {
namespace {

// Masks are drawn for four neighbouring channels at a time, so that each rank begins with such
// four.
int64_t FirstChannel(const model::Product& product, const Tools& tools) {
  if (product.summed == model::Summed::kBackward) return 0;
  return tools.tensor.index() * ((product.inputs + 3) / 4 * 4);
}

}  // namespace

Adapters::Adapters(const model::LowRankOptions& options, ProductId product,
                   const WeightFinder& weights, int layer, const Tools& tools)
    : options_(options),
      product_(tools.products.DeclarationOf(product)),
      layer_(layer),
      tools_(tools),
      first_channel_(FirstChannel(product_, tools)) {
  for (const model::AdaptedPart& adapted : product_.adapted) {
    Part part{};
    part.a = weights.Find(adapted.name + model::kLoraA);
    for (const std::string& weight : adapted.weights) {
      const WeightRef b = weights.Find(weight + model::kLoraB);
      if (part.b.elements == 0) {
        part.b = b;
      } else {
        part.b.elements += b.elements;
      }
    }
    part.first_output = adapted.first_output;
    part.outputs = adapted.outputs;
    part.site = adapted.site;
    parts_.push_back(part);
  }
  if (parts_.empty()) return;
  gradient_ = tools.Scratch("adapter_gradient");
  if (options_.dropout > 0) input_ = tools.Scratch("adapter_input");
  if (!IsWhole(parts_.front())) output_ = tools.Scratch("adapter_output");
}

kernels::Values Adapters::KeptOf(const Pass& pass, const Frame& frame, size_t part) const {
  return frame.Values(product_.adapted_field) +
         static_cast<int64_t>(part) * pass.rows * options_.rank;
}

kernels::Values Adapters::GradientOf(const Pass& pass, size_t part) const {
  return gradient_ + static_cast<int64_t>(part) * pass.rows * options_.rank;
}

kernels::Dropout Adapters::DropoutOf(const Pass& pass, const Part& part, int64_t first_row) const {
  const DropoutSource source{options_.dropout, kernels::AdapterSeed(tools_.dropout.seed)};
  return source.At(pass, layer_, part.site, first_row);
}

kernels::ConstValues Adapters::InputOf(const Pass& pass, const Part& part,
                                       const plan::RowPiece& piece, kernels::ConstValues x) {
  if (!Drops(pass)) return x;
  tools_.ops.Columns({.from = x,
                      .from_stride = product_.inputs,
                      .to = input_,
                      .to_stride = product_.inputs,
                      .rows = piece.count,
                      .columns = product_.inputs,
                      .dropout = DropoutOf(pass, part, piece.first),
                      .first_channel = first_channel_});
  return input_;
}

void Adapters::Forward(const Pass& pass, const Frame& frame, const plan::RowPiece& piece,
                       kernels::ConstValues x, kernels::Values y) {
  const int64_t rank = options_.rank;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const kernels::Values kept = KeptOf(pass, frame, i) + piece.first * rank;
    tools_.ops.Matmul({.x = InputOf(pass, part, piece, x),
                       .w = part.a.In(tools_.parameters),
                       .bias = nullptr,
                       .y = kept,
                       .m = piece.count,
                       .n = rank,
                       .k = product_.inputs});
    // Scaled here, where it is smallest; the gradient of B reads it so.
    tools_.ops.Scale(kept, options_.scale, piece.count * rank);
    const bool whole = IsWhole(part);
    tools_.ops.Matmul({.x = kept,
                       .w = part.b.In(tools_.parameters),
                       .bias = nullptr,
                       .y = whole ? y : output_,
                       .m = piece.count,
                       .n = part.outputs,
                       .k = rank,
                       .accumulate = whole});
    if (whole) continue;
    tools_.ops.Columns({.from = output_,
                        .from_stride = part.outputs,
                        .to = y + part.first_output,
                        .to_stride = product_.outputs,
                        .rows = piece.count,
                        .columns = part.outputs,
                        .accumulate = true});
  }
}

void Adapters::BackwardWeights(const Pass& pass, const Frame& frame, kernels::ConstValues x,
                               kernels::ConstValues dy, GradientLanes& lanes) {
  const int64_t rank = options_.rank;
  const int64_t inputs = product_.inputs;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    kernels::ConstValues of_part = dy;
    if (!IsWhole(part)) {
      tools_.ops.Columns({.from = dy + part.first_output,
                          .from_stride = product_.outputs,
                          .to = output_,
                          .to_stride = part.outputs,
                          .rows = pass.rows,
                          .columns = part.outputs});
      of_part = output_;
    }
    const kernels::Values gradient = GradientOf(pass, i);
    tools_.ops.MatmulBackwardInput({.dy = of_part,
                                    .w = part.b.In(tools_.parameters),
                                    .dx = gradient,
                                    .m = pass.rows,
                                    .n = part.outputs,
                                    .k = rank});
    tools_.ops.Scale(gradient, options_.scale, pass.rows * rank);
    const kernels::ConstValues kept = KeptOf(pass, frame, i);
    const kernels::ConstValues input = InputOf(pass, part, {0, pass.rows}, x);
    lanes.Assign(
        pass.batch.index, {part.a, part.b}, tools_.ops,
        [&](const plan::LaneSegment& segment, const Gradients& gradients, bool accumulate) {
          const int64_t row = segment.first_sequence * pass.tokens;
          const int64_t rows = segment.sequences * pass.tokens;
          tools_.ops.MatmulBackwardWeight({.dy = gradient + row * rank,
                                           .x = input + row * inputs,
                                           .dw = part.a.GradientIn(gradients),
                                           .m = rows,
                                           .n = rank,
                                           .k = inputs,
                                           .rows_per_leaf = pass.tokens,
                                           .accumulate = accumulate});
          tools_.ops.MatmulBackwardWeight({.dy = of_part + row * part.outputs,
                                           .x = kept + row * rank,
                                           .dw = part.b.GradientIn(gradients),
                                           .m = rows,
                                           .n = part.outputs,
                                           .k = rank,
                                           .rows_per_leaf = pass.tokens,
                                           .accumulate = accumulate});
        });
  }
}

void Adapters::BackwardInput(const Pass& pass, const plan::RowPiece& piece, kernels::Values dx) {
  const int64_t inputs = product_.inputs;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const bool drops = Drops(pass);
    tools_.ops.MatmulBackwardInput({.dy = GradientOf(pass, i) + piece.first * options_.rank,
                                    .w = part.a.In(tools_.parameters),
                                    .dx = drops ? input_ : dx,
                                    .m = piece.count,
                                    .n = options_.rank,
                                    .k = inputs,
                                    .accumulate = !drops});
    if (!drops) continue;
    tools_.ops.Columns({.from = input_,
                        .from_stride = inputs,
                        .to = dx,
                        .to_stride = inputs,
                        .rows = piece.count,
                        .columns = inputs,
                        .accumulate = true,
                        .dropout = DropoutOf(pass, part, piece.first),
                        .first_channel = first_channel_});
  }
}

}  // namespace tercio::blocks
