#include "worker/engine/stage_model.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "plan/lanes.h"
#include "plan/model_tensors.h"
#include "worker/blocks/rotary_table.h"

namespace tercio::engine {
namespace {

using blocks::MicroBatch;
using blocks::Pass;

const char* WeightsThatAreRead(const plan::StageShape& shape) {
  return shape.precision.format == kernels::Format::kFloat32 ? "parameters" : "parameters.compute";
}

}  // namespace

StageModel::StageModel(const v1::JobSpec& spec, const v1::RankPlan& plan,
                       const plan::StageTensors& tensors, Arena& arena, device::Stream& stream,
                       collective::Communicator& tensor_group,
                       std::optional<blocks::OverlappedSums> beside)
    : shape_(plan::ShapeOfStage(spec, plan.layout(), plan.placement().pipeline_index())),
      units_(plan::UnitsOfStage(spec.model(), plan.layout(), plan.placement().pipeline_index())),
      activations_(plan::ActivationsOfSlot(shape_, units_)),
      layer_numbers_(plan.stage().layers().begin(), plan.stage().layers().end()),
      model_layers_(spec.model().layers()),
      shared_(arena.Get<std::byte>("activations.shared")),
      ops_(stream.ops()),
      tensor_(shape_, plan.placement().tensor_index(), arena, stream, tensor_group, beside),
      products_(shape_, units_, arena.ValuesOf(WeightsThatAreRead(shape_), shape_.precision),
                plan::LanesPerDataRank(plan.lanes(), plan.layout().data()), arena, stream),
      tools_{shape_,
             ops_,
             tensor_,
             products_,
             arena.ValuesOf(WeightsThatAreRead(shape_), shape_.precision),
             {static_cast<float>(spec.model().dropout()), spec.training().seed()},
             arena},
      head_gradient_(tools_.Scratch("norm_gradient")) {
  for (int slot = 0; slot < plan.stage().activation_slots(); ++slot) {
    slots_.push_back(arena.Get<std::byte>(absl::StrCat("activations.", slot)));
  }
  if (arena.Bytes("workspace.rotary") > 0) {
    const std::vector<float> rotary = blocks::RotaryTable(spec.model());
    stream.CopyFromHost(arena.Floats("workspace.rotary"), rotary.data(),
                        static_cast<int64_t>(rotary.size() * sizeof(float)));
  }
  const blocks::WeightFinder weights(tensors);
  const model::Architecture& architecture = units_.architecture;
  if (shape_.first) embedding_.emplace(architecture.embedding, weights, tools_);
  for (size_t i = 0; i < units_.layers.size(); ++i) {
    // Every chunk's first layer begins with its input, where chunks expect it.
    if (i % static_cast<size_t>(shape_.layers) == 0) {
      TERCIO_CHECK_EQ(activations_.layers[i].front().offset, 0);
    }
    layers_.emplace_back(architecture.kinds[static_cast<size_t>(units_.layers[i])], units_.layer(i),
                         weights.Under(absl::StrCat("layers.", layer_numbers_[i])),
                         layer_numbers_[i], products_.FirstOfLayer(i), tools_);
  }
  if (!shape_.last) return;
  const model::Head& head = architecture.head;
  if (head.norm) final_norm_.emplace(*head.norm, shape_.hidden, weights, tools_.parameters);
  const double sequence_weight = 1.0 / static_cast<double>(spec.training().global_batch());
  blocks::HeadJob job = {spec.model().vocab_size(),
                         static_cast<float>(spec.training().label_smoothing()), sequence_weight};
  if (head.classes) {
    class_head_ = std::make_unique<blocks::ClassHead>(*head.classes, job, weights, tools_);
  }
  if (head.masked) {
    masked_head_ = std::make_unique<blocks::MaskedHead>(*head.masked, job, weights, tools_, stream);
  }
  job.loss_weight = 1.0 / (static_cast<double>(spec.training().global_batch()) *
                           static_cast<double>(spec.model().context()));
  if (head.language) {
    language_head_ =
        std::make_unique<blocks::LanguageHead>(*head.language, job, weights, tools_, stream);
  }
}

blocks::Embedding::Kept StageModel::EmbeddingAt(int slot) const {
  return {ValuesAt(slot, activations_.embedding_sum), FloatsAt(slot, activations_.embedding_mean),
          FloatsAt(slot, activations_.embedding_rstd)};
}

Pass StageModel::PassOf(const MicroBatch& batch) const {
  if (!batch.parts.empty()) {
    int64_t rows = 0;
    for (const blocks::SequencePart& part : batch.parts) rows += part.rows;
    return {batch, shape_.tokens, rows, rows, 0};
  }
  const int64_t tokens = batch.tokens > 0 ? batch.tokens : shape_.tokens;
  const int64_t local_rows = LocalRowsOf(batch);
  return {batch, tokens, shape_.sequences * tokens, local_rows,
          shape_.sequence_parallel ? tensor_.index() * local_rows : 0};
}

blocks::Continuation StageModel::AfterChunk(const Pass& pass) const {
  blocks::Continuation next;
  if (!IsLast(pass.batch) || !final_norm_.has_value()) return next;
  const int slot = pass.batch.slot;
  next.norm = final_norm_->Args(pass, Output(slot), ValuesAt(slot, activations_.final_norm),
                                FloatsAt(slot, activations_.final_mean),
                                FloatsAt(slot, activations_.final_rstd));
  return next;
}

void StageModel::Forward(const MicroBatch& batch) {
  const Pass pass = PassOf(batch);
  const size_t first = FirstOf(batch.chunk);
  const size_t end = first + static_cast<size_t>(shape_.layers);
  if (IsFirst(batch)) {
    embedding_->Forward(pass, EmbeddingAt(batch.slot), Input(batch.slot));
  }
  const blocks::Continuation entry = layers_[first].Entry(pass, FrameOf(batch.slot, first));
  if (entry.norm.has_value()) products_.MakeInput(*entry.reader, {.norm = entry.norm});
  for (size_t i = first; i < end; ++i) {
    const bool inner = i + 1 < end;
    const kernels::Values output =
        inner ? FrameOf(batch.slot, i + 1).Values(0) : Output(batch.slot);
    layers_[i].Forward(
        pass, FrameOf(batch.slot, i), output,
        inner ? layers_[i + 1].Entry(pass, FrameOf(batch.slot, i + 1)) : AfterChunk(pass));
  }
}

void StageModel::Loss(const MicroBatch& batch, const blocks::LossSums& losses) {
  const Pass pass = PassOf(batch);
  const kernels::ConstValues x = tensor_.GatherRows(pass, LastRows(batch.slot));
  if (language_head_) language_head_->Loss(pass, x, losses.tokens);
  if (masked_head_) masked_head_->Loss(pass, x, losses.tokens);
  if (class_head_) class_head_->Loss(pass, x, losses.sequences);
}

kernels::ConstValues StageModel::ClassLogits(const MicroBatch& batch) {
  const Pass pass = PassOf(batch);
  return class_head_->Logits(pass, tensor_.GatherRows(pass, LastRows(batch.slot)));
}

kernels::ConstValues StageModel::TokenLogits(const MicroBatch& batch) {
  const Pass pass = PassOf(batch);
  return masked_head_->Logits(pass, tensor_.GatherRows(pass, LastRows(batch.slot)));
}

void StageModel::SetLossScale(double scale) {
  if (language_head_) language_head_->SetLossScale(scale);
  if (masked_head_) masked_head_->SetLossScale(scale);
  if (class_head_) class_head_->SetLossScale(scale);
}

kernels::ConstValues StageModel::BackwardPredictions(const Pass& pass,
                                                     const blocks::LossSums& losses,
                                                     blocks::GradientLanes& lanes) {
  const kernels::ConstValues x = tensor_.GatherRows(pass, LastRows(pass.batch.slot));
  if (language_head_) {
    language_head_->Backward(pass, x, head_gradient_, losses.tokens, lanes);
    return tensor_.SumRows(pass, head_gradient_);
  }
  // The other heads add to the few rows that they have read, alike on every tensor rank.
  ops_.Zero(head_gradient_, pass.rows * shape_.hidden);
  if (masked_head_) masked_head_->Backward(pass, x, head_gradient_, losses.tokens, lanes);
  if (class_head_) class_head_->Backward(pass, x, head_gradient_, losses.sequences, lanes);
  return head_gradient_ + pass.first_local_row * shape_.hidden;
}

void StageModel::BackwardHead(const Pass& pass, kernels::Values flow,
                              const blocks::LossSums& losses, blocks::GradientLanes& lanes) {
  const kernels::ConstValues dx = BackwardPredictions(pass, losses, lanes);
  if (!final_norm_) return ops_.Copy(flow, dx, pass.local_rows * shape_.hidden);
  const int slot = pass.batch.slot;
  final_norm_->Backward(pass, dx, Output(slot), FloatsAt(slot, activations_.final_mean),
                        FloatsAt(slot, activations_.final_rstd), flow,
                        blocks::NormLayer::Change::kReplace, ops_, lanes);
}

void StageModel::Backward(const MicroBatch& batch, kernels::Values flow,
                          const blocks::LossSums& losses, blocks::GradientLanes& lanes,
                          absl::FunctionRef<void(int layer)> layer_done) {
  const Pass pass = PassOf(batch);
  if (IsLast(batch)) {
    BackwardHead(pass, flow, losses, lanes);
    layer_done(model_layers_);
  }
  const size_t first = FirstOf(batch.chunk);
  for (size_t i = first + static_cast<size_t>(shape_.layers); i-- > first;) {
    const blocks::Frame frame = FrameOf(batch.slot, i);
    layers_[i].Restore(pass, frame);
    layers_[i].Backward(pass, frame, flow, lanes);
    layer_done(layer_numbers_[i]);
  }
  if (IsFirst(batch)) {
    embedding_->Backward(pass, EmbeddingAt(batch.slot), flow, lanes);
    layer_done(-1);
  }
}

}  // namespace tercio::engine
