#include "worker/engine/encoder_head.h"

#include <algorithm>
#include <vector>

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
              arena.Floats("classes.loss"),      arena.Get<int32_t>("classes.first_rows")};
  std::vector<int32_t> rows;
  for (int64_t i = 0; i < shape_.sequences; ++i) {
    rows.push_back(static_cast<int32_t>(i * shape_.tokens));
  }
  stream.CopyFromHost(classes_.first_rows, rows.data(),
                      static_cast<int64_t>(rows.size() * sizeof(int32_t)));
}

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
  ops_.Gather({hidden, batch.predicted + chunk.at, at_.rows, rows, c});
  ops_.MatmulGelu({at_.rows, weights_.transform.In(parameters_),
                   weights_.transform_bias.In(parameters_), at_.transform, rows, c, c},
                  {at_.transform, at_.activation, rows, c, traits_.exact_gelu});
  ops_.LayerNorm({at_.activation, weights_.norm.In(parameters_), weights_.norm_bias.In(parameters_),
                  at_.norm, at_.mean, at_.rstd, rows, c, traits_.norm_eps});
  ops_.Matmul({at_.norm, weights_.head.In(parameters_), weights_.head_bias.In(parameters_),
               at_.logits, rows, shape_.vocabulary, c});
}

// Logits of a chunk, its log-sum-exp over all tensor ranks, and its share of the losses.
void EncoderHead::ForwardChunk(const MicroBatch& batch, kernels::ConstValues hidden,
                               const Chunk& chunk, double* losses) {
  LogitsOfChunk(batch, hidden, chunk);
  const int64_t rows = chunk.rows;
  const kernels::LabelSmoothing smoothing = Smoothing(batch, vocabulary_);
  ops_.CrossEntropyLocal({at_.logits, batch.targets + chunk.at, at_.stats, rows, vocabulary_valid_,
                          shape_.vocabulary, vocabulary_begin_, smoothing.amount > 0});
  tensor_group_.AllGather(stream_, at_.stats, at_.all_stats, rows * kernels::kCrossEntropyStats);
  ops_.CrossEntropyCombine(
      {at_.all_stats, at_.lse, at_.loss, rows, tensor_group_.size(), smoothing});
  ops_.AddLosses({at_.loss, losses + chunk.sequence, rows, 0, rows});
}

// After ForwardChunk. `accumulate`: the head's gradient is added to what is there.
void EncoderHead::BackwardChunk(const MicroBatch& batch, const Chunk& chunk,
                                kernels::Values gradient, float* gradients, bool accumulate) {
  const int64_t c = shape_.hidden;
  const int64_t rows = chunk.rows;
  const auto scale =
      static_cast<float>(gradient_scale_ / static_cast<double>(batch.step_predictions));
  ops_.CrossEntropyBackward({at_.logits, at_.lse, batch.targets + chunk.at, rows, vocabulary_valid_,
                             shape_.vocabulary, vocabulary_begin_, scale,
                             Smoothing(batch, vocabulary_)});
  ops_.MatmulBackwardWeight({at_.logits, at_.norm, weights_.head.GradientIn(gradients),
                             weights_.head_bias.GradientIn(gradients), rows, shape_.vocabulary, c,
                             shape_.tokens, accumulate});
  ops_.MatmulBackwardInput(
      {at_.logits, weights_.head.In(parameters_), at_.gradient, rows, shape_.vocabulary, c});
  tensor_group_.AllReduceSum(stream_, at_.gradient, rows * c, collective::SumOrder::kRanks,
                             tensor_scratch_);
  kernels::LayerNormBackwardArgs norm{};
  norm.dy = at_.gradient;
  norm.x = at_.activation;
  norm.weight = weights_.norm.In(parameters_);
  norm.mean = at_.mean;
  norm.rstd = at_.rstd;
  norm.dx = at_.gradient;
  norm.dweight = weights_.norm.GradientIn(gradients);
  norm.dbias = weights_.norm_bias.GradientIn(gradients);
  norm.rows = rows;
  norm.columns = c;
  norm.rows_per_leaf = shape_.tokens;
  ops_.LayerNormBackward(norm);
  ops_.GeluBackward(
      {at_.gradient, at_.transform, at_.transform_gradient, rows, c, traits_.exact_gelu});
  ops_.MatmulBackwardWeight(
      {at_.transform_gradient, at_.rows, weights_.transform.GradientIn(gradients),
       weights_.transform_bias.GradientIn(gradients), rows, c, c, shape_.tokens, true});
  ops_.MatmulBackwardInput(
      {at_.transform_gradient, weights_.transform.In(parameters_), at_.gradient, rows, c, c});
  ops_.ScatterAdd({at_.gradient, batch.predicted + chunk.at, gradient, rows, c});
}

