// One pipeline stage of a model (model/architecture.h) as one tensor rank computes it: its units in
// order, forward and backward of a micro-batch. The partition is that of Shoeybi et al.,
// "Megatron-LM", section 3.
//
// Works in the buffers of the arena only; all operations go to the given stream. In bf16 and fp16
// (plan/precision.h) it reads weights from "parameters.compute", which the caller keeps rounded;
// activations, logits and their gradients are values of that format, everything else is fp32
// (kernels/ops.h).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "plan/program.h"
#include "plan/stage_units.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/blocks/class_head.h"
#include "worker/blocks/embedding.h"
#include "worker/blocks/gradient_lanes.h"
#include "worker/blocks/language_head.h"
#include "worker/blocks/layer.h"
#include "worker/blocks/masked_head.h"
#include "worker/blocks/micro_batch.h"
#include "worker/blocks/products.h"
#include "worker/blocks/tensor_group.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"

namespace tercio::engine {

class StageModel {
 public:
  // Without `beside` no sum over tensor ranks runs beside products.
  StageModel(const v1::JobSpec& spec, const v1::RankPlan& plan, const plan::StageTensors& tensors,
             Arena& arena, device::Stream& stream, collective::Communicator& tensor_group,
             std::optional<blocks::OverlappedSums> beside = std::nullopt);
  StageModel(const StageModel&) = delete;
  StageModel& operator=(const StageModel&) = delete;

  // The layers' products, which also hold the state of FP8 (worker/blocks/products.h).
  blocks::Products& products() { return products_; }

  // The buffers of a slot to which the previous chunk writes a stream, and from which the next
  // chunk reads it: local rows x hidden. A stream without layers in the chunk has one for both.
  kernels::Values Input(const blocks::MicroBatch& batch, int stream) const {
    return ValuesAt(batch.slot, PlaceOf(batch, stream).input);
  }
  kernels::Values Output(const blocks::MicroBatch& batch, int stream) const {
    return ValuesAt(batch.slot, PlaceOf(batch, stream).output);
  }
  bool PassesThrough(const blocks::MicroBatch& batch, int stream) const {
    return PlaceOf(batch, stream).input == PlaceOf(batch, stream).output;
  }
  int streams() const { return static_cast<int>(shape_.streams.size()); }

  // Rows of a stream that this rank works on: its share of the micro-batch. REQUIRES: no parts.
  int64_t LocalRowsOf(const blocks::MicroBatch& batch, int stream) const {
    const plan::StreamShape& shape = shape_.stream(stream);
    return batch.tokens > 0 ? shape.local_rows * batch.tokens / shape.tokens : shape.local_rows;
  }

  bool IsFirst(const blocks::MicroBatch& batch) const { return shape_.first && batch.chunk == 0; }
  bool IsLast(const blocks::MicroBatch& batch) const {
    return shape_.last && batch.chunk + 1 == shape_.runs.chunks();
  }

  // Input (or tokens) -> Output of each stream, and in the model's last chunk the final norm: all
  // units of the chunk in turn. REQUIRES: all weights are there.
  void Forward(const blocks::MicroBatch& batch);
  // The same of one unit (plan/program.h), which reads what the one before it has written. A layer
  // also reads weights of the next unit, unless weights are gathered for each pass.
  void ForwardUnit(const blocks::MicroBatch& batch, int unit);

  // Last chunk, after Forward: adds the losses of the micro-batch's sequences to `losses`. No
  // gradients.
  void Loss(const blocks::MicroBatch& batch, const blocks::LossSums& losses);

  // Last chunk of a classifier, after Forward: sequences x classes.
  kernels::ConstValues ClassLogits(const blocks::MicroBatch& batch);
  // Last chunk of a classifier, after Loss: the same, of the micro-batch whose loss it was.
  kernels::ConstValues LastClassLogits() const { return class_head_->LastLogits(); }
  // Last chunk of a masked language model, after Forward (worker/blocks/masked_head.h).
  kernels::ConstValues TokenLogits(const blocks::MicroBatch& batch);

  // Last chunk, after Forward: logits of rows [row, row + rows) over this rank's vocabulary
  // (padding included), rows x local vocabulary. REQUIRES: a language model whose ranks do not
  // divide rows; rows is at most the chunk of the stage's shape.
  kernels::ConstValues Logits(const blocks::MicroBatch& batch, int64_t row, int64_t rows) {
    return language_head_->Logits(LastRows(batch) + row * shape_.hidden, rows);
  }

