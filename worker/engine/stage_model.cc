#include "worker/engine/stage_model.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kernels/random.h"
#include "worker/engine/rotary_table.h"

namespace tercio::engine {
namespace {

const char* WeightsThatAreRead(const plan::StageShape& shape) {
  return shape.precision.format == kernels::Format::kFloat32 ? "parameters" : "parameters.compute";
}

}  // namespace

StageModel::StageModel(const v1::JobSpec& spec, const v1::RankPlan& plan,
                       const plan::StageTensors& tensors, Arena& arena, device::Stream& stream,
                       collective::Communicator& tensor_group, std::optional<OverlappedSums> beside)
    : shape_(plan::ShapeOfStage(spec, plan.layout(), plan.placement().pipeline_index())),
      traits_(plan::TraitsOf(spec.model())),
      layout_(plan::ActivationsOfLayer(shape_)),
      slot_layout_(plan::ActivationsOfSlot(shape_)),
      weights_(FindWeights(tensors, plan.stage().layers())),
      layers_(plan.stage().layers().begin(), plan.stage().layers().end()),
      model_layers_(spec.model().layers()),
      tensor_index_(plan.placement().tensor_index()),
      dropout_(static_cast<float>(spec.model().dropout())),
      seed_(spec.training().seed()),
      loss_weight_(1.0 /
                   (static_cast<double>(spec.training().global_batch()) * spec.model().context())),
      smoothing_{static_cast<float>(spec.training().label_smoothing()), spec.model().vocab_size()},
      stream_(stream),
      overlapped_(beside),
      ops_(stream.ops()),
      tensor_group_(tensor_group),
      parameters_(arena.ValuesOf(WeightsThatAreRead(shape_), shape_.precision)),
      linear_(shape_, weights_, parameters_, arena, stream) {
  const int64_t begin = tensor_index_ * shape_.vocabulary;
  vocabulary_begin_ = begin;
  vocabulary_valid_ = std::clamp<int64_t>(spec.model().vocab_size() - begin, 0, shape_.vocabulary);
  for (int slot = 0; slot < plan.stage().activation_slots(); ++slot) {
    slots_.push_back(arena.Get<std::byte>(absl::StrCat("activations.", slot)));
  }
  shared_ = arena.Get<std::byte>("activations.shared");
  const auto values = [&](const char* name) { return arena.ValuesOf(name, shape_.precision); };
  branch_ = values("workspace.branch");
  branch_gradient_ = values("workspace.branch_gradient");
  norm_gradient_ = values("workspace.norm_gradient");
  gathered_ = values("workspace.gathered");
  local_sum_ = values("workspace.local_sum");
  if (shape_.sequence_parallel) first_local_row_ = tensor_index_ * shape_.local_rows;
  wide_gradient_ = values("workspace.wide_gradient");
  attention_gradient_ = values("workspace.attention_gradient");
  attention_scratch_ = arena.Floats("workspace.attention");
  gated_gradient_ = values("workspace.gated_gradient");
  rotary_ = arena.Floats("workspace.rotary");
  if (shape_.rotary) {
    const std::vector<float> table = RotaryTable(spec.model());
    stream.CopyFromHost(rotary_, table.data(), static_cast<int64_t>(table.size() * sizeof(float)));
  }
  tensor_scratch_ = arena.Floats("tensor_scratch");
  if (shape_.last && !shape_.causal) {
    encoder_head_ =
        std::make_unique<EncoderHead>(spec, shape_, traits_, weights_.output, tensor_index_,
                                      parameters_, arena, stream, tensor_group);
  } else if (shape_.last) {
    logits_ = values("head.logits");
    stats_ = arena.Floats("head.stats");
    all_stats_ = arena.Floats("head.all_stats");
    lse_ = arena.Floats("head.lse");
    loss_ = arena.Floats("head.loss");
  }
}

StageModel::LayerView StageModel::View(int slot, int layer) const {
  std::byte* own = slots_[static_cast<size_t>(slot)] + layer * slot_layout_.layer_stride;
  const auto place = [&](const plan::LayerField& field) {
    return (field.shared ? shared_ : own) + field.offset;
  };
  const auto values = [&](const plan::LayerField& field) {
    return kernels::Values(place(field), shape_.precision.format, shape_.precision.stored);
  };
  const auto floats = [&](const plan::LayerField& field) {
    return reinterpret_cast<float*>(place(field));
  };
  LayerView at;
  at.input = values(layout_.input);
  at.norm1 = values(layout_.norm1);
  at.qkv = values(layout_.qkv);
  at.attention = values(layout_.attention);
  at.middle = values(layout_.middle);
  at.norm2 = values(layout_.norm2);
  at.up = values(layout_.up);
  at.gelu = values(layout_.gelu);
  at.mean1 = floats(layout_.mean1);
  at.rstd1 = floats(layout_.rstd1);
  at.lse = floats(layout_.lse);
  at.mean2 = floats(layout_.mean2);
  at.rstd2 = floats(layout_.rstd2);
  return at;
}

StageModel::LayerView StageModel::ViewOf(const MicroBatch& batch, int layer) const {
  LayerView at = View(batch.slot, layer);
  const int64_t row = batch.first_row;
  for (kernels::Values* field : {&at.input, &at.norm1, &at.middle, &at.norm2}) {
    *field += row * shape_.hidden;
  }
  for (float** field : {&at.mean1, &at.rstd1, &at.mean2, &at.rstd2}) *field += row;
  at.qkv += row * shape_.qkv;
  at.attention += row * shape_.attention;
  at.up += row * shape_.up;
  at.gelu += row * shape_.ffn;
  return at;
}

kernels::Dropout StageModel::DropoutAt(const MicroBatch& batch, int layer, uint32_t site,
                                       int64_t first_row) const {
  kernels::Dropout dropout;
  dropout.probability = batch.training ? dropout_ : 0.0f;
  dropout.seed = seed_;
  dropout.step = static_cast<uint64_t>(batch.step);
  dropout.layer = static_cast<uint32_t>(layer);
  dropout.site = site;
  dropout.first_sequence = batch.first_sequence;
  dropout.tokens = shape_.tokens;
  dropout.first_row = first_row;
  return dropout;
}

kernels::LayerNormArgs StageModel::Norm(kernels::ConstValues x, WeightRef weight, WeightRef bias,
                                        kernels::Values y, float* mean, float* rstd,
                                        int64_t rows) const {
  return {.x = x,
          .weight = weight.In(parameters_),
          .bias = bias.In(parameters_),
          .y = y,
          .mean = mean,
          .rstd = rstd,
          .rows = rows,
          .columns = shape_.hidden,
          .eps = traits_.norm_eps,
          .rms = traits_.rms_norm};
}

// The norm of the output of `layer`: the next layer's first one, or the final one.
kernels::LayerNormArgs StageModel::NormAfter(const MicroBatch& batch, int layer) const {
  if (layer + 1 < shape_.layers) {
    const LayerView next = ViewOf(batch, layer + 1);
    const LayerWeights& w = WeightsOf(batch, layer + 1);
    return Norm(next.input, w.norm1, w.norm1_bias, next.norm1, next.mean1, next.rstd1,
                LocalRowsOf(batch));
  }
  return Norm(OutputOf(batch), weights_.output.final_norm, weights_.output.final_norm_bias,
              ValuesAt(batch.slot, slot_layout_.final_norm) + batch.first_row * shape_.hidden,
              FloatsAt(batch.slot, slot_layout_.final_mean) + batch.first_row,
              FloatsAt(batch.slot, slot_layout_.final_rstd) + batch.first_row, LocalRowsOf(batch));
}

kernels::Values StageModel::SumRows(kernels::Values partial, int64_t rows) {
  if (!shape_.sequence_parallel) {
    tensor_group_.AllReduceSum(stream_, partial, rows * shape_.hidden, collective::SumOrder::kRanks,
                               tensor_scratch_);
    return partial;
  }
  tensor_group_.ReduceScatterSum(stream_, partial, local_sum_, shape_.local_rows * shape_.hidden,
                                 tensor_scratch_);
  return local_sum_;
}

kernels::Values StageModel::SumProduct(
    kernels::Values partial, int64_t rows,
    absl::FunctionRef<void(const plan::RowPiece& piece)> multiply) {
  if (!overlapped_.has_value() || shape_.tensor_overlap == 1) {
    multiply({0, rows});
    return SumRows(partial, rows);
  }
  for (const plan::RowPiece& piece : plan::PiecesOfRows(rows, shape_.tensor_overlap)) {
    multiply(piece);
    stream_.Record(*overlapped_->product_done);
    overlapped_->stream->Wait(*overlapped_->product_done);
    tensor_group_.AllReduceSum(*overlapped_->stream, partial + piece.first * shape_.hidden,
                               piece.count * shape_.hidden, collective::SumOrder::kRanks,
                               tensor_scratch_);
  }
  const progress::Whereabouts::Join join(*overlapped_->where, tensor_group_.group());
  stream_.Join(*overlapped_->stream);
  return partial;
}

kernels::ConstValues StageModel::GatherRows(kernels::ConstValues local) {
  if (!shape_.sequence_parallel) return local;
  tensor_group_.AllGather(stream_, local, gathered_, shape_.local_rows * shape_.hidden);
  return gathered_;
}

StageModel::LocalRows StageModel::LocalPart(const plan::LaneSegment& segment) const {
  const int64_t first = segment.first_sequence * shape_.tokens;
  const int64_t begin = std::max(first, first_local_row_);
  const int64_t end =
      std::min(first + segment.sequences * shape_.tokens, first_local_row_ + shape_.local_rows);
  return {begin - first_local_row_, std::max<int64_t>(0, end - begin)};
}

void StageModel::Forward(const MicroBatch& batch) {
  if (IsFirst(batch)) Embed(batch);
  if (!shape_.post_norm) NormInput(batch, 0);
  for (int layer = 0; layer < shape_.layers; ++layer) ForwardLayer(batch, layer);
}

void StageModel::NormInput(const MicroBatch& batch, int layer) {
  const LayerView at = ViewOf(batch, layer);
  const LayerWeights& w = WeightsOf(batch, layer);
  ops_.LayerNorm(
      Norm(at.input, w.norm1, w.norm1_bias, at.norm1, at.mean1, at.rstd1, LocalRowsOf(batch)));
}

void StageModel::Embed(const MicroBatch& batch) {
  kernels::EmbeddingArgs lookup{};
  lookup.tokens = batch.inputs + batch.first_row;
  lookup.weight = weights_.token.In(parameters_);
  kernels::Values sum = Input(batch.slot) + batch.first_row * shape_.hidden;
  if (shape_.post_norm) sum = ValuesAt(batch.slot, slot_layout_.embedding_sum);
  lookup.out = shape_.sequence_parallel ? branch_ : sum;  // all rows: not all of them stay here
  lookup.count = RowsOf(batch);
  lookup.columns = shape_.hidden;
  lookup.vocabulary_begin = vocabulary_begin_;
  lookup.vocabulary_rows = shape_.vocabulary;
  ops_.Embedding(lookup);
  const kernels::Values embedded = SumRows(lookup.out, lookup.count);
  if (embedded != sum) ops_.Copy(sum, embedded, LocalRowsOf(batch) * shape_.hidden);
  kernels::PositionEmbeddingArgs position{};
  position.x = sum;
  position.weight = weights_.position.In(parameters_);
  position.rows = LocalRowsOf(batch);
  position.first_row = batch.first_row + first_local_row_;
  position.columns = shape_.hidden;
  position.tokens = shape_.tokens;
  position.types = TypesAt(batch, first_local_row_);
  position.type_weight = weights_.type.In(parameters_);
  if (shape_.post_norm) {
    ops_.PositionEmbedding(position);
    return NormEmbedding(batch, sum);
  }
  position.dropout = DropoutAt(batch, 0, kernels::kSiteEmbedding, position.first_row);
  ops_.PositionEmbedding(position);
}

// Applies the norm, then dropout.
void StageModel::NormEmbedding(const MicroBatch& batch, kernels::Values sum) {
  const kernels::Values input = Input(batch.slot);
  ops_.LayerNorm(Norm(sum, weights_.embedding_norm, weights_.embedding_norm_bias, input,
                      FloatsAt(batch.slot, slot_layout_.embedding_mean),
                      FloatsAt(batch.slot, slot_layout_.embedding_rstd), shape_.local_rows));
  ops_.PositionEmbedding(
      {.x = input,
       .weight = nullptr,
       .rows = shape_.local_rows,
       .columns = shape_.hidden,
       .tokens = shape_.tokens,
       .first_row = first_local_row_,
       .dropout = DropoutAt(batch, 0, kernels::kSiteEmbedding, first_local_row_)});
}

// Queries and keys lie side by side: one call rotates both.
void StageModel::Rotate(kernels::Values qkv, int64_t first_row, int64_t rows, Rotation direction) {
  if (!shape_.rotary) return;
  ops_.Rotary({.x = qkv,
               .table = rotary_ + first_row * shape_.head_dim,
               .rows = rows,
               .tokens = shape_.tokens,
               .stride = shape_.qkv,
               .heads = shape_.heads + shape_.key_heads,
               .head_dim = shape_.head_dim,
               .inverse = direction == Rotation::kBack});
}

void StageModel::Activate(kernels::ConstValues up, kernels::Values out, int64_t rows) {
  if (traits_.gated_mlp) {
    ops_.Swiglu({.h = up, .g = out, .rows = rows, .columns = shape_.ffn});
  } else {
    ops_.Gelu(
        {.h = up, .g = out, .rows = rows, .columns = shape_.ffn, .exact = traits_.exact_gelu});
  }
}

void StageModel::ForwardAttention(const MicroBatch& batch, int layer) {
  const LayerView at = ViewOf(batch, layer);
  const LayerWeights& w = WeightsOf(batch, layer);
  const int64_t rows = RowsOf(batch);
  linear_.Forward(PartOf(batch, layer, plan::Linear::kQkv), {.x = GatherRows(AttentionInput(at)),
                                                             .w = w.qkv.In(parameters_),
                                                             .bias = w.qkv_bias.In(parameters_),
                                                             .y = at.qkv,
                                                             .m = rows,
                                                             .n = shape_.qkv,
                                                             .k = shape_.hidden});
  Rotate(at.qkv, batch.first_row, rows, Rotation::kForward);
  const LayerView all = View(batch.slot, layer);  // keys and values of earlier rows count, too
  ops_.Attention({.q = all.qkv,
                  .k = all.qkv + shape_.attention,
                  .v = all.qkv + shape_.attention + shape_.key_heads * shape_.head_dim,
                  .stride = shape_.qkv,
                  .out = all.attention,
                  .lse = all.lse,
                  .sequences = shape_.sequences,
                  .tokens = batch.rows > 0 ? batch.first_row + rows : shape_.tokens,
                  .heads = shape_.heads,
                  .head_dim = shape_.head_dim,
                  .group = shape_.heads / shape_.key_heads,
                  .first_query = batch.first_row,
                  .first_head = tensor_index_ * shape_.heads,
                  .causal = shape_.causal,
                  .lengths = batch.lengths,
                  .dropout = DropoutAt(batch, ModelLayer(batch, layer), kernels::kSiteAttention, 0),
                  .scratch = attention_scratch_});
}

// Computes a half layer's last product, from `x` (rows x k) to the branch.
kernels::ConstValues StageModel::SumToBranch(const MicroBatch& batch, LinearLayers::Part part,
                                             kernels::ConstValues x, WeightRef weight, int64_t k) {
  return SumProduct(branch_, RowsOf(batch), [&](const plan::RowPiece& piece) {
    linear_.Forward(part, {.x = x + piece.first * k,
                           .w = weight.In(parameters_),
                           .bias = nullptr,
                           .y = branch_ + piece.first * shape_.hidden,
                           .m = piece.count,
                           .n = shape_.hidden,
                           .k = k});
  });
}

kernels::LayerNormArgs StageModel::MiddleNorm(const MicroBatch& batch, int layer) const {
  const LayerView at = ViewOf(batch, layer);
  const LayerWeights& w = WeightsOf(batch, layer);
  const int64_t rows = LocalRowsOf(batch);
  return shape_.post_norm
             ? Norm(at.middle, w.norm1, w.norm1_bias, at.norm2, at.mean2, at.rstd2, rows)
             : Norm(at.middle, w.norm2, w.norm2_bias, at.norm2, at.mean2, at.rstd2, rows);
}

void StageModel::ForwardUp(const MicroBatch& batch, int layer) {
  const LayerView at = ViewOf(batch, layer);
  const LayerWeights& w = WeightsOf(batch, layer);
  const int64_t rows = RowsOf(batch);
  kernels::ResidualArgs add{};
  add.residual = at.input;
  add.branch = SumToBranch(batch, PartOf(batch, layer, plan::Linear::kOutput), at.attention,
                           w.output, shape_.attention);
  add.bias = w.output_bias.In(parameters_);
  add.out = at.middle;
  add.rows = LocalRowsOf(batch);
  add.columns = shape_.hidden;
  add.dropout =
      DropoutAt(batch, ModelLayer(batch, layer), kernels::kSiteAttentionOutput, first_local_row_);
  ops_.ResidualLayerNorm(add, MiddleNorm(batch, layer));
  const kernels::MatmulArgs up{.x = GatherRows(at.norm2),
                               .w = w.up.In(parameters_),
                               .bias = w.up_bias.In(parameters_),
                               .y = at.up,
                               .m = rows,
                               .n = shape_.up,
                               .k = shape_.hidden};
  const LinearLayers::Part part = PartOf(batch, layer, plan::Linear::kUp);
  if (traits_.gated_mlp) {
    linear_.Forward(part, up);
    Activate(at.up, at.gelu, rows);
  } else {
    linear_.ForwardGelu(part, up,
                        {.h = at.up,
                         .g = at.gelu,
                         .rows = rows,
                         .columns = shape_.ffn,
                         .exact = traits_.exact_gelu});
  }
}

void StageModel::ForwardLayer(const MicroBatch& batch, int layer) {
  const LayerView at = ViewOf(batch, layer);
  const LayerWeights& w = WeightsOf(batch, layer);
  ForwardAttention(batch, layer);
  ForwardUp(batch, layer);
  const bool inner = layer + 1 < shape_.layers;
  kernels::ResidualArgs add{};
  add.residual = at.middle;
  add.branch =
      SumToBranch(batch, PartOf(batch, layer, plan::Linear::kDown), at.gelu, w.down, shape_.ffn);
  add.bias = w.down_bias.In(parameters_);
  add.out = inner ? ViewOf(batch, layer + 1).input : OutputOf(batch);
  add.rows = LocalRowsOf(batch);
  add.columns = shape_.hidden;
  add.dropout =
      DropoutAt(batch, ModelLayer(batch, layer), kernels::kSiteMlpOutput, first_local_row_);
  if (shape_.post_norm) {
    const kernels::Values next = add.out;
    add.residual = at.norm2;
    add.out = at.norm1;
    ops_.ResidualLayerNorm(
        add, Norm(at.norm1, w.norm2, w.norm2_bias, next, at.mean1, at.rstd1, add.rows));
  } else if (inner || IsLast(batch)) {
    ops_.ResidualLayerNorm(add, NormAfter(batch, layer));
  } else {
    ops_.Residual(add);
  }
}

void StageModel::Restore(const MicroBatch& batch, int layer) {
  if (shape_.recompute == plan::Recompute::kNone) return;
  if (!shape_.post_norm) NormInput(batch, layer);
  if (shape_.recompute == plan::Recompute::kFull) {
    ForwardAttention(batch, layer);
    ForwardUp(batch, layer);
    return;
  }
  const LayerView at = ViewOf(batch, layer);
  ops_.LayerNorm(MiddleNorm(batch, layer));
  Activate(at.up, at.gelu, RowsOf(batch));
}

// Short sequences are taken together whole, long ones in pieces of one sequence. The pieces of the
// sum over rows are the same either way (kernels/ops.h).
template <typename Body>
void StageModel::ForChunks(int64_t first_sequence, int64_t sequences, const Body& body) const {
  const int64_t begin = first_sequence * shape_.tokens;
  const int64_t end = begin + sequences * shape_.tokens;
  for (int64_t row = begin; row < end;) {
    const int64_t limit =
        shape_.tokens > shape_.chunk_rows ? (row / shape_.tokens + 1) * shape_.tokens : end;
    const int64_t rows = std::min(shape_.chunk_rows, limit - row);
    body(Chunk{row, rows, std::min(rows, shape_.tokens)});
    row += rows;
  }
}

kernels::ConstValues StageModel::Logits(const MicroBatch& batch, int64_t row, int64_t rows) {
  TERCIO_CHECK_LE(rows, shape_.chunk_rows);
  ops_.Matmul({.x = HeadInput(batch) + row * shape_.hidden,
               .w = weights_.output.head.In(parameters_),
               .bias = nullptr,
               .y = logits_,
               .m = rows,
               .n = shape_.vocabulary,
               .k = shape_.hidden});
  return logits_;
}

TokenRows StageModel::RowsOf(const MicroBatch& batch, const Chunk& chunk, double* losses) const {
  return {.logits = logits_,
          .targets = batch.targets + chunk.row,
          .stats = stats_,
          .all_stats = all_stats_,
          .lse = lse_,
          .loss = loss_,
          .sums = losses,
          .rows = chunk.rows,
          .valid = vocabulary_valid_,
          .stride = shape_.vocabulary,
          .vocabulary_begin = vocabulary_begin_,
          .smoothing = SmoothingOf(batch),
          .first_row = chunk.row,
          .rows_per_sum = shape_.tokens};
}

void StageModel::Loss(const MicroBatch& batch, const LossSums& losses) {
  const kernels::ConstValues hidden = GatherRows(LastRows(batch.slot));
  if (encoder_head_ != nullptr) return encoder_head_->Loss(batch, hidden, losses);
  ForChunks(0, shape_.sequences, [&](const Chunk& chunk) {
    Logits(batch, chunk.row, chunk.rows);
    TokenLosses(ops_, stream_, tensor_group_, RowsOf(batch, chunk, losses.tokens));
  });
}

kernels::ConstValues StageModel::ClassLogits(const MicroBatch& batch) {
  return encoder_head_->ClassLogits(batch, GatherRows(LastRows(batch.slot)));
}

kernels::ConstValues StageModel::TokenLogits(const MicroBatch& batch) {
  return encoder_head_->TokenLogits(batch, GatherRows(LastRows(batch.slot)));
}

void StageModel::BackwardEncoderHead(const MicroBatch& batch, kernels::Values flow,
                                     const LossSums& losses, GradientLanes& lanes) {
  encoder_head_->Backward(batch, GatherRows(LastRows(batch.slot)), norm_gradient_, losses, lanes);
  const kernels::Values mine = norm_gradient_ + first_local_row_ * shape_.hidden;
  if (shape_.post_norm) return ops_.Copy(flow, mine, shape_.local_rows * shape_.hidden);
  BackwardNorm(batch, weights_.output.final_norm, weights_.output.final_norm_bias, mine,
               Output(batch.slot), FloatsAt(batch.slot, slot_layout_.final_mean),
               FloatsAt(batch.slot, slot_layout_.final_rstd), flow, FlowChange::kReplace, lanes);
}

void StageModel::BackwardHead(const MicroBatch& batch, kernels::Values flow, double* losses,
                              GradientLanes& lanes) {
  const kernels::ConstValues normed = GatherRows(FinalNorm(batch.slot));
  const auto scale = static_cast<float>(loss_weight_ * gradient_scale_);
  lanes.Assign(batch.index, {weights_.output.head}, ops_,
               [&](const plan::LaneSegment& segment, float* gradients, bool accumulate) {
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
               SumRows(norm_gradient_, shape_.rows), Output(batch.slot),
               FloatsAt(batch.slot, slot_layout_.final_mean),
               FloatsAt(batch.slot, slot_layout_.final_rstd), flow, FlowChange::kReplace, lanes);
}

void StageModel::BackwardNorm(const MicroBatch& batch, WeightRef weight, WeightRef bias,
                              kernels::ConstValues dy, kernels::ConstValues x, const float* mean,
                              const float* rstd, kernels::Values flow, FlowChange change,
                              GradientLanes& lanes) {
  lanes.Accumulate(batch.index, {weight, bias}, ops_,
                   [&](const plan::LaneSegment& segment, float* gradients) {
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
                                             .rows_per_leaf = shape_.tokens,
                                             .accumulate = change == FlowChange::kAdd,
                                             .rms = traits_.rms_norm});
                   });
}