void EncoderHead::BackwardTokens(const MicroBatch& batch, kernels::ConstValues hidden,
                                 kernels::Values gradient, double* losses, GradientLanes& lanes) {
  const auto whole = {weights_.transform, weights_.transform_bias, weights_.norm,
                      weights_.norm_bias};
  const auto zero = [&](const WeightRef& tensor, float* gradients) {
    if (tensor.elements > 0) ops_.Zero(gradients + tensor.gradient, tensor.elements);
  };
  lanes.Assign(batch.index,
               {weights_.head, weights_.head_bias, weights_.transform, weights_.transform_bias,
                weights_.norm, weights_.norm_bias},
               ops_, [&](const plan::LaneSegment& segment, float* gradients, bool accumulate) {
                 if (!accumulate) {
                   for (const WeightRef& tensor : whole) zero(tensor, gradients);
                 }
                 ForChunks(batch, segment.first_sequence, segment.sequences,
                           [&](const Chunk& chunk) {
                             ForwardChunk(batch, hidden, chunk, losses);
                             BackwardChunk(batch, chunk, gradient, gradients, accumulate);
                             accumulate = true;
                           });
                 if (!accumulate) {  // nothing was predicted
                   zero(weights_.head, gradients);
                   zero(weights_.head_bias, gradients);
                 }
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
  ops_.Gather({hidden, classes_.first_rows + first, classes_.first + first * c, count, c});
  ops_.Matmul(
      {classes_.first + first * c, weights_.pooler.In(parameters_), nullptr, pooled, count, c, c});
  ops_.BiasTanh({pooled, weights_.pooler_bias.In(parameters_), count, c});
  ops_.Copy(dropped, pooled, count * c);
  ops_.PositionEmbedding({dropped, nullptr, count, c, 1, 0, DropoutAt(batch, first)});
  ops_.Matmul({dropped, weights_.classes.In(parameters_), weights_.classes_bias.In(parameters_),
               classes_.logits + first * shape_.classes, count, shape_.classes, c});
}

void EncoderHead::ClassLosses(const MicroBatch& batch, int64_t first, int64_t count,
                              double* losses) {
  const kernels::LabelSmoothing smoothing = Smoothing(batch, shape_.classes);
  const int64_t k = shape_.classes;
  float* loss = classes_.loss + first;
  ops_.CrossEntropyLocal({classes_.logits + first * k, batch.labels + first, classes_.stats, count,
                          k, k, 0, smoothing.amount > 0});
  ops_.CrossEntropyCombine({classes_.stats, classes_.lse + first, loss, count, 1, smoothing});
  ops_.AddLosses({loss, losses + first, count, 0, 1});
}

void EncoderHead::BackwardClasses(const MicroBatch& batch, kernels::ConstValues hidden,
                                  kernels::Values gradient, double* losses, GradientLanes& lanes) {
  lanes.Accumulate(
      batch.index, {weights_.pooler, weights_.pooler_bias, weights_.classes, weights_.classes_bias},
      ops_, [&](const plan::LaneSegment& segment, float* gradients) {
        const int64_t first = segment.first_sequence;
        const int64_t count = segment.sequences;
        const int64_t c = shape_.hidden;
        const int64_t k = shape_.classes;
        ForwardClasses(batch, hidden, first, count);
        ClassLosses(batch, first, count, losses);
        const kernels::Values logits = classes_.logits + first * k;
        const kernels::Values d = classes_.gradient + first * c;
        ops_.CrossEntropyBackward({logits, classes_.lse + first, batch.labels + first, count, k, k,
                                   0, static_cast<float>(sequence_scale_ * gradient_scale_),
                                   Smoothing(batch, k)});
        ops_.MatmulBackwardInput({logits, weights_.classes.In(parameters_), d, count, k, c});
        ops_.PositionEmbeddingBackward({d, nullptr, count, c, 1, 0, DropoutAt(batch, first)});
        ops_.TanhBackward({d, classes_.pooled + first * c, d, count * c});
        if (gives_whole_tensors_) {
          ops_.MatmulBackwardWeight(
              {logits, classes_.dropped + first * c, weights_.classes.GradientIn(gradients),
               weights_.classes_bias.GradientIn(gradients), count, k, c, 1, true});
          ops_.MatmulBackwardWeight(
              {d, classes_.first + first * c, weights_.pooler.GradientIn(gradients),
               weights_.pooler_bias.GradientIn(gradients), count, c, c, 1, true});
        }
        const kernels::Values input = classes_.pooled_gradient + first * c;
        ops_.MatmulBackwardInput({d, weights_.pooler.In(parameters_), input, count, c, c});
        ops_.ScatterAdd({input, classes_.first_rows + first, gradient, count, c});
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
  ops_.Zero(gradient, shape_.rows * shape_.hidden);
  if (shape_.masked_head) BackwardTokens(batch, hidden, gradient, losses.tokens, lanes);
  if (shape_.classes > 0) BackwardClasses(batch, hidden, gradient, losses.sequences, lanes);
}

kernels::ConstValues EncoderHead::TokenLogits(const MicroBatch& batch,
                                              kernels::ConstValues hidden) {
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
