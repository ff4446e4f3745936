#include "worker/engine/encoder_head.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/random.h"

namespace tercio::engine {

EncoderHead::EncoderHead(const v1::JobSpec& spec, const plan::StageShape& shape,
                         const plan::ModelTraits& traits, const OutputWeights& weights,
                         int tensor_index, kernels::ConstValues parameters, Arena& arena,
                         device::Stream& stream, collective::Communicator& tensor_group)
    : shape_(shape),
      traits_(traits),
      weights_(weights),
      gives_whole_tensors_(!shape.sequence_parallel || tensor_index == 0),
      smoothing_(static_cast<float>(spec.training().label_smoothing())),
      dropout_(static_cast<float>(spec.model().dropout())),
      seed_(spec.training().seed()),
      vocabulary_(spec.model().vocab_size()),
      vocabulary_begin_(tensor_index * shape.vocabulary),
      vocabulary_valid_(
          std::clamp<int64_t>(vocabulary_ - tensor_index * shape.vocabulary, 0, shape.vocabulary)),
      sequence_scale_(1.0 / static_cast<double>(spec.training().global_batch())),
      parameters_(parameters),
      stream_(stream),
      ops_(stream.ops()),
      tensor_group_(tensor_group),
      tensor_scratch_(arena.Floats("tensor_scratch")) {
  const auto values = [&](const char* name) { return arena.ValuesOf(name, shape.precision); };
  if (shape_.masked_head) {
    at_ = {values("head.rows"),
           values("head.transform"),
           values("head.activation"),
           values("head.norm"),
           values("head.gradient"),
           values("head.transform_gradient"),
           values("head.logits"),
           arena.Floats("head.norm_mean"),
           arena.Floats("head.norm_rstd"),
           arena.Floats("head.stats"),
           arena.Floats("head.all_stats"),
           arena.Floats("head.lse"),
           arena.Floats("head.loss")};
  }
  if (shape_.classes == 0) return;
  classes_ = {values("classes.first"),           values("classes.pooled"),
              values("classes.dropped"),         values("classes.gradient"),
              values("classes.pooled_gradient"), values("classes.logits"),
              arena.Floats("classes.stats"),     arena.Floats("classes.lse"),
              arena.Floats("classes.loss")};
}

// No chunk holds rows of two sequences. So the rows of a
// sum do not depend on which sequences share a micro-batch.
template <typename Body>
void EncoderHead::ForChunks(const MicroBatch& batch, int64_t first_sequence, int64_t sequences,
                            const Body& body) const {
  for (int64_t i = first_sequence; i < first_sequence + sequences; ++i) {
    const int64_t count = batch.predicted_counts[i];
    for (int64_t begin = 0; begin < count; begin += shape_.chunk_rows) {
      body(Chunk{i, i * shape_.tokens + begin, std::min(shape_.chunk_rows, count - begin)});
    }
  }
}

void EncoderHead::LogitsOfChunk(const MicroBatch& batch, kernels::ConstValues hidden,
                                const Chunk& chunk) {
  const int64_t c = shape_.hidden;
  const int64_t rows = chunk.rows;
  ops_.Gather({.x = hidden,
               .index = batch.predicted + chunk.at,
               .out = at_.rows,
               .count = rows,
               .columns = c});
  ops_.RunChain({.product = kernels::MatmulArgs{.x = at_.rows,
                                                .w = weights_.transform.In(parameters_),
                                                .bias = weights_.transform_bias.In(parameters_),
                                                .y = at_.transform,
                                                .m = rows,
                                                .n = c,
                                                .k = c},
                 .activation = kernels::ActivationArgs{
                     .h = at_.transform,
                     .g = at_.activation,
                     .rows = rows,
                     .columns = c,
                     .function = traits_.exact_gelu ? kernels::Activation::kGelu
                                                    : kernels::Activation::kGeluTanh}});
  ops_.LayerNorm({.x = at_.activation,
                  .weight = weights_.norm.In(parameters_),
                  .bias = weights_.norm_bias.In(parameters_),
                  .y = at_.norm,
                  .mean = at_.mean,
                  .rstd = at_.rstd,
                  .rows = rows,
                  .columns = c,
                  .eps = traits_.norm_eps});
  ops_.Matmul({.x = at_.norm,
               .w = weights_.head.In(parameters_),
               .bias = weights_.head_bias.In(parameters_),
               .y = at_.logits,
               .m = rows,
               .n = shape_.vocabulary,
               .k = c});
}

// Logits of a chunk, its log-sum-exp over all tensor ranks, and its share of the losses.
void EncoderHead::ForwardChunk(const MicroBatch& batch, kernels::ConstValues hidden,
                               const Chunk& chunk, double* losses) {
  LogitsOfChunk(batch, hidden, chunk);
  const int64_t rows = chunk.rows;
  const kernels::LabelSmoothing smoothing = Smoothing(batch, vocabulary_);
  ops_.CrossEntropyLocal({.logits = at_.logits,
                          .targets = batch.targets + chunk.at,
                          .stats = at_.stats,
                          .rows = rows,
                          .valid = vocabulary_valid_,
                          .stride = shape_.vocabulary,
                          .vocabulary_begin = vocabulary_begin_,
                          .sums = smoothing.amount > 0});
  tensor_group_.AllGather(stream_, at_.stats, at_.all_stats, rows * kernels::kCrossEntropyStats);
  ops_.CrossEntropyCombine({.stats = at_.all_stats,
                            .lse = at_.lse,
                            .loss = at_.loss,
                            .rows = rows,
                            .ranks = tensor_group_.size(),
                            .smoothing = smoothing});
  ops_.AddLosses({.loss = at_.loss,
                  .sums = losses + chunk.sequence,
                  .rows = rows,
                  .first_row = 0,
                  .rows_per_sum = rows});
}

// After ForwardChunk. `accumulate`: the head's gradient is added to what is there.
void EncoderHead::BackwardChunk(const MicroBatch& batch, const Chunk& chunk,
                                kernels::Values gradient, const Gradients& gradients,
                                bool accumulate) {
  const int64_t c = shape_.hidden;
  const int64_t rows = chunk.rows;
  const double weight = gradient_scale_ / static_cast<double>(batch.step_predictions);
  ops_.CrossEntropyBackward({.logits = at_.logits,
                             .lse = at_.lse,
                             .targets = batch.targets + chunk.at,
                             .rows = rows,
                             .valid = vocabulary_valid_,
                             .stride = shape_.vocabulary,
                             .vocabulary_begin = vocabulary_begin_,
                             .scale = static_cast<float>(weight),
                             .smoothing = Smoothing(batch, vocabulary_)});
  ops_.MatmulBackwardWeight({.dy = at_.logits,
                             .x = at_.norm,
                             .dw = weights_.head.GradientIn(gradients),
                             .dbias = weights_.head_bias.GradientIn(gradients),
                             .m = rows,
                             .n = shape_.vocabulary,
                             .k = c,
                             .rows_per_leaf = shape_.tokens,
                             .accumulate = accumulate});
  ops_.MatmulBackwardInput({.dy = at_.logits,
                            .w = weights_.head.In(parameters_),
                            .dx = at_.gradient,
                            .m = rows,
                            .n = shape_.vocabulary,
                            .k = c});
  tensor_group_.AllReduceSum(stream_, at_.gradient, rows * c, collective::SumOrder::kRanks,
                             tensor_scratch_);
  ops_.LayerNormBackward({.dy = at_.gradient,
                          .x = at_.activation,
                          .weight = weights_.norm.In(parameters_),
                          .mean = at_.mean,
                          .rstd = at_.rstd,
                          .dx = at_.gradient,
                          .dweight = weights_.norm.GradientIn(gradients),
                          .dbias = weights_.norm_bias.GradientIn(gradients),
                          .rows = rows,
                          .columns = c,
                          .rows_per_leaf = shape_.tokens});
  ops_.ActivateBackward({.dg = at_.gradient,
                         .h = at_.transform,
                         .dh = at_.transform_gradient,
                         .rows = rows,
                         .columns = c,
                         .function = traits_.exact_gelu ? kernels::Activation::kGelu
                                                        : kernels::Activation::kGeluTanh});
  ops_.MatmulBackwardWeight({.dy = at_.transform_gradient,
                             .x = at_.rows,
                             .dw = weights_.transform.GradientIn(gradients),
                             .dbias = weights_.transform_bias.GradientIn(gradients),
                             .m = rows,
                             .n = c,
                             .k = c,
                             .rows_per_leaf = shape_.tokens,
                             .accumulate = true});
  ops_.MatmulBackwardInput({.dy = at_.transform_gradient,
                            .w = weights_.transform.In(parameters_),
                            .dx = at_.gradient,
                            .m = rows,
                            .n = c,
                            .k = c});
  ops_.ScatterAdd({.from = at_.gradient,
                   .index = batch.predicted + chunk.at,
                   .to = gradient,
                   .count = rows,
                   .columns = c});
}

void EncoderHead::BackwardTokens(const MicroBatch& batch, kernels::ConstValues hidden,
                                 kernels::Values gradient, double* losses, GradientLanes& lanes) {
  // Chunks only add to these, so they must be zero where a lane starts. The head's gradient is
  // overwritten by the lane's first chunk instead, which spares zeroing the largest tensor.
  const auto whole = {weights_.transform, weights_.transform_bias, weights_.norm,
                      weights_.norm_bias};
  const auto zero = [&](const WeightRef& tensor, const Gradients& gradients) {
    if (tensor.elements > 0) ops_.Zero(tensor.GradientIn(gradients), tensor.elements);
  };
  lanes.Assign(
      batch.index,
      {weights_.head, weights_.head_bias, weights_.transform, weights_.transform_bias,
       weights_.norm, weights_.norm_bias},
      ops_, [&](const plan::LaneSegment& segment, const Gradients& gradients, bool accumulate) {
        if (!accumulate) {
          for (const WeightRef& tensor : whole) zero(tensor, gradients);
        }
        ForChunks(batch, segment.first_sequence, segment.sequences, [&](const Chunk& chunk) {
          ForwardChunk(batch, hidden, chunk, losses);
          BackwardChunk(batch, chunk, gradient, gradients, accumulate);
          accumulate = true;
        });
        if (!accumulate) {  // nothing was predicted
          zero(weights_.head, gradients);
          zero(weights_.head_bias, gradients);
        }
        // These copies are summed over tensor ranks later:
        // the same gradient must not count more than once.
        if (gives_whole_tensors_) return;
        for (const WeightRef& tensor : whole) zero(tensor, gradients);
      });
}

// One row for each sequence, hence one token.
kernels::Dropout EncoderHead::DropoutAt(const MicroBatch& batch, int64_t first_sequence) const {
  kernels::Dropout dropout;
  // Classification drops before its last product (as Devlin et al.); sentence order does not.
  dropout.probability = batch.training && !shape_.masked_head ? dropout_ : 0.0f;
  dropout.seed = seed_;
  dropout.step = static_cast<uint64_t>(batch.step);
  dropout.site = kernels::kSitePooler;
  dropout.first_sequence = batch.first_sequence + first_sequence;
  dropout.tokens = 1;
  return dropout;
}

void EncoderHead::ForwardClasses(const MicroBatch& batch, kernels::ConstValues hidden,
                                 int64_t first, int64_t count) {
  const int64_t c = shape_.hidden;
  const kernels::Values pooled = classes_.pooled + first * c;
  const kernels::Values dropped = classes_.dropped + first * c;
  ops_.Gather({.x = hidden,
               .index = batch.first_rows + first,
               .out = classes_.first + first * c,
               .count = count,
               .columns = c});
  ops_.Matmul({.x = classes_.first + first * c,
               .w = weights_.pooler.In(parameters_),
               .bias = nullptr,
               .y = pooled,
               .m = count,
               .n = c,
               .k = c});
  ops_.BiasTanh(
      {.y = pooled, .bias = weights_.pooler_bias.In(parameters_), .rows = count, .columns = c});
  // The gradient of tanh needs its result as it was before dropout.
  ops_.Copy(dropped, pooled, count * c);
  ops_.PositionEmbedding({.x = dropped,
                          .weight = nullptr,
                          .rows = count,
                          .columns = c,
                          .tokens = 1,
                          .first_row = 0,
                          .dropout = DropoutAt(batch, first)});
  ops_.Matmul({.x = dropped,
               .w = weights_.classes.In(parameters_),
               .bias = weights_.classes_bias.In(parameters_),
               .y = classes_.logits + first * shape_.classes,
               .m = count,
               .n = shape_.classes,
               .k = c});
}

void EncoderHead::ClassLosses(const MicroBatch& batch, int64_t first, int64_t count,
                              double* losses) {
  const kernels::LabelSmoothing smoothing = Smoothing(batch, shape_.classes);
  const int64_t k = shape_.classes;
  float* loss = classes_.loss + first;
  ops_.CrossEntropyLocal({.logits = classes_.logits + first * k,
                          .targets = batch.labels + first,
                          .stats = classes_.stats,
                          .rows = count,
                          .valid = k,
                          .stride = k,
                          .vocabulary_begin = 0,
                          .sums = smoothing.amount > 0});
  ops_.CrossEntropyCombine({.stats = classes_.stats,
                            .lse = classes_.lse + first,
                            .loss = loss,
                            .rows = count,
                            .ranks = 1,
                            .smoothing = smoothing});
  ops_.AddLosses(
      {.loss = loss, .sums = losses + first, .rows = count, .first_row = 0, .rows_per_sum = 1});
}

void EncoderHead::BackwardClasses(const MicroBatch& batch, kernels::ConstValues hidden,
                                  kernels::Values gradient, double* losses, GradientLanes& lanes) {
  lanes.Accumulate(
      batch.index, {weights_.pooler, weights_.pooler_bias, weights_.classes, weights_.classes_bias},
      ops_, [&](const plan::LaneSegment& segment, const Gradients& gradients) {
        const int64_t first = segment.first_sequence;
        const int64_t count = segment.sequences;
        const int64_t c = shape_.hidden;
        const int64_t k = shape_.classes;
        ForwardClasses(batch, hidden, first, count);
        ClassLosses(batch, first, count, losses);
        const kernels::Values logits = classes_.logits + first * k;
        const kernels::Values d = classes_.gradient + first * c;
        ops_.CrossEntropyBackward({.logits = logits,
                                   .lse = classes_.lse + first,
                                   .targets = batch.labels + first,
                                   .rows = count,
                                   .valid = k,
                                   .stride = k,
                                   .vocabulary_begin = 0,
                                   .scale = static_cast<float>(sequence_scale_ * gradient_scale_),
                                   .smoothing = Smoothing(batch, k)});
        ops_.MatmulBackwardInput({.dy = logits,
                                  .w = weights_.classes.In(parameters_),
                                  .dx = d,
                                  .m = count,
                                  .n = k,
                                  .k = c});
        ops_.PositionEmbeddingBackward({.dx = d,
                                        .dweight = nullptr,
                                        .rows = count,
                                        .columns = c,
                                        .tokens = 1,
                                        .first_row = 0,
                                        .dropout = DropoutAt(batch, first)});
        ops_.TanhBackward({.dy = d, .y = classes_.pooled + first * c, .dx = d, .count = count * c});
        if (gives_whole_tensors_) {
          ops_.MatmulBackwardWeight({.dy = logits,
                                     .x = classes_.dropped + first * c,
                                     .dw = weights_.classes.GradientIn(gradients),
                                     .dbias = weights_.classes_bias.GradientIn(gradients),
                                     .m = count,
                                     .n = k,
                                     .k = c,
                                     .rows_per_leaf = 1,
                                     .accumulate = true});
          ops_.MatmulBackwardWeight({.dy = d,
                                     .x = classes_.first + first * c,
                                     .dw = weights_.pooler.GradientIn(gradients),
                                     .dbias = weights_.pooler_bias.GradientIn(gradients),
                                     .m = count,
                                     .n = c,
                                     .k = c,
                                     .rows_per_leaf = 1,
                                     .accumulate = true});
        }
        const kernels::Values input = classes_.pooled_gradient + first * c;
        ops_.MatmulBackwardInput({.dy = d,
                                  .w = weights_.pooler.In(parameters_),
                                  .dx = input,
                                  .m = count,
                                  .n = c,
                                  .k = c});
        ops_.ScatterAdd({.from = input,
                         .index = batch.first_rows + first,
                         .to = gradient,
                         .count = count,
                         .columns = c});
      });
}

void EncoderHead::Loss(const MicroBatch& batch, kernels::ConstValues hidden,
                       const LossSums& losses) {
  if (shape_.masked_head) {
    ForChunks(batch, 0, shape_.sequences,
              [&](const Chunk& chunk) { ForwardChunk(batch, hidden, chunk, losses.tokens); });
  }
  if (shape_.classes == 0) return;
  ForwardClasses(batch, hidden, 0, shape_.sequences);
  ClassLosses(batch, 0, shape_.sequences, losses.sequences);
}

void EncoderHead::Backward(const MicroBatch& batch, kernels::ConstValues hidden,
                           kernels::Values gradient, const LossSums& losses, GradientLanes& lanes) {
  // Both heads add to the few rows that they have read.
  const int64_t tokens = batch.tokens > 0 ? batch.tokens : shape_.tokens;
  ops_.Zero(gradient, shape_.sequences * tokens * shape_.hidden);
  if (shape_.masked_head) BackwardTokens(batch, hidden, gradient, losses.tokens, lanes);
  if (shape_.classes > 0) BackwardClasses(batch, hidden, gradient, losses.sequences, lanes);
}

kernels::ConstValues EncoderHead::TokenLogits(const MicroBatch& batch,
                                              kernels::ConstValues hidden) {
  // A second chunk would overwrite the logits of the first.
  TERCIO_CHECK_LE(batch.predicted_counts[0], shape_.chunk_rows);
  LogitsOfChunk(batch, hidden, {0, 0, batch.predicted_counts[0]});
  return at_.logits;
}

kernels::ConstValues EncoderHead::ClassLogits(const MicroBatch& batch,
                                              kernels::ConstValues hidden) {
  ForwardClasses(batch, hidden, 0, shape_.sequences);
  return classes_.logits;
}

}  // namespace tercio::engine