kernels::ConstValues StageModel::BackwardResidual(const MicroBatch& batch, int layer, uint32_t site,
                                                  WeightRef bias, kernels::ConstValues flow,
                                                  GradientLanes& lanes) {
  const bool dropped = batch.training && dropout_ > 0;
  lanes.Accumulate(batch.index, {bias}, ops_,
                   [&](const plan::LaneSegment& segment, float* gradients) {
                     const LocalRows part = LocalPart(segment);
                     if (part.count == 0) return;
                     const int64_t at = part.begin * shape_.hidden;
                     ops_.ResidualBackward(
                         {.dout = flow + at,
                          .dbranch = dropped ? branch_gradient_ + at : nullptr,
                          .dbias = bias.GradientIn(gradients),
                          .rows = part.count,
                          .columns = shape_.hidden,
                          .rows_per_leaf = shape_.tokens,
                          .dropout = DropoutAt(batch, layer, site, first_local_row_ + part.begin)});
                   });
  return GatherRows(dropped ? kernels::ConstValues(branch_gradient_) : flow);
}

void StageModel::BackwardWeight(const MicroBatch& batch, LinearLayers::Part part, WeightRef weight,
                                WeightRef bias, kernels::ConstValues dy, kernels::ConstValues x,
                                int64_t n, int64_t k, GradientLanes& lanes) {
  linear_.BeginBackward(part, dy, shape_.rows);
  lanes.Assign(batch.index, {weight, bias}, ops_,
               [&](const plan::LaneSegment& segment, float* gradients, bool accumulate) {
                 const int64_t row = segment.first_sequence * shape_.tokens;
                 linear_.BackwardWeight(part,
                                        {.dy = dy + row * n,
                                         .x = x + row * k,
                                         .dw = weight.GradientIn(gradients),
                                         .dbias = bias.GradientIn(gradients),
                                         .m = segment.sequences * shape_.tokens,
                                         .n = n,
                                         .k = k,
                                         .rows_per_leaf = shape_.tokens,
                                         .accumulate = accumulate},
                                        row);
               });
}

