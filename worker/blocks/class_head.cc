#include "worker/blocks/class_head.h"

#include "kernels/random.h"

namespace tercio::blocks {

ClassHead::ClassHead(const model::ClassHeadOptions& options, const HeadJob& job,
                     const WeightFinder& weights, const Tools& tools)
    : options_(options),
      job_(job),
      tools_(tools),
      pooler_(weights.Find("pooler.weight")),
      pooler_bias_(weights.Find("pooler.bias")),
      classes_(weights.Find(options.name + ".weight")),
      classes_bias_(weights.Find(options.name + ".bias")),
      at_{tools.Values("classes.first"),           tools.Values("classes.pooled"),
          tools.Values("classes.dropped"),         tools.Values("classes.gradient"),
          tools.Values("classes.pooled_gradient"), tools.Values("classes.logits"),
          tools.arena.Floats("classes.stats"),     tools.arena.Floats("classes.lse"),
          tools.arena.Floats("classes.loss")} {}

// One row for each sequence, hence one token.
kernels::Dropout ClassHead::DropoutOf(const Pass& pass, int64_t first_sequence) const {
  kernels::Dropout dropout = tools_.dropout.At(pass, 0, kernels::kSitePooler, 0);
  if (!options_.drops) dropout.probability = 0;
  dropout.first_sequence += first_sequence;
  dropout.tokens = 1;
  return dropout;
}

void ClassHead::Compute(const Pass& pass, kernels::ConstValues x, int64_t first, int64_t count) {
  const int64_t c = tools_.shape.hidden;
  const kernels::Values pooled = at_.pooled + first * c;
  const kernels::Values dropped = at_.dropped + first * c;
  tools_.ops.Gather({.x = x,
                     .index = pass.batch.first_rows + first,
                     .out = at_.first + first * c,
                     .count = count,
                     .columns = c});
  tools_.ops.Matmul({.x = at_.first + first * c,
                     .w = pooler_.In(tools_.parameters),
                     .bias = nullptr,
                     .y = pooled,
                     .m = count,
                     .n = c,
                     .k = c});
  tools_.ops.BiasTanh(
      {.y = pooled, .bias = pooler_bias_.In(tools_.parameters), .rows = count, .columns = c});
  // The gradient of tanh needs its result as it was before dropout.
  tools_.ops.Copy(dropped, pooled, count * c);
  tools_.ops.PositionEmbedding({.x = dropped,
                                .weight = nullptr,
                                .rows = count,
                                .columns = c,
                                .tokens = 1,
                                .first_row = 0,
                                .dropout = DropoutOf(pass, first)});
  tools_.ops.Matmul({.x = dropped,
                     .w = classes_.In(tools_.parameters),
                     .bias = classes_bias_.In(tools_.parameters),
                     .y = at_.logits + first * options_.classes,
                     .m = count,
                     .n = options_.classes,
                     .k = c});
}

void ClassHead::AddLosses(const Pass& pass, int64_t first, int64_t count, double* losses) {
  const kernels::LabelSmoothing smoothing = SmoothingOf(pass);
  const int64_t k = options_.classes;
  float* loss = at_.loss + first;
  tools_.ops.CrossEntropyLocal({.logits = at_.logits + first * k,
                                .targets = pass.batch.labels + first,
                                .stats = at_.stats,
                                .rows = count,
                                .valid = k,
                                .stride = k,
                                .vocabulary_begin = 0,
                                .sums = smoothing.amount > 0});
  tools_.ops.CrossEntropyCombine({.stats = at_.stats,
                                  .lse = at_.lse + first,
                                  .loss = loss,
                                  .rows = count,
                                  .ranks = 1,
                                  .smoothing = smoothing});
  tools_.ops.AddLosses(
      {.loss = loss, .sums = losses + first, .rows = count, .first_row = 0, .rows_per_sum = 1});
}

// From the losses to the gradient of what tanh has read.
void ClassHead::BackwardPooled(const Pass& pass, int64_t first, int64_t count) {
  const int64_t c = tools_.shape.hidden;
  const int64_t k = options_.classes;
  const kernels::Values logits = at_.logits + first * k;
  const kernels::Values d = at_.gradient + first * c;
  tools_.ops.CrossEntropyBackward({.logits = logits,
                                   .lse = at_.lse + first,
                                   .targets = pass.batch.labels + first,
                                   .rows = count,
                                   .valid = k,
                                   .stride = k,
                                   .vocabulary_begin = 0,
                                   .scale = static_cast<float>(job_.loss_weight * gradient_scale_),
                                   .smoothing = SmoothingOf(pass)});
  tools_.ops.MatmulBackwardInput(
      {.dy = logits, .w = classes_.In(tools_.parameters), .dx = d, .m = count, .n = k, .k = c});
  tools_.ops.PositionEmbeddingBackward({.dx = d,
                                        .dweight = nullptr,
                                        .rows = count,
                                        .columns = c,
                                        .tokens = 1,
                                        .first_row = 0,
                                        .dropout = DropoutOf(pass, first)});
  tools_.ops.TanhBackward({.dy = d, .y = at_.pooled + first * c, .dx = d, .count = count * c});
}

void ClassHead::BackwardWeights(int64_t first, int64_t count, const Gradients& gradients) {
  const int64_t c = tools_.shape.hidden;
  const int64_t k = options_.classes;
  tools_.ops.MatmulBackwardWeight({.dy = at_.logits + first * k,
                                   .x = at_.dropped + first * c,
                                   .dw = classes_.GradientIn(gradients),
                                   .dbias = classes_bias_.GradientIn(gradients),
                                   .m = count,
                                   .n = k,
                                   .k = c,
                                   .rows_per_leaf = 1,
                                   .accumulate = true});
  tools_.ops.MatmulBackwardWeight({.dy = at_.gradient + first * c,
                                   .x = at_.first + first * c,
                                   .dw = pooler_.GradientIn(gradients),
                                   .dbias = pooler_bias_.GradientIn(gradients),
                                   .m = count,
                                   .n = c,
                                   .k = c,
                                   .rows_per_leaf = 1,
                                   .accumulate = true});
}

void ClassHead::Backward(const Pass& pass, kernels::ConstValues x, kernels::Values dx,
                         double* losses, GradientLanes& lanes) {
  const int64_t c = tools_.shape.hidden;
  lanes.Accumulate(pass.batch.index, {pooler_, pooler_bias_, classes_, classes_bias_}, tools_.ops,
                   [&](const plan::LaneSegment& segment, const Gradients& gradients) {
                     const int64_t first = segment.first_sequence;
                     const int64_t count = segment.sequences;
                     Compute(pass, x, first, count);
                     AddLosses(pass, first, count, losses);
                     BackwardPooled(pass, first, count);
                     if (tools_.tensor.gives_whole_tensors())
                       BackwardWeights(first, count, gradients);
                     const kernels::Values input = at_.pooled_gradient + first * c;
                     tools_.ops.MatmulBackwardInput({.dy = at_.gradient + first * c,
                                                     .w = pooler_.In(tools_.parameters),
                                                     .dx = input,
                                                     .m = count,
                                                     .n = c,
                                                     .k = c});
                     tools_.ops.ScatterAdd({.from = input,
                                            .index = pass.batch.first_rows + first,
                                            .to = dx,
                                            .count = count,
                                            .columns = c});
                   });
}

void ClassHead::Loss(const Pass& pass, kernels::ConstValues x, double* losses) {
  Compute(pass, x, 0, tools_.shape.sequences);
  AddLosses(pass, 0, tools_.shape.sequences, losses);
}

kernels::ConstValues ClassHead::Logits(const Pass& pass, kernels::ConstValues x) {
  Compute(pass, x, 0, tools_.shape.sequences);
  return at_.logits;
}

}  // namespace tercio::blocks
