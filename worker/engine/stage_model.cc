#include "worker/engine/stage_model.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "plan/distillation.h"
#include "plan/lanes.h"
#include "plan/model_tensors.h"
#include "plan/preference.h"
#include "plan/state_shards.h"
#include "worker/blocks/relative_buckets.h"
#include "worker/blocks/rotary_table.h"

namespace tercio::engine {
namespace {

using blocks::MicroBatch;
using blocks::Pass;

}  // namespace

StageModel::StageModel(const v1::JobSpec& spec, const v1::RankPlan& plan,
                       const plan::StageTensors& tensors, Arena& arena, device::Stream& stream,
                       collective::Communicator& tensor_group,
                       std::optional<blocks::OverlappedSums> beside)
    : shape_(plan::ShapeOfStage(spec, plan.layout(), plan.placement().pipeline_index())),
      units_(plan::UnitsOfStage(spec.model(), plan.layout(), plan.placement().pipeline_index())),
      activations_(plan::ActivationsOfSlot(shape_, units_)),
      layer_numbers_(plan.stage().layers().begin(), plan.stage().layers().end()),
      model_layers_(model::LayersOf(spec.model())),
      layers_stand_alone_(plan::GathersWeights(spec, plan.layout())),
      shared_(arena.Get<std::byte>("activations.shared")),
      ops_(stream.ops()),
      tensor_(shape_, plan.placement().tensor_index(), arena, stream, tensor_group, beside),
      products_(shape_, units_,
                arena.ValuesOf(plan::WeightsBuffer(spec, plan.layout()), shape_.precision),
                plan::LanesPerDataRank(plan.lanes(), plan.layout().data()), arena, stream),
      tools_{shape_,
             ops_,
             tensor_,
             products_,
             arena.ValuesOf(plan::WeightsBuffer(spec, plan.layout()), shape_.precision),
             {static_cast<float>(spec.model().dropout()), spec.training().seed()},
             arena},
      head_gradient_(tools_.Scratch("norm_gradient")) {
  if (!tensors.quantized.empty()) {
    products_.SetQuantizedWeights({tensors, plan.layout().tensor(), plan.placement().tensor_index(),
                                   shape_.precision, arena, stream});
  }
  for (int slot = 0; slot < plan.stage().activation_slots(); ++slot) {
    slots_.push_back(arena.Get<std::byte>(absl::StrCat("activations.", slot)));
  }
  if (arena.Bytes("workspace.rotary") > 0) {
    const std::vector<float> rotary = blocks::RotaryTable(spec.model());
    stream.CopyFromHost(arena.Floats("workspace.rotary"), rotary.data(),
                        static_cast<int64_t>(rotary.size() * sizeof(float)));
  }
  if (arena.Bytes("workspace.buckets") > 0) {
    const std::vector<int32_t> buckets = blocks::RelativeBucketsOf(units_.architecture);
    stream.CopyFromHost(arena.Get<int32_t>("workspace.buckets"), buckets.data(),
                        static_cast<int64_t>(buckets.size() * sizeof(int32_t)));
  }
  const blocks::WeightFinder weights(tensors);
  const model::Architecture& architecture = units_.architecture;
  if (shape_.first) embedding_.emplace(architecture.embedding, weights, tools_);
  const int trained_from = plan::FirstTrainedLayer(spec);
  for (size_t i = 0; i < units_.layers.size(); ++i) {
    layers_.emplace_back(architecture.kinds[static_cast<size_t>(units_.layers[i])], units_.layer(i),
                         weights.Under(absl::StrCat("layers.", layer_numbers_[i])),
                         layer_numbers_[i], products_.FirstOfLayer(i),
                         layer_numbers_[i] > trained_from ? blocks::Layer::Input::kTakesGradient
                                                          : blocks::Layer::Input::kIgnoresGradient,
                         tools_);
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
                           static_cast<double>(shape_.head_stream().tokens));
  if (plan::LearnsPreferences(spec.training())) job.preferences = spec.training();
  if (plan::LearnsFromTeacher(spec.training())) job.distillation = spec.training().distillation();
  if (head.language) {
    language_head_ =
        std::make_unique<blocks::LanguageHead>(*head.language, job, weights, tools_, stream);
  }
}

blocks::Embedding::Kept StageModel::EmbeddingAt(int slot) const {
  return {ValuesAt(slot, activations_.embedding_sum), FloatsAt(slot, activations_.embedding_mean),
          FloatsAt(slot, activations_.embedding_rstd)};
}

Pass StageModel::PassOf(const MicroBatch& batch, int stream) const {
  const plan::StreamShape& shape = shape_.stream(stream);
  if (!batch.parts.empty()) {
    int64_t rows = 0;
    for (const blocks::SequencePart& part : batch.parts) rows += part.rows;
    return {{shape.tokens, rows, rows, 0}, batch, stream};
  }
  const int64_t tokens = batch.tokens > 0 ? batch.tokens : shape.tokens;
  const int64_t local_rows = LocalRowsOf(batch, stream);
  return {{tokens, shape_.sequences * tokens, local_rows,
           shape_.sequence_parallel ? tensor_.index() * local_rows : 0},
          batch,
          stream};
}

StageModel::Passes StageModel::PassesOf(const MicroBatch& batch) const {
  Passes passes;
  for (int stream = 0; stream < streams(); ++stream) {
    passes.push_back(PassOf(batch, stream));
    if (stream == 0) continue;
    blocks::Memory& memory = passes.back().memory;
    const plan::StreamShape& first = shape_.streams.front();
    static_cast<blocks::PassRows&>(memory) = {
        first.tokens, first.rows, first.local_rows,
        shape_.sequence_parallel ? tensor_.index() * first.local_rows : 0};
    memory.values = Output(batch, 0);
    memory.known = batch.memory_known;
  }
  return passes;
}

blocks::Continuation StageModel::AfterChunk(const Pass& pass) const {
  blocks::Continuation next;
  if (!IsLast(pass.batch) || pass.stream != HeadStream() || !final_norm_.has_value()) return next;
  const int slot = pass.batch.slot;
  next.norm = final_norm_->Args(
      pass, Output(pass.batch, pass.stream), ValuesAt(slot, activations_.final_norm),
      FloatsAt(slot, activations_.final_mean), FloatsAt(slot, activations_.final_rstd));
  return next;
}

void StageModel::ForwardLayer(const Pass& pass, size_t i) {
  const int slot = pass.batch.slot;
  const blocks::Frame frame = FrameOf(slot, i);
  // A layer whose weights are gathered does not read those of the next one, which may come later.
  if (!Follows(i) || layers_stand_alone_) {
    const blocks::Continuation entry = layers_[i].Entry(pass, frame);
    if (entry.norm.has_value()) products_.MakeInput(*entry.reader, {.norm = entry.norm});
  }
  if (i + 1 < layers_.size() && Follows(i + 1)) {
    const blocks::Frame next = FrameOf(slot, i + 1);
    if (layers_stand_alone_) return layers_[i].Forward(pass, frame, next.Values(0), {});
    return layers_[i].Forward(pass, frame, next.Values(0), layers_[i + 1].Entry(pass, next));
  }
  layers_[i].Forward(pass, frame, Output(pass.batch, pass.stream), AfterChunk(pass));
}

void StageModel::Forward(const MicroBatch& batch) {
  if (IsFirst(batch)) ForwardUnit(batch, plan::kEmbeddingUnit);
  for (int i = shape_.runs.first(batch.chunk); i < shape_.runs.end(batch.chunk); ++i) {
    ForwardUnit(batch, i);
  }
  if (IsLast(batch)) ForwardUnit(batch, HeadUnit());
}

void StageModel::ForwardUnit(const MicroBatch& batch, int unit) {
  const Passes passes = PassesOf(batch);
  const auto computes = [&](int stream) {
    return batch.only_stream < 0 || stream == batch.only_stream;
  };
  if (unit == plan::kEmbeddingUnit) {
    for (const Pass& pass : passes) {
      if (!computes(pass.stream)) continue;
      embedding_->Forward(pass, EmbeddingAt(batch.slot), Input(batch, pass.stream));
    }
  } else if (unit < HeadUnit()) {
    const auto layer = static_cast<size_t>(unit);
    const int stream = units_.stream_of(layer);
    if (computes(stream)) ForwardLayer(passes[static_cast<size_t>(stream)], layer);
  } else if (final_norm_.has_value() && computes(HeadStream())) {
    ScaleHeadInput(passes.back(), ValuesAt(batch.slot, activations_.final_norm));
  }
}

void StageModel::Loss(const MicroBatch& batch, const blocks::LossSums& losses) {
  const Pass pass = PassOf(batch, HeadStream());
  const kernels::ConstValues x = tensor_.GatherRows(pass, LastRows(batch));
  if (language_head_) language_head_->Loss(pass, x, losses);
  if (masked_head_) masked_head_->Loss(pass, x, losses.tokens);
  if (class_head_) class_head_->Loss(pass, x, losses.sequences);
}

kernels::ConstValues StageModel::ClassLogits(const MicroBatch& batch) {
  const Pass pass = PassOf(batch, HeadStream());
  return class_head_->Logits(pass, tensor_.GatherRows(pass, LastRows(batch)));
}

kernels::ConstValues StageModel::TokenLogits(const MicroBatch& batch) {
  const Pass pass = PassOf(batch, HeadStream());
  return masked_head_->Logits(pass, tensor_.GatherRows(pass, LastRows(batch)));
}

void StageModel::SetLossScale(double scale) {
  if (language_head_) language_head_->SetLossScale(scale);
  if (masked_head_) masked_head_->SetLossScale(scale);
  if (class_head_) class_head_->SetLossScale(scale);
}

kernels::Values StageModel::BackwardPredictions(const Pass& pass, const blocks::LossSums& losses,
                                                blocks::GradientLanes& lanes) {
  const kernels::ConstValues x = tensor_.GatherRows(pass, LastRows(pass.batch));
  if (language_head_) {
    language_head_->Backward(pass, x, head_gradient_, losses, lanes);
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
  const kernels::Values dx = BackwardPredictions(pass, losses, lanes);
  if (!final_norm_) return ops_.Copy(flow, dx, pass.local_rows * shape_.hidden);
  ScaleHeadInput(pass, dx);
  const int slot = pass.batch.slot;
  final_norm_->Backward(pass, dx, Output(pass.batch, pass.stream),
                        FloatsAt(slot, activations_.final_mean),
                        FloatsAt(slot, activations_.final_rstd), flow,
                        blocks::NormLayer::Change::kReplace, ops_, lanes);
}

void StageModel::BackwardUnit(const MicroBatch& batch, int unit, kernels::Values flow,
                              const blocks::LossSums& losses, blocks::GradientLanes& lanes) {
  Passes passes = PassesOf(batch);
  absl::InlinedVector<kernels::Values, 2> flows;
  for (Pass& pass : passes) {
    flows.push_back(flow);
    flow += pass.local_rows * shape_.hidden;
    pass.memory.gradient = flows.front();
  }
  if (unit == plan::kEmbeddingUnit) {
    absl::InlinedVector<blocks::Embedding::Part, 2> parts;
    for (size_t i = 0; i < passes.size(); ++i) parts.push_back({passes[i], flows[i]});
    embedding_->Backward(parts, EmbeddingAt(batch.slot), lanes);
  } else if (unit < HeadUnit()) {
    const auto layer = static_cast<size_t>(unit);
    const auto stream = static_cast<size_t>(units_.stream_of(layer));
    const blocks::Frame frame = FrameOf(batch.slot, layer);
    layers_[layer].Restore(passes[stream], frame);
    layers_[layer].Backward(passes[stream], frame, flows[stream], lanes);
  } else {
    BackwardHead(passes.back(), flows.back(), losses, lanes);
    // The head reads its own stream only.
    for (size_t i = 0; i + 1 < passes.size(); ++i) {
      ops_.Zero(flows[i], passes[i].local_rows * shape_.hidden);
    }
  }
}

}  // namespace tercio::engine