void StageModel::BackwardDown(LinearLayers::Part part, kernels::ConstValues branch,
                              WeightRef weight, kernels::ConstValues up) {
  kernels::MatmulBackwardInputArgs product{.dy = branch,
                                           .w = weight.In(parameters_),
                                           .dx = wide_gradient_,
                                           .m = shape_.rows,
                                           .n = shape_.hidden,
                                           .k = shape_.ffn};
  if (!traits_.gated_mlp) {
    return linear_.BackwardInputGelu(part, product,
                                     {.dg = wide_gradient_,
                                      .h = up,
                                      .dh = wide_gradient_,
                                      .rows = shape_.rows,
                                      .columns = shape_.ffn,
                                      .exact = traits_.exact_gelu});
  }
  product.dx = gated_gradient_;
  linear_.BackwardInput(part, product, 0);
  ops_.SwigluBackward({.dg = gated_gradient_,
                       .h = up,
                       .dh = wide_gradient_,
                       .rows = shape_.rows,
                       .columns = shape_.ffn});
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
      SumProduct(norm_gradient_, shape_.rows, [&](const plan::RowPiece& piece) {
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
    return ops_.Add(flow, gradient, shape_.local_rows * shape_.hidden);
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
  BackwardDown(down, branch, w.down, at.up);
  const LinearLayers::Part up = PartOf(batch, layer, plan::Linear::kUp);
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
                         .m = shape_.rows,
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
       .tokens = shape_.tokens,
       .heads = shape_.heads,
       .head_dim = shape_.head_dim,
       .group = shape_.heads / shape_.key_heads,
       .first_head = tensor_index_ * shape_.heads,
       .causal = shape_.causal,
       .lengths = batch.lengths,
       .dropout = DropoutAt(batch, ModelLayer(batch, layer), kernels::kSiteAttention, 0),
       .scratch = attention_scratch_});
  Rotate(wide_gradient_, 0, shape_.rows, Rotation::kBack);
  const LinearLayers::Part qkv = PartOf(batch, layer, plan::Linear::kQkv);
  BackwardWeight(batch, qkv, w.qkv, w.qkv_bias, wide_gradient_, GatherRows(AttentionInput(at)),
                 shape_.qkv, shape_.hidden, lanes);
  BackwardInput(batch, qkv, w.qkv, shape_.qkv, w.norm1, w.norm1_bias, at.input, at.mean1, at.rstd1,
                flow, lanes);
}

