#include "worker/blocks/masked_head.h"

#include <algorithm>

#include "common/check.h"

namespace tercio::blocks {

MaskedHead::MaskedHead(const model::MaskedHeadOptions& options, const HeadJob& job,
                       const WeightFinder& weights, const Tools& tools, device::Stream& stream)
    : norm_(options.norm),
      tools_(tools),
      job_(job),
      stream_(stream),
      part_(PartOfVocabulary(job.vocabulary, tools)),
      weight_(weights.HeadMatrix()),
      bias_(weights.Find("head.bias")),
      transform_(weights.Find("head.transform.weight")),
      transform_bias_(weights.Find("head.transform.bias")),
      norm_weight_(weights.Find("head.norm.weight")),
      norm_bias_(weights.Find("head.norm.bias")),
      at_{tools.Values("head.rows"),
          tools.Values("head.transform"),
          tools.Values("head.activation"),
          tools.Values("head.norm"),
          tools.Values("head.gradient"),
          tools.Values("head.transform_gradient"),
          tools.arena.Floats("head.norm_mean"),
          tools.arena.Floats("head.norm_rstd")} {}

// No chunk holds rows of two sequences. So the rows of a
// sum do not depend on which sequences share a micro-batch.
template <typename Body>
void MaskedHead::ForChunks(const Pass& pass, int64_t first_sequence, int64_t sequences,
                           const Body& body) const {
  const int64_t most = tools_.shape.chunk_rows;
  for (int64_t i = first_sequence; i < first_sequence + sequences; ++i) {
    const int64_t count = pass.batch.predicted_counts[i];
    for (int64_t begin = 0; begin < count; begin += most) {
      body(Chunk{i, i * tools_.shape.head_stream().tokens + begin, std::min(most, count - begin)});
    }
  }
}

void MaskedHead::LogitsOfChunk(const Pass& pass, kernels::ConstValues x, const Chunk& chunk) {
  const int64_t c = tools_.shape.hidden;
  const int64_t rows = chunk.rows;
  tools_.ops.Gather({.x = x,
                     .index = pass.batch.predicted + chunk.at,
                     .out = at_.rows,
                     .count = rows,
                     .columns = c});
  tools_.ops.RunChain(
      {.product = kernels::MatmulArgs{.x = at_.rows,
                                      .w = transform_.In(tools_.parameters),
                                      .bias = transform_bias_.In(tools_.parameters),
                                      .y = at_.transform,
                                      .m = rows,
                                      .n = c,
                                      .k = c},
       .activation = kernels::ActivationArgs{.h = at_.transform,
                                             .g = at_.activation,
                                             .rows = rows,
                                             .columns = c,
                                             .function = kernels::Activation::kGelu}});
  tools_.ops.LayerNorm({.x = at_.activation,
                        .weight = norm_weight_.In(tools_.parameters),
                        .bias = norm_bias_.In(tools_.parameters),
                        .y = at_.norm,
                        .mean = at_.mean,
                        .rstd = at_.rstd,
                        .rows = rows,
                        .columns = c,
                        .eps = norm_.eps});
  tools_.ops.Matmul({.x = at_.norm,
                     .w = weight_.In(tools_.parameters),
                     .bias = bias_.In(tools_.parameters),
                     .y = part_.logits,
                     .m = rows,
                     .n = tools_.shape.vocabulary,
                     .k = c});
}

TokenRows MaskedHead::RowsOf(const Pass& pass, const Chunk& chunk, double* losses) const {
  TokenRows rows = RowsOfVocabulary(part_, job_, pass, tools_);
  rows.targets = pass.batch.targets + chunk.at;
  rows.sums = losses + chunk.sequence;
  rows.rows = chunk.rows;
  rows.first_row = 0;
  rows.rows_per_sum = chunk.rows;
  return rows;
}

void MaskedHead::BackwardChunk(const Pass& pass, const Chunk& chunk, kernels::Values dx,
                               const Gradients& gradients, bool accumulate) {
  const int64_t c = tools_.shape.hidden;
  const int64_t rows = chunk.rows;
  tools_.ops.MatmulBackwardWeight({.dy = part_.logits,
                                   .x = at_.norm,
                                   .dw = weight_.GradientIn(gradients),
                                   .dbias = bias_.GradientIn(gradients),
                                   .m = rows,
                                   .n = tools_.shape.vocabulary,
                                   .k = c,
                                   .rows_per_leaf = tools_.shape.head_stream().tokens,
                                   .accumulate = accumulate});
  tools_.ops.MatmulBackwardInput({.dy = part_.logits,
                                  .w = weight_.In(tools_.parameters),
                                  .dx = at_.gradient,
                                  .m = rows,
                                  .n = tools_.shape.vocabulary,
                                  .k = c});
  tools_.tensor.communicator().AllReduceSum(stream_, at_.gradient, rows * c,
                                            collective::SumOrder::kRanks, tools_.tensor.scratch());
  BackwardTransform(chunk, gradients);
  tools_.ops.ScatterAdd({.from = at_.gradient,
                         .index = pass.batch.predicted + chunk.at,
                         .to = dx,
                         .count = rows,
                         .columns = c});
}

// Turns the gradient of the norm's result into that of the gathered rows, in place.
void MaskedHead::BackwardTransform(const Chunk& chunk, const Gradients& gradients) {
  const int64_t c = tools_.shape.hidden;
  tools_.ops.LayerNormBackward({.dy = at_.gradient,
                                .x = at_.activation,
                                .weight = norm_weight_.In(tools_.parameters),
                                .mean = at_.mean,
                                .rstd = at_.rstd,
                                .dx = at_.gradient,
                                .dweight = norm_weight_.GradientIn(gradients),
                                .dbias = norm_bias_.GradientIn(gradients),
                                .rows = chunk.rows,
                                .columns = c,
                                .rows_per_leaf = tools_.shape.head_stream().tokens});
  tools_.ops.ActivateBackward({.dg = at_.gradient,
                               .h = at_.transform,
                               .dh = at_.transform_gradient,
                               .rows = chunk.rows,
                               .columns = c,
                               .function = kernels::Activation::kGelu});
  tools_.ops.MatmulBackwardWeight({.dy = at_.transform_gradient,
                                   .x = at_.rows,
                                   .dw = transform_.GradientIn(gradients),
                                   .dbias = transform_bias_.GradientIn(gradients),
                                   .m = chunk.rows,
                                   .n = c,
                                   .k = c,
                                   .rows_per_leaf = tools_.shape.head_stream().tokens,
                                   .accumulate = true});
  tools_.ops.MatmulBackwardInput({.dy = at_.transform_gradient,
                                  .w = transform_.In(tools_.parameters),
                                  .dx = at_.gradient,
                                  .m = chunk.rows,
                                  .n = c,
                                  .k = c});
}

void MaskedHead::Loss(const Pass& pass, kernels::ConstValues x, double* losses) {
  ForChunks(pass, 0, tools_.shape.sequences, [&](const Chunk& chunk) {
    LogitsOfChunk(pass, x, chunk);
    TokenLosses(tools_.ops, stream_, tools_.tensor.communicator(), RowsOf(pass, chunk, losses));
  });
}

void MaskedHead::Backward(const Pass& pass, kernels::ConstValues x, kernels::Values dx,
                          double* losses, GradientLanes& lanes) {
  // Chunks only add to these, so they must be zero where a lane starts. The head's gradient is
  // overwritten by the lane's first chunk instead, which spares zeroing the largest tensor.
  const auto whole = {transform_, transform_bias_, norm_weight_, norm_bias_};
  const auto zero = [&](const WeightRef& tensor, const Gradients& gradients) {
    if (tensor.has_gradient()) tools_.ops.Zero(tensor.GradientIn(gradients), tensor.elements);
  };
  const auto scale =
      static_cast<float>(gradient_scale_ / static_cast<double>(pass.batch.step_predictions));
  lanes.Assign(pass.batch.index,
               {weight_, bias_, transform_, transform_bias_, norm_weight_, norm_bias_}, tools_.ops,
               [&](const plan::LaneSegment& segment, const Gradients& gradients, bool accumulate) {
                 if (!accumulate) {
                   for (const WeightRef& tensor : whole) zero(tensor, gradients);
                 }
                 ForChunks(
                     pass, segment.first_sequence, segment.sequences, [&](const Chunk& chunk) {
                       LogitsOfChunk(pass, x, chunk);
                       TokenLossesAndGradients(tools_.ops, stream_, tools_.tensor.communicator(),
                                               RowsOf(pass, chunk, losses), scale);
                       BackwardChunk(pass, chunk, dx, gradients, accumulate);
                       accumulate = true;
                     });
                 if (!accumulate) {  // nothing was predicted
                   zero(weight_, gradients);
                   zero(bias_, gradients);
                 }
                 if (tools_.tensor.gives_whole_tensors()) return;
                 for (const WeightRef& tensor : whole) zero(tensor, gradients);
               });
}

kernels::ConstValues MaskedHead::Logits(const Pass& pass, kernels::ConstValues x) {
  // A second chunk would overwrite the logits of the first.
  TERCIO_CHECK_LE(pass.batch.predicted_counts[0], tools_.shape.chunk_rows);
  LogitsOfChunk(pass, x, {0, 0, pass.batch.predicted_counts[0]});
  return part_.logits;
}

}  // namespace tercio::blocks
