#include "worker/engine/stage_model.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kernels/random.h"
#include "plan/lanes.h"
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
      linear_(shape_, weights_, parameters_,
              plan::LanesPerDataRank(plan.lanes(), plan.layout().data()), arena, stream) {
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

kernels::Dropout StageModel::DropoutAt(const MicroBatch& batch, int layer, uint32_t site,
                                       int64_t first_row) const {
  kernels::Dropout dropout;
  dropout.probability = batch.training ? dropout_ : 0.0f;
  dropout.seed = seed_;
  dropout.step = static_cast<uint64_t>(batch.step);
  dropout.layer = static_cast<uint32_t>(layer);
  dropout.site = site;
  dropout.first_sequence = batch.first_sequence;
  dropout.tokens = extent_.tokens;
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
    const LayerView next = View(batch.slot, layer + 1);
    const LayerWeights& w = WeightsOf(batch, layer + 1);
    return Norm(next.input, w.norm1, w.norm1_bias, next.norm1, next.mean1, next.rstd1,
                extent_.local_rows);
  }
  return Norm(Output(batch.slot), weights_.output.final_norm, weights_.output.final_norm_bias,
              ValuesAt(batch.slot, slot_layout_.final_norm),
              FloatsAt(batch.slot, slot_layout_.final_mean),
              FloatsAt(batch.slot, slot_layout_.final_rstd), extent_.local_rows);
}

