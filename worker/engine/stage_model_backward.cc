// The backward pass of a stage (stage_model.h).

#include <algorithm>

#include "kernels/random.h"
#include "worker/engine/stage_model.h"
#include "worker/engine/token_losses.h"

namespace tercio::engine {

StageModel::LocalRows StageModel::LocalPart(const plan::LaneSegment& segment) const {
  const int64_t first = segment.first_sequence * extent_.tokens;
  const int64_t begin = std::max(first, extent_.first_local_row);
  const int64_t end = std::min(first + segment.sequences * extent_.tokens,
                               extent_.first_local_row + extent_.local_rows);
  return {begin - extent_.first_local_row, std::max<int64_t>(0, end - begin)};
}

void StageModel::BackwardEncoderHead(const MicroBatch& batch, kernels::Values flow,
                                     const LossSums& losses, GradientLanes& lanes) {
  encoder_head_->Backward(batch, GatherRows(LastRows(batch.slot)), norm_gradient_, losses, lanes);
  const kernels::Values mine = norm_gradient_ + extent_.first_local_row * shape_.hidden;
  if (shape_.post_norm) return ops_.Copy(flow, mine, extent_.local_rows * shape_.hidden);
  BackwardNorm(batch, weights_.output.final_norm, weights_.output.final_norm_bias, mine,
               Output(batch.slot), FloatsAt(batch.slot, slot_layout_.final_mean),
               FloatsAt(batch.slot, slot_layout_.final_rstd), flow, FlowChange::kReplace, lanes);
}

void StageModel::BackwardHead(const MicroBatch& batch, kernels::Values flow, double* losses,
                              GradientLanes& lanes) {
  const kernels::ConstValues normed = GatherRows(FinalNorm(batch.slot));
  const auto scale = static_cast<float>(loss_weight_ * gradient_scale_);
  lanes.Assign(batch.index, {weights_.output.head}, ops_,
               [&](const plan::LaneSegment& segment, const Gradients& gradients, bool accumulate) {
                 ForChunks(segment.first_sequence, segment.sequences, [&](const Chunk& chunk) {
                   Logits(batch, chunk.row, chunk.rows);
                   TokenLossesAndGradients(ops_, stream_, tensor_group_,
                                           RowsOf(batch, chunk, losses), scale);
                   ops_.MatmulBackwardWeight({.dy = logits_,
                                              .x = normed + chunk.row * shape_.hidden,
                                              .dw = weights_.output.head.GradientIn(gradients),
                                              .dbias = nullptr,
                                              .m = chunk.rows,
                                              .n = shape_.vocabulary,
                                              .k = shape_.hidden,
                                              .rows_per_leaf = chunk.rows_per_leaf,
                                              .accumulate = accumulate});
                   accumulate = true;
                   ops_.MatmulBackwardInput({.dy = logits_,
                                             .w = weights_.output.head.In(parameters_),
                                             .dx = norm_gradient_ + chunk.row * shape_.hidden,
                                             .m = chunk.rows,
                                             .n = shape_.vocabulary,
                                             .k = shape_.hidden});
                 });
               });
  BackwardNorm(batch, weights_.output.final_norm, weights_.output.final_norm_bias,
               SumRows(norm_gradient_, extent_.rows), Output(batch.slot),
               FloatsAt(batch.slot, slot_layout_.final_mean),
               FloatsAt(batch.slot, slot_layout_.final_rstd), flow, FlowChange::kReplace, lanes);
}

void StageModel::BackwardNorm(const MicroBatch& batch, WeightRef weight, WeightRef bias,
                              kernels::ConstValues dy, kernels::ConstValues x, const float* mean,
                              const float* rstd, kernels::Values flow, FlowChange change,
                              GradientLanes& lanes) {
  lanes.Accumulate(batch.index, {weight, bias}, ops_,
                   [&](const plan::LaneSegment& segment, const Gradients& gradients) {
                     const LocalRows part = LocalPart(segment);
                     if (part.count == 0) return;
                     const int64_t at = part.begin * shape_.hidden;
                     ops_.LayerNormBackward({.dy = dy + at,
                                             .x = x + at,
                                             .weight = weight.In(parameters_),
                                             .mean = mean + part.begin,
                                             .rstd = rstd + part.begin,
                                             .dx = flow + at,
                                             .dweight = weight.GradientIn(gradients),
                                             .dbias = bias.GradientIn(gradients),
                                             .rows = part.count,
                                             .columns = shape_.hidden,
                                             .rows_per_leaf = extent_.tokens,
                                             .accumulate = change == FlowChange::kAdd,
                                             .rms = traits_.rms_norm});
                   });
}

kernels::ConstValues StageModel::BackwardResidual(const MicroBatch& batch, int layer, uint32_t site,
                                                  WeightRef bias, kernels::ConstValues flow,
                                                  GradientLanes& lanes) {
  const bool dropped = batch.training && dropout_ > 0;
  lanes.Accumulate(
      batch.index, {bias}, ops_, [&](const plan::LaneSegment& segment, const Gradients& gradients) {
        const LocalRows part = LocalPart(segment);
        if (part.count == 0) return;
        const int64_t at = part.begin * shape_.hidden;
        ops_.ResidualBackward(
            {.dout = flow + at,
             .dbranch = dropped ? branch_gradient_ + at : nullptr,
             .dbias = bias.GradientIn(gradients),
             .rows = part.count,
             .columns = shape_.hidden,
             .rows_per_leaf = extent_.tokens,
             .dropout = DropoutAt(batch, layer, site, extent_.first_local_row + part.begin)});
      });
  return GatherRows(dropped ? kernels::ConstValues(branch_gradient_) : flow);
}

void StageModel::BackwardWeight(const MicroBatch& batch, LinearLayers::Part part, WeightRef weight,
                                WeightRef bias, kernels::ConstValues dy, kernels::ConstValues x,
                                int64_t n, int64_t k, GradientLanes& lanes) {
  linear_.BeginBackward(part, dy, extent_.rows);
  lanes.Assign(batch.index, {weight, bias}, ops_,
               [&](const plan::LaneSegment& segment, const Gradients& gradients, bool accumulate) {
                 const int64_t row = segment.first_sequence * extent_.tokens;
                 linear_.BackwardWeight(part,
                                        {.dy = dy + row * n,
                                         .x = x + row * k,
                                         .dw = weight.GradientIn(gradients),
                                         .dbias = bias.GradientIn(gradients),
                                         .m = segment.sequences * extent_.tokens,
                                         .n = n,
                                         .k = k,
                                         .rows_per_leaf = extent_.tokens,
                                         .accumulate = accumulate},
                                        row);
               });
}

void StageModel::BackwardDown(LinearLayers::Part part, LinearLayers::Part before,
                              kernels::ConstValues branch, WeightRef weight,
                              kernels::ConstValues up) {
  const kernels::Values gradient = traits_.gated_mlp ? gated_gradient_ : wide_gradient_;
  kernels::Chain chain;
  chain.input_gradient = kernels::MatmulBackwardInputArgs{.dy = branch,
                                                          .w = weight.In(parameters_),
                                                          .dx = gradient,
                                                          .m = extent_.rows,
                                                          .n = shape_.hidden,
                                                          .k = shape_.ffn};
  if (traits_.gated_mlp) {
    chain.gated_gradient = kernels::GatedBackwardArgs{
        .dg = gradient, .h = up, .dh = wide_gradient_, .rows = extent_.rows, .columns = shape_.ffn};
  } else {
    chain.activation_gradient = kernels::ActivationBackwardArgs{
        .dg = gradient,
        .h = up,
        .dh = wide_gradient_,
        .rows = extent_.rows,
        .columns = shape_.ffn,
        .function =
            traits_.exact_gelu ? kernels::Activation::kGelu : kernels::Activation::kGeluTanh};
  }
  linear_.BackwardAndMakeGradient(part, before, chain);
}

void StageModel::BackwardPostNorm(const MicroBatch& batch, WeightRef weight, WeightRef bias,
                                  kernels::ConstValues sum, const float* mean, const float* rstd,
                                  kernels::Values flow, GradientLanes& lanes) {
  if (!shape_.post_norm) return;
  BackwardNorm(batch, weight, bias, flow, sum, mean, rstd, flow, FlowChange::kReplace, lanes);
}

void StageModel::BackwardInput(const MicroBatch& batch, LinearLayers::Part part, WeightRef product,
                               int64_t width, WeightRef weight, WeightRef bias,
                               kernels::ConstValues x, const float* mean, const float* rstd,
                               kernels::Values flow, GradientLanes& lanes) {
  const kernels::Values gradient =
      SumProduct(norm_gradient_, extent_.rows, [&](const plan::RowPiece& piece) {
        linear_.BackwardInput(part,
                              {.dy = wide_gradient_ + piece.first * width,
                               .w = product.In(parameters_),
                               .dx = norm_gradient_ + piece.first * shape_.hidden,
                               .m = piece.count,
                               .n = width,
                               .k = shape_.hidden},
                              piece.first);
      });
  if (shape_.post_norm) {
    return ops_.Add(flow, gradient, extent_.local_rows * shape_.hidden);
  }
  BackwardNorm(batch, weight, bias, gradient, x, mean, rstd, flow, FlowChange::kAdd, lanes);
}

void StageModel::BackwardMlp(const MicroBatch& batch, int layer, kernels::Values flow,
                             GradientLanes& lanes) {
  const LayerView at = View(batch.slot, layer);
  const LayerWeights& w = WeightsOf(batch, layer);
  BackwardPostNorm(batch, w.norm2, w.norm2_bias, at.norm1, at.mean1, at.rstd1, flow, lanes);
  const kernels::ConstValues branch = BackwardResidual(
      batch, ModelLayer(batch, layer), kernels::kSiteMlpOutput, w.down_bias, flow, lanes);
  const LinearLayers::Part down = PartOf(batch, layer, plan::Linear::kDown);
  BackwardWeight(batch, down, w.down, {}, branch, at.gelu, shape_.hidden, shape_.ffn, lanes);
  const LinearLayers::Part up = PartOf(batch, layer, plan::Linear::kUp);
  BackwardDown(down, up, branch, w.down, at.up);
  BackwardWeight(batch, up, w.up, w.up_bias, wide_gradient_, GatherRows(at.norm2), shape_.up,
                 shape_.hidden, lanes);
  BackwardInput(batch, up, w.up, shape_.up, w.norm2, w.norm2_bias, at.middle, at.mean2, at.rstd2,
                flow, lanes);
}

void StageModel::BackwardAttention(const MicroBatch& batch, int layer, kernels::Values flow,
                                   GradientLanes& lanes) {
  const LayerView at = View(batch.slot, layer);
  const LayerWeights& w = WeightsOf(batch, layer);
  BackwardPostNorm(batch, w.norm1, w.norm1_bias, at.middle, at.mean2, at.rstd2, flow, lanes);
  const kernels::ConstValues branch = BackwardResidual(
      batch, ModelLayer(batch, layer), kernels::kSiteAttentionOutput, w.output_bias, flow, lanes);
  const LinearLayers::Part output = PartOf(batch, layer, plan::Linear::kOutput);
  BackwardWeight(batch, output, w.output, {}, branch, at.attention, shape_.hidden, shape_.attention,
                 lanes);
  linear_.BackwardInput(output,
                        {.dy = branch,
                         .w = w.output.In(parameters_),
                         .dx = attention_gradient_,
                         .m = extent_.rows,
                         .n = shape_.hidden,
                         .k = shape_.attention},
                        0);
  ops_.AttentionBackward(
      {.dout = attention_gradient_,
       .out = at.attention,
       .lse = at.lse,
       .q = at.qkv,
       .k = at.qkv + shape_.attention,
       .v = at.qkv + shape_.attention + shape_.key_heads * shape_.head_dim,
       .dq = wide_gradient_,
       .dk = wide_gradient_ + shape_.attention,
       .dv = wide_gradient_ + shape_.attention + shape_.key_heads * shape_.head_dim,
       .stride = shape_.qkv,
       .sequences = shape_.sequences,
       .tokens = extent_.tokens,
       .heads = shape_.heads,
       .head_dim = shape_.head_dim,
       .group = shape_.heads / shape_.key_heads,
       .first_head = tensor_index_ * shape_.heads,
       .causal = shape_.causal,
       .lengths = batch.lengths,
       .dropout = DropoutAt(batch, ModelLayer(batch, layer), kernels::kSiteAttention, 0),
       .scratch = attention_scratch_});
  Rotate(wide_gradient_, 0, extent_.rows, Rotation::kBack);
  const LinearLayers::Part qkv = PartOf(batch, layer, plan::Linear::kQkv);
  BackwardWeight(batch, qkv, w.qkv, w.qkv_bias, wide_gradient_, GatherRows(AttentionInput(at)),
                 shape_.qkv, shape_.hidden, lanes);
  BackwardInput(batch, qkv, w.qkv, shape_.qkv, w.norm1, w.norm1_bias, at.input, at.mean1, at.rstd1,
                flow, lanes);
}

void StageModel::BackwardEmbedding(const MicroBatch& batch, kernels::Values flow,
                                   GradientLanes& lanes) {
  kernels::Dropout dropout = DropoutAt(batch, 0, kernels::kSiteEmbedding, extent_.first_local_row);
  if (shape_.post_norm) {
    ops_.PositionEmbeddingBackward({.dx = flow,
                                    .dweight = nullptr,
                                    .rows = extent_.local_rows,
                                    .columns = shape_.hidden,
                                    .tokens = extent_.tokens,
                                    .first_row = extent_.first_local_row,
                                    .dropout = dropout});
    BackwardPostNorm(batch, weights_.embedding_norm, weights_.embedding_norm_bias,
                     ValuesAt(batch.slot, slot_layout_.embedding_sum),
                     FloatsAt(batch.slot, slot_layout_.embedding_mean),
                     FloatsAt(batch.slot, slot_layout_.embedding_rstd), flow, lanes);
    dropout.probability = 0;
  }
  lanes.Accumulate(
      batch.index, {weights_.position, weights_.type}, ops_,
      [&](const plan::LaneSegment& segment, const Gradients& gradients) {
        const LocalRows part = LocalPart(segment);
        if (part.count == 0) return;
        const int64_t first = extent_.first_local_row + part.begin;
        dropout.first_row = first;
        ops_.PositionEmbeddingBackward({.dx = flow + part.begin * shape_.hidden,
                                        .dweight = weights_.position.GradientIn(gradients),
                                        .rows = part.count,
                                        .columns = shape_.hidden,
                                        .tokens = extent_.tokens,
                                        .first_row = first,
                                        .dropout = dropout,
                                        .types = TypesAt(batch, first),
                                        .dtype_weight = weights_.type.GradientIn(gradients)});
      });
  const kernels::ConstValues all = GatherRows(flow);
  lanes.Accumulate(batch.index, {weights_.token}, ops_,
                   [&](const plan::LaneSegment& segment, const Gradients& gradients) {
                     const int64_t row = segment.first_sequence * extent_.tokens;
                     ops_.EmbeddingBackward({.tokens = batch.inputs + row,
                                             .dx = all + row * shape_.hidden,
                                             .dweight = weights_.token.GradientIn(gradients),
                                             .count = segment.sequences * extent_.tokens,
                                             .columns = shape_.hidden,
                                             .vocabulary_begin = vocabulary_begin_,
                                             .vocabulary_rows = shape_.vocabulary});
                   });
}

void StageModel::Backward(const MicroBatch& batch, kernels::Values flow, const LossSums& losses,
                          GradientLanes& lanes, absl::FunctionRef<void(int layer)> layer_done) {
  SetExtent(batch);
  if (IsLast(batch)) {
    if (encoder_head_ != nullptr) {
      BackwardEncoderHead(batch, flow, losses, lanes);
    } else {
      BackwardHead(batch, flow, losses.tokens, lanes);
    }
    layer_done(model_layers_);
  }
  for (int layer = shape_.layers - 1; layer >= 0; --layer) {
    Restore(batch, layer);
    BackwardMlp(batch, layer, flow, lanes);
    BackwardAttention(batch, layer, flow, lanes);
    layer_done(ModelLayer(batch, layer));
  }
  if (IsFirst(batch)) {
    BackwardEmbedding(batch, flow, lanes);
    layer_done(-1);
  }
}

}  // namespace tercio::engine