void StageModel::BackwardEmbedding(const MicroBatch& batch, kernels::Values flow,
                                   GradientLanes& lanes) {
  kernels::Dropout dropout = DropoutAt(batch, 0, kernels::kSiteEmbedding, first_local_row_);
  if (shape_.post_norm) {
    ops_.PositionEmbeddingBackward({.dx = flow,
                                    .dweight = nullptr,
                                    .rows = shape_.local_rows,
                                    .columns = shape_.hidden,
                                    .tokens = shape_.tokens,
                                    .first_row = first_local_row_,
                                    .dropout = dropout});
    BackwardPostNorm(batch, weights_.embedding_norm, weights_.embedding_norm_bias,
                     ValuesAt(batch.slot, slot_layout_.embedding_sum),
                     FloatsAt(batch.slot, slot_layout_.embedding_mean),
                     FloatsAt(batch.slot, slot_layout_.embedding_rstd), flow, lanes);
    dropout.probability = 0;
  }
  lanes.Accumulate(
      batch.index, {weights_.position, weights_.type}, ops_,
      [&](const plan::LaneSegment& segment, float* gradients) {
        const LocalRows part = LocalPart(segment);
        if (part.count == 0) return;
        const int64_t first = first_local_row_ + part.begin;
        dropout.first_row = first;
        ops_.PositionEmbeddingBackward({.dx = flow + part.begin * shape_.hidden,
                                        .dweight = weights_.position.GradientIn(gradients),
                                        .rows = part.count,
                                        .columns = shape_.hidden,
                                        .tokens = shape_.tokens,
                                        .first_row = first,
                                        .dropout = dropout,
                                        .types = TypesAt(batch, first),
                                        .dtype_weight = weights_.type.GradientIn(gradients)});
      });
  const kernels::ConstValues all = GatherRows(flow);
  lanes.Accumulate(batch.index, {weights_.token}, ops_,
                   [&](const plan::LaneSegment& segment, float* gradients) {
                     const int64_t row = segment.first_sequence * shape_.tokens;
                     ops_.EmbeddingBackward({.tokens = batch.inputs + row,
                                             .dx = all + row * shape_.hidden,
                                             .dweight = weights_.token.GradientIn(gradients),
                                             .count = segment.sequences * shape_.tokens,
                                             .columns = shape_.hidden,
                                             .vocabulary_begin = vocabulary_begin_,
                                             .vocabulary_rows = shape_.vocabulary});
                   });
}

void StageModel::Backward(const MicroBatch& batch, kernels::Values flow, const LossSums& losses,
                          GradientLanes& lanes, absl::FunctionRef<void(int layer)> layer_done) {
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