kernels::Values StageModel::SumRows(kernels::Values partial, int64_t rows) {
  if (!shape_.sequence_parallel) {
    tensor_group_.AllReduceSum(stream_, partial, rows * shape_.hidden, collective::SumOrder::kRanks,
                               tensor_scratch_);
    return partial;
  }
  tensor_group_.ReduceScatterSum(stream_, partial, local_sum_, extent_.local_rows * shape_.hidden,
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
  tensor_group_.AllGather(stream_, local, gathered_, extent_.local_rows * shape_.hidden);
  return gathered_;
}

void StageModel::SetExtent(const MicroBatch& batch) {
  if (!batch.parts.empty()) {
    int64_t rows = 0;
    for (const SequencePart& part : batch.parts) rows += part.rows;
    extent_ = {.tokens = shape_.tokens, .rows = rows, .local_rows = rows, .first_local_row = 0};
    return;
  }
  extent_.tokens = batch.tokens > 0 ? batch.tokens : shape_.tokens;
  extent_.rows = shape_.sequences * extent_.tokens;
  extent_.local_rows = LocalRowsOf(batch);
  extent_.first_local_row = shape_.sequence_parallel ? tensor_index_ * extent_.local_rows : 0;
}

void StageModel::Forward(const MicroBatch& batch) {
  SetExtent(batch);
  if (IsFirst(batch)) Embed(batch);
  if (!shape_.post_norm) NormInput(batch, 0);
  for (int layer = 0; layer < shape_.layers; ++layer) ForwardLayer(batch, layer);
}

void StageModel::NormInput(const MicroBatch& batch, int layer) {
  linear_.MakeInput(PartOf(batch, layer, plan::Linear::kQkv), {.norm = InputNorm(batch, layer)});
}

kernels::LayerNormArgs StageModel::InputNorm(const MicroBatch& batch, int layer) const {
  const LayerView at = View(batch.slot, layer);
  const LayerWeights& w = WeightsOf(batch, layer);
  return Norm(at.input, w.norm1, w.norm1_bias, at.norm1, at.mean1, at.rstd1, extent_.local_rows);
}

void StageModel::Embed(const MicroBatch& batch) {
  kernels::EmbeddingArgs lookup{};
  lookup.tokens = batch.inputs;
  lookup.weight = weights_.token.In(parameters_);
  kernels::Values sum = Input(batch.slot);
  if (shape_.post_norm) sum = ValuesAt(batch.slot, slot_layout_.embedding_sum);
  lookup.out = shape_.sequence_parallel ? branch_ : sum;  // all rows: not all of them stay here
  lookup.count = extent_.rows;
  lookup.columns = shape_.hidden;
  lookup.vocabulary_begin = vocabulary_begin_;
  lookup.vocabulary_rows = shape_.vocabulary;
  ops_.Embedding(lookup);
  const kernels::Values embedded = SumRows(lookup.out, lookup.count);
  if (embedded != sum) ops_.Copy(sum, embedded, extent_.local_rows * shape_.hidden);
  AddPositions(batch, sum);
  if (shape_.post_norm) NormEmbedding(batch, sum);
}

void StageModel::AddPositions(const MicroBatch& batch, kernels::Values sum) {
  kernels::PositionEmbeddingArgs position{};
  position.x = sum;
  position.weight = weights_.position.In(parameters_);
  position.rows = extent_.local_rows;
  position.first_row = extent_.first_local_row;
  position.columns = shape_.hidden;
  position.tokens = extent_.tokens;
  position.types = TypesAt(batch, extent_.first_local_row);
  position.type_weight = weights_.type.In(parameters_);
  // Post-norm models drop after the norm that follows.
  if (!shape_.post_norm) {
    position.dropout = DropoutAt(batch, 0, kernels::kSiteEmbedding, position.first_row);
  }
  if (batch.parts.empty()) return ops_.PositionEmbedding(position);
  for (const SequencePart& part : batch.parts) {
    position.rows = part.rows;
    position.first_row = part.first_position;
    ops_.PositionEmbedding(position);
    position.x += part.rows * shape_.hidden;
  }
}

// Applies the norm, then dropout.
void StageModel::NormEmbedding(const MicroBatch& batch, kernels::Values sum) {
  const kernels::Values input = Input(batch.slot);
  ops_.LayerNorm(Norm(sum, weights_.embedding_norm, weights_.embedding_norm_bias, input,
                      FloatsAt(batch.slot, slot_layout_.embedding_mean),
                      FloatsAt(batch.slot, slot_layout_.embedding_rstd), extent_.local_rows));
  ops_.PositionEmbedding(
      {.x = input,
       .weight = nullptr,
       .rows = extent_.local_rows,
       .columns = shape_.hidden,
       .tokens = extent_.tokens,
       .first_row = extent_.first_local_row,
       .dropout = DropoutAt(batch, 0, kernels::kSiteEmbedding, extent_.first_local_row)});
}

// Queries and keys lie side by side: one call rotates both.
void StageModel::Rotate(kernels::Values qkv, int64_t first_position, int64_t rows,
                        Rotation direction) {
  if (!shape_.rotary) return;
  ops_.Rotary({.x = qkv,
               .table = rotary_ + first_position * shape_.head_dim,
               .rows = rows,
               .tokens = extent_.tokens,
               .stride = shape_.qkv,
               .heads = shape_.heads + shape_.key_heads,
               .head_dim = shape_.head_dim,
               .inverse = direction == Rotation::kBack});
}

kernels::Chain StageModel::Activation(kernels::ConstValues up, kernels::Values out,
                                      int64_t rows) const {
  kernels::Chain chain;
  if (traits_.gated_mlp) {
    chain.gated = kernels::GatedArgs{.h = up, .g = out, .rows = rows, .columns = shape_.ffn};
  } else {
    chain.activation =
        kernels::ActivationArgs{.h = up,
                                .g = out,
                                .rows = rows,
                                .columns = shape_.ffn,
                                .function = traits_.exact_gelu ? kernels::Activation::kGelu
                                                               : kernels::Activation::kGeluTanh};
  }
  return chain;
}

void StageModel::ForwardAttention(const MicroBatch& batch, int layer) {
  const LayerView at = View(batch.slot, layer);
  const LayerWeights& w = WeightsOf(batch, layer);
  const bool in_parts = !batch.parts.empty();
  const kernels::Values qkv = in_parts ? wide_gradient_ : at.qkv;
  linear_.Forward(PartOf(batch, layer, plan::Linear::kQkv), {.x = GatherRows(AttentionInput(at)),
                                                             .w = w.qkv.In(parameters_),
                                                             .bias = w.qkv_bias.In(parameters_),
                                                             .y = qkv,
                                                             .m = extent_.rows,
                                                             .n = shape_.qkv,
                                                             .k = shape_.hidden});
  if (in_parts) return AttendParts(batch, layer);
  Rotate(qkv, 0, extent_.rows, Rotation::kForward);
  kernels::AttentionArgs attention = AttentionOf(qkv, at.attention, at.lse);
  attention.sequences = shape_.sequences;
  attention.tokens = extent_.tokens;
  attention.lengths = batch.lengths;
  attention.dropout = DropoutAt(batch, ModelLayer(batch, layer), kernels::kSiteAttention, 0);
  ops_.Attention(attention);
}

void StageModel::AttendParts(const MicroBatch& batch, int layer) {
  const LayerView at = View(batch.slot, layer);
  kernels::Values rows = wide_gradient_;
  kernels::Values result = at.attention;
  for (const SequencePart& part : batch.parts) {
    Rotate(rows, part.first_position, part.rows, Rotation::kForward);
    const int64_t first_row = part.sequence * shape_.tokens;
    const kernels::Values sequence = at.qkv + first_row * shape_.qkv;
    ops_.Copy(sequence + part.first_position * shape_.qkv, rows, part.rows * shape_.qkv);
    // Attention writes a row where its sequence has it; the other buffers have only the parts'
    // rows.
    const kernels::Values out = attention_gradient_ + first_row * shape_.attention;
    kernels::AttentionArgs attention =
        AttentionOf(sequence, out, at.lse + first_row * shape_.heads);
    attention.sequences = 1;
    attention.tokens = part.first_position + part.rows;
    attention.first_query = part.first_position;
    ops_.Attention(attention);
    ops_.Copy(result, out + part.first_position * shape_.attention, part.rows * shape_.attention);
    rows += part.rows * shape_.qkv;
    result += part.rows * shape_.attention;
  }
}

kernels::AttentionArgs StageModel::AttentionOf(kernels::Values qkv, kernels::Values out,
                                               float* lse) const {
  kernels::AttentionArgs args{};
  args.q = qkv;
  args.k = qkv + shape_.attention;
  args.v = qkv + shape_.attention + shape_.key_heads * shape_.head_dim;
  args.stride = shape_.qkv;
  args.out = out;
  args.lse = lse;
  args.heads = shape_.heads;
  args.head_dim = shape_.head_dim;
  args.group = shape_.heads / shape_.key_heads;
  args.first_head = tensor_index_ * shape_.heads;
  args.causal = shape_.causal;
  args.scratch = attention_scratch_;
  return args;
}

// Computes a half layer's last product, from `x` (rows x k) to the branch.
kernels::ConstValues StageModel::SumToBranch(LinearLayers::Part part, kernels::ConstValues x,
                                             WeightRef weight, int64_t k) {
  return SumProduct(branch_, extent_.rows, [&](const plan::RowPiece& piece) {
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
  const LayerView at = View(batch.slot, layer);
  const LayerWeights& w = WeightsOf(batch, layer);
  const int64_t rows = extent_.local_rows;
  return shape_.post_norm
             ? Norm(at.middle, w.norm1, w.norm1_bias, at.norm2, at.mean2, at.rstd2, rows)
             : Norm(at.middle, w.norm2, w.norm2_bias, at.norm2, at.mean2, at.rstd2, rows);
}

void StageModel::ForwardUp(const MicroBatch& batch, int layer, AfterUp after) {
  const LayerView at = View(batch.slot, layer);
  const LayerWeights& w = WeightsOf(batch, layer);
  const int64_t rows = extent_.rows;
  kernels::ResidualArgs add{};
  add.residual = at.input;
  add.branch = SumToBranch(PartOf(batch, layer, plan::Linear::kOutput), at.attention, w.output,
                           shape_.attention);
  add.bias = w.output_bias.In(parameters_);
  add.out = at.middle;
  add.rows = extent_.local_rows;
  add.columns = shape_.hidden;
  add.dropout = DropoutAt(batch, ModelLayer(batch, layer), kernels::kSiteAttentionOutput,
                          extent_.first_local_row);
  const LinearLayers::Part part = PartOf(batch, layer, plan::Linear::kUp);
  linear_.MakeInput(part, {.residual = add, .norm = MiddleNorm(batch, layer)});
  kernels::Chain chain = Activation(at.up, at.gelu, rows);
  chain.product = kernels::MatmulArgs{.x = GatherRows(at.norm2),
                                      .w = w.up.In(parameters_),
                                      .bias = w.up_bias.In(parameters_),
                                      .y = at.up,
                                      .m = rows,
                                      .n = shape_.up,
                                      .k = shape_.hidden};
  if (after == AfterUp::kBackward) return linear_.ForwardChain(part, chain);
  linear_.ForwardAndMakeInput(part, PartOf(batch, layer, plan::Linear::kDown), chain);
}

void StageModel::ForwardLayer(const MicroBatch& batch, int layer) {
  const LayerView at = View(batch.slot, layer);
  const LayerWeights& w = WeightsOf(batch, layer);
  ForwardAttention(batch, layer);
  ForwardUp(batch, layer, AfterUp::kDown);
  const bool inner = layer + 1 < shape_.layers;
  kernels::ResidualArgs add{};
  add.residual = at.middle;
  add.branch = SumToBranch(PartOf(batch, layer, plan::Linear::kDown), at.gelu, w.down, shape_.ffn);
  add.bias = w.down_bias.In(parameters_);
  add.out = inner ? View(batch.slot, layer + 1).input : Output(batch.slot);
  add.rows = extent_.local_rows;
  add.columns = shape_.hidden;
  add.dropout =
      DropoutAt(batch, ModelLayer(batch, layer), kernels::kSiteMlpOutput, extent_.first_local_row);
  kernels::Chain chain;
  if (shape_.post_norm) {
    const kernels::Values next = add.out;
    add.residual = at.norm2;
    add.out = at.norm1;
    chain.norm = Norm(at.norm1, w.norm2, w.norm2_bias, next, at.mean1, at.rstd1, add.rows);
  } else if (inner || IsLast(batch)) {
    chain.norm = NormAfter(batch, layer);
  }
  chain.residual = add;
  if (!inner) return ops_.RunChain(chain);
  linear_.MakeInput(PartOf(batch, layer + 1, plan::Linear::kQkv), chain);
}

void StageModel::Restore(const MicroBatch& batch, int layer) {
  if (shape_.recompute == plan::Recompute::kNone) return;
  if (shape_.recompute == plan::Recompute::kFull) {
    if (!shape_.post_norm) NormInput(batch, layer);
    ForwardAttention(batch, layer);
    ForwardUp(batch, layer, AfterUp::kBackward);
    return;
  }
  const LayerView at = View(batch.slot, layer);
  if (!shape_.post_norm) ops_.LayerNorm(InputNorm(batch, layer));
  ops_.LayerNorm(MiddleNorm(batch, layer));
  ops_.RunChain(Activation(at.up, at.gelu, extent_.rows));
}

// Short sequences are taken together whole, long ones in pieces of one sequence. The pieces of the
// sum over rows are the same either way (kernels/ops.h).
void StageModel::ForChunks(int64_t first_sequence, int64_t sequences,
                           absl::FunctionRef<void(const Chunk& chunk)> body) const {
  const int64_t begin = first_sequence * extent_.tokens;
  const int64_t end = begin + sequences * extent_.tokens;
  for (int64_t row = begin; row < end;) {
    const int64_t limit =
        extent_.tokens > shape_.chunk_rows ? (row / extent_.tokens + 1) * extent_.tokens : end;
    const int64_t rows = std::min(shape_.chunk_rows, limit - row);
    body(Chunk{row, rows, std::min(rows, extent_.tokens)});
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
          .rows_per_sum = extent_.tokens};
}

void StageModel::Loss(const MicroBatch& batch, const LossSums& losses) {
  SetExtent(batch);
  const kernels::ConstValues hidden = GatherRows(LastRows(batch.slot));
  if (encoder_head_ != nullptr) return encoder_head_->Loss(batch, hidden, losses);
  ForChunks(0, shape_.sequences, [&](const Chunk& chunk) {
    Logits(batch, chunk.row, chunk.rows);
    TokenLosses(ops_, stream_, tensor_group_, RowsOf(batch, chunk, losses.tokens));
  });
}

kernels::ConstValues StageModel::ClassLogits(const MicroBatch& batch) {
  SetExtent(batch);
  return encoder_head_->ClassLogits(batch, GatherRows(LastRows(batch.slot)));
}

kernels::ConstValues StageModel::TokenLogits(const MicroBatch& batch) {
  SetExtent(batch);
  return encoder_head_->TokenLogits(batch, GatherRows(LastRows(batch.slot)));
}

}  // namespace tercio::engine