  // Last chunk, after Forward: what the head reads, the rows that are here (local rows x hidden).
  kernels::ConstValues HeadInput(const blocks::MicroBatch& batch) const { return LastRows(batch); }
  // Null but on the last stage of a language model.
  blocks::LanguageHead* language_head() { return language_head_.get(); }

  // Sets the factor of the loss's gradient; 1 at first.
  void SetLossScale(double scale);

  // After Forward, unit after unit in reverse. `flow` holds the gradients of the outputs of the
  // unit's streams, one after the other (before the head: nothing; losses are written as by Loss),
  // and ends as those of their inputs. Weight gradients go to `lanes`.
  void BackwardUnit(const blocks::MicroBatch& batch, int unit, kernels::Values flow,
                    const blocks::LossSums& losses, blocks::GradientLanes& lanes);
  // Layers of the whole model.
  int model_layers() const { return model_layers_; }

 private:
  kernels::Values ValuesAt(int slot, int64_t offset) const {
    return {slots_[static_cast<size_t>(slot)] + offset, shape_.precision.format,
            shape_.precision.stored};
  }
  float* FloatsAt(int slot, int64_t offset) const {
    return reinterpret_cast<float*>(slots_[static_cast<size_t>(slot)] + offset);
  }
  blocks::Frame FrameOf(int slot, size_t layer) const {
    return {slots_[static_cast<size_t>(slot)], shared_, activations_.layers[layer].data(),
            shape_.precision};
  }
  const plan::StreamPlace& PlaceOf(const blocks::MicroBatch& batch, int stream) const {
    return activations_.streams[static_cast<size_t>(batch.chunk)][static_cast<size_t>(stream)];
  }
  int HeadUnit() const { return static_cast<int>(layers_.size()); }
  int HeadStream() const { return streams() - 1; }
  blocks::Embedding::Kept EmbeddingAt(int slot) const;
  // How much of each buffer the micro-batch takes, for each stream.
  using Passes = absl::InlinedVector<blocks::Pass, 2>;
  Passes PassesOf(const blocks::MicroBatch& batch) const;
  blocks::Pass PassOf(const blocks::MicroBatch& batch, int stream) const;
  // Whether the layer follows another one of its stream in its chunk.
  bool Follows(size_t layer) const {
    return !shape_.runs.IsFirstOfChunk(static_cast<int>(layer)) &&
           units_.stream_of(layer) == units_.stream_of(layer - 1);
  }
  void ForwardLayer(const blocks::Pass& pass, size_t layer);
  // What follows the last layer of a stream in a chunk.
  blocks::Continuation AfterChunk(const blocks::Pass& pass) const;
  void ScaleHeadInput(const blocks::Pass& pass, kernels::Values rows) {
    const float scale = units_.architecture.head.input_scale;
    if (scale != 1) ops_.Scale(rows, scale, pass.local_rows * shape_.hidden);
  }
  // The head's input: the rows of it that are here.
  kernels::ConstValues LastRows(const blocks::MicroBatch& batch) const {
    return final_norm_.has_value() ? ValuesAt(batch.slot, activations_.final_norm)
                                   : Output(batch, HeadStream());
  }
  void BackwardHead(const blocks::Pass& pass, kernels::Values flow, const blocks::LossSums& losses,
                    blocks::GradientLanes& lanes);
  // This rank's part of the gradient of the head's input: local rows.
  kernels::Values BackwardPredictions(const blocks::Pass& pass, const blocks::LossSums& losses,
                                      blocks::GradientLanes& lanes);

  const plan::StageShape shape_;
  const plan::StageUnits units_;
  const plan::SlotActivations activations_;
  const std::vector<int> layer_numbers_;  // in the model
  const int model_layers_;
  // Weights are gathered for each pass, so that a layer reads no weights but its own.
  const bool layers_stand_alone_;
  std::vector<std::byte*> slots_;
  std::byte* shared_;
  kernels::Ops& ops_;
  blocks::TensorGroup tensor_;
  blocks::Products products_;
  const blocks::Tools tools_;
  kernels::Values head_gradient_;  // (rows, hidden)
  std::optional<blocks::Embedding> embedding_;
  std::vector<blocks::Layer> layers_;
  std::optional<blocks::NormLayer> final_norm_;
  std::unique_ptr<blocks::LanguageHead> language_head_;
  std::unique_ptr<blocks::MaskedHead> masked_head_;
  std::unique_ptr<blocks::ClassHead> class_head_;
};

}  // namespace tercio::engine
