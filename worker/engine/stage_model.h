// One pipeline stage of a transformer (plan/model_traits.h), as one tensor rank computes it:
// forward and backward of a micro-batch. The partition is that of Shoeybi et al., "Megatron-LM",
// section 3.
//
// Works in the buffers of the arena only; all operations go to the given stream. In bf16 and fp16
// (plan/precision.h) it reads weights from "parameters.compute", which the caller keeps rounded;
// activations, logits and their gradients are values of that format, everything else is fp32
// (kernels/ops.h).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "plan/memory_map.h"
#include "plan/model_traits.h"
#include "plan/precision.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"
#include "worker/engine/encoder_head.h"
#include "worker/engine/gradient_lanes.h"
#include "worker/engine/linear_layers.h"
#include "worker/engine/micro_batch.h"
#include "worker/engine/stage_weights.h"
#include "worker/engine/token_losses.h"
#include "worker/progress/whereabouts.h"

namespace tercio::engine {

class StageModel {
 public:
  // A stream for sums over tensor ranks that run beside products (parallelism.tensor_overlap).
  struct OverlappedSums {
    device::Stream* stream;
    device::Event* product_done;
    progress::Whereabouts* where;
  };
  // Without `beside` nothing overlaps.
  StageModel(const v1::JobSpec& spec, const v1::RankPlan& plan, const plan::StageTensors& tensors,
             Arena& arena, device::Stream& stream, collective::Communicator& tensor_group,
             std::optional<OverlappedSums> beside = std::nullopt);

  // The layers' products, which also hold the state of FP8 (linear_layers.h).
  LinearLayers& layers() { return linear_; }

  // The buffers of a slot to which the previous chunk writes its activation, and from which the
  // next chunk reads it.
  kernels::Values Input(int slot) const { return View(slot, 0).input; }
  kernels::Values Output(int slot) const { return ValuesAt(slot, slot_layout_.output); }

  // Rows of the residual stream that this rank works on: its share of the micro-batch. REQUIRES: no
  // parts.
  int64_t LocalRowsOf(const MicroBatch& batch) const {
    return batch.tokens > 0 ? shape_.local_rows * batch.tokens / shape_.tokens : shape_.local_rows;
  }

  bool IsFirst(const MicroBatch& batch) const { return shape_.first && batch.chunk == 0; }
  bool IsLast(const MicroBatch& batch) const {
    return shape_.last && batch.chunk + 1 == shape_.chunks;
  }

  // Input (or tokens) -> Output, and in the model's last chunk the final norm.
  void Forward(const MicroBatch& batch);

  // Last chunk, after Forward: adds the losses of the micro-batch's sequences to `losses`. No
  // gradients.
  void Loss(const MicroBatch& batch, const LossSums& losses);

  // Last chunk of a classifier, after Forward: sequences x classes.
  kernels::ConstValues ClassLogits(const MicroBatch& batch);
  // Last chunk of a classifier, after Loss: the same, of the micro-batch whose loss it was.
  kernels::ConstValues LastClassLogits() const { return encoder_head_->LastClassLogits(); }
  // Last chunk of a masked language model, after Forward (encoder_head.h).
  kernels::ConstValues TokenLogits(const MicroBatch& batch);

  // Last chunk, after Forward: logits of rows [row, row + rows) over this rank's vocabulary
  // (padding included), rows x local vocabulary. REQUIRES: rows is at most the chunk of the stage's
  // shape.
  kernels::ConstValues Logits(const MicroBatch& batch, int64_t row, int64_t rows);

  // Sets the factor of the loss's gradient; 1 at first.
  void SetLossScale(double scale) {
    gradient_scale_ = scale;
    if (encoder_head_ != nullptr) encoder_head_->SetLossScale(scale);
  }

  // After Forward. `flow` holds the gradient of Output (in the last chunk: nothing; losses are
  // written as by Loss) and ends as the gradient of Input. Weight gradients go to `lanes`.
  // layer_done(layer) is called when the gradients of a layer are written: `layers of the model`
  // for the head, descending, -1 for the embedding.
  void Backward(const MicroBatch& batch, kernels::Values flow, const LossSums& losses,
                GradientLanes& lanes, absl::FunctionRef<void(int layer)> layer_done);

 private:
  struct Chunk {
    int64_t row;
    int64_t rows;
    int64_t rows_per_leaf;
  };

  // A layer's activations, of a slot or shared (plan/memory_map.h).
  struct LayerView {
    kernels::Values input, norm1, qkv, attention, middle, norm2, up, gelu;
    float *mean1, *rstd1, *lse, *mean2, *rstd2;
  };

  // `layer` counts from the first of the chunk.
  LayerView View(int slot, int layer) const;
  kernels::Values ValuesAt(int slot, int64_t offset) const {
    return {slots_[static_cast<size_t>(slot)] + offset, shape_.precision.format,
            shape_.precision.stored};
  }
  float* FloatsAt(int slot, int64_t offset) const {
    return reinterpret_cast<float*>(slots_[static_cast<size_t>(slot)] + offset);
  }
  const LayerWeights& WeightsOf(const MicroBatch& batch, int layer) const {
    return weights_.layers[static_cast<size_t>(batch.chunk * shape_.layers + layer)];
  }
  LinearLayers::Part PartOf(const MicroBatch& batch, int layer, plan::Linear linear) const {
    return {batch.chunk * shape_.layers + layer, linear};
  }
  int ModelLayer(const MicroBatch& batch, int layer) const {
    return layers_[static_cast<size_t>(batch.chunk * shape_.layers + layer)];
  }
  // `first_row`: of the micro-batch, that the call begins with.
  kernels::Dropout DropoutAt(const MicroBatch& batch, int layer, uint32_t site,
                             int64_t first_row) const;
  kernels::LayerNormArgs Norm(kernels::ConstValues x, WeightRef weight, WeightRef bias,
                              kernels::Values y, float* mean, float* rstd, int64_t rows) const;
  kernels::LayerNormArgs NormAfter(const MicroBatch& batch, int layer) const;
  kernels::ConstValues FinalNorm(int slot) const { return ValuesAt(slot, slot_layout_.final_norm); }
  // The head's input: the rows of it that are here.
  kernels::ConstValues LastRows(int slot) const {
    return shape_.post_norm ? kernels::ConstValues(Output(slot)) : FinalNorm(slot);
  }
  // All rows of it; REQUIRES: gathered, where they are spread.
  kernels::ConstValues HeadInput(const MicroBatch& batch) const {
    return shape_.sequence_parallel ? kernels::ConstValues(gathered_) : LastRows(batch.slot);
  }
  // Attention's input: the rows that are here.
  kernels::ConstValues AttentionInput(const LayerView& at) const {
    return shape_.post_norm ? at.input : at.norm1;
  }
  // Sums all rows, which are rounded, over tensor ranks; returns this rank's part.
  kernels::Values SumRows(kernels::Values partial, int64_t rows);
  // Sums the rows of `partial` that `multiply` writes, like SumRows; in pieces, so that one is
  // summed while the next is computed.
  kernels::Values SumProduct(kernels::Values partial, int64_t rows,
                             absl::FunctionRef<void(const plan::RowPiece& piece)> multiply);
  kernels::ConstValues SumToBranch(LinearLayers::Part part, kernels::ConstValues x,
                                   WeightRef weight, int64_t k);
  // All rows, from every tensor rank's part; valid until the next call.
  kernels::ConstValues GatherRows(kernels::ConstValues local);
  // The overlap of a lane's segment with the rows of the residual stream that are here.
  struct LocalRows {
    int64_t begin = 0;  // from the first local row
    int64_t count = 0;
  };
  LocalRows LocalPart(const plan::LaneSegment& segment) const;

  // Rotates queries and keys by their positions; kBack: their gradients.
  enum class Rotation { kForward, kBack };
  void Rotate(kernels::Values qkv, int64_t first_position, int64_t rows, Rotation direction);
  static const int32_t* TypesAt(const MicroBatch& batch, int64_t row) {
    return batch.types == nullptr ? nullptr : batch.types + row;
  }
  void Embed(const MicroBatch& batch);
  void AddPositions(const MicroBatch& batch, kernels::Values sum);
  void NormEmbedding(const MicroBatch& batch, kernels::Values sum);
  // The norm after a layer's attention: of its own sum, or in front of its feed-forward part.
  kernels::LayerNormArgs MiddleNorm(const MicroBatch& batch, int layer) const;
  void BackwardPostNorm(const MicroBatch& batch, WeightRef weight, WeightRef bias,
                        kernels::ConstValues sum, const float* mean, const float* rstd,
                        kernels::Values flow, GradientLanes& lanes);
  // Adds the gradient of a half layer's input to the flow: from wide_gradient_, through the half
  // layer's first product, of `width` columns, and its norm.
  void BackwardInput(const MicroBatch& batch, LinearLayers::Part part, WeightRef product,
                     int64_t width, WeightRef weight, WeightRef bias, kernels::ConstValues x,
                     const float* mean, const float* rstd, kernels::Values flow,
                     GradientLanes& lanes);
  kernels::Chain Activation(kernels::ConstValues up, kernels::Values out, int64_t rows) const;
  void NormInput(const MicroBatch& batch, int layer);
  // The norm in front of a layer's attention.
  kernels::LayerNormArgs InputNorm(const MicroBatch& batch, int layer) const;
  void ForwardLayer(const MicroBatch& batch, int layer);
  void ForwardAttention(const MicroBatch& batch, int layer);
  // Without sizes of the batch, lengths and dropout.
  kernels::AttentionArgs AttentionOf(kernels::Values qkv, kernels::Values out, float* lse) const;
  // Attention of the batch's parts: their rows of query, key and value, in wide_gradient_, join
  // those of the slot.
  void AttendParts(const MicroBatch& batch, int layer);
  // Up to the activation of the feed-forward part, and what reads it next: in recomputation its
  // last product is left out.
  enum class AfterUp { kDown, kBackward };
  void ForwardUp(const MicroBatch& batch, int layer, AfterUp after);
  // Recomputes the activations of a layer that Forward did not keep.
  void Restore(const MicroBatch& batch, int layer);
  // body(const Chunk&) for the chunks of those sequences, in order.
  void ForChunks(int64_t first_sequence, int64_t sequences,
                 absl::FunctionRef<void(const Chunk& chunk)> body) const;
  kernels::LabelSmoothing SmoothingOf(const MicroBatch& batch) const {
    return batch.training ? smoothing_ : kernels::LabelSmoothing();
  }
  // The chunk whose logits are there, and what becomes of them.
  TokenRows RowsOf(const MicroBatch& batch, const Chunk& chunk, double* losses) const;
  void BackwardHead(const MicroBatch& batch, kernels::Values flow, double* losses,
                    GradientLanes& lanes);
  void BackwardEncoderHead(const MicroBatch& batch, kernels::Values flow, const LossSums& losses,
                           GradientLanes& lanes);
  // Gradient of the activation's input, into wide_gradient_, for the part before.
  void BackwardDown(LinearLayers::Part part, LinearLayers::Part before, kernels::ConstValues branch,
                    WeightRef weight, kernels::ConstValues up);
  void BackwardMlp(const MicroBatch& batch, int layer, kernels::Values flow, GradientLanes& lanes);
  void BackwardAttention(const MicroBatch& batch, int layer, kernels::Values flow,
                         GradientLanes& lanes);
  // What becomes of the flow: the gradient of the norm's input, or the sum of both.
  enum class FlowChange { kReplace, kAdd };
  void BackwardNorm(const MicroBatch& batch, WeightRef weight, WeightRef bias,
                    kernels::ConstValues dy, kernels::ConstValues x, const float* mean,
                    const float* rstd, kernels::Values flow, FlowChange change,
                    GradientLanes& lanes);
  // The gradient of a branch that was added to the residual stream.
  kernels::ConstValues BackwardResidual(const MicroBatch& batch, int layer, uint32_t site,
                                        WeightRef bias, kernels::ConstValues flow,
                                        GradientLanes& lanes);
  // dw = dy^T x, per lane.
  void BackwardWeight(const MicroBatch& batch, LinearLayers::Part part, WeightRef weight,
                      WeightRef bias, kernels::ConstValues dy, kernels::ConstValues x, int64_t n,
                      int64_t k, GradientLanes& lanes);
  void BackwardEmbedding(const MicroBatch& batch, kernels::Values flow, GradientLanes& lanes);

  // How much of each buffer the micro-batch in work takes: rows are stored densely.
  struct Extent {
    int64_t tokens;
    int64_t rows;
    int64_t local_rows;
    int64_t first_local_row;  // of the micro-batch, that the local ones begin with
  };
  // Every public pass over a micro-batch begins with it.
  void SetExtent(const MicroBatch& batch);

  plan::StageShape shape_;
  Extent extent_{};
  plan::ModelTraits traits_;
  plan::LayerActivations layout_;
  plan::SlotActivations slot_layout_;
  StageWeights weights_;
  std::vector<int> layers_;  // numbers of layers in the model
  int model_layers_;
  int tensor_index_;
  int64_t vocabulary_begin_ = 0;
  int64_t vocabulary_valid_ = 0;  // rows of the vocabulary here that are not padding
  float dropout_;
  uint64_t seed_;
  double loss_weight_;  // weight of each token in the mean
  double gradient_scale_ = 1;
  kernels::LabelSmoothing smoothing_;

  device::Stream& stream_;
  const std::optional<OverlappedSums> overlapped_;
  kernels::Ops& ops_;
  collective::Communicator& tensor_group_;
  std::vector<std::byte*> slots_;
  std::byte* shared_;
  kernels::ConstValues parameters_;
  LinearLayers linear_;
  kernels::Values branch_;
  kernels::Values branch_gradient_;
  kernels::Values norm_gradient_;
  kernels::Values gathered_;
  kernels::Values local_sum_;
  kernels::Values wide_gradient_;
  kernels::Values attention_gradient_;
  float* attention_scratch_;
  kernels::Values gated_gradient_;
  float* rotary_;  // cosines and sines of every position
  float* tensor_scratch_;
  kernels::Values logits_;
  float* stats_ = nullptr;
  float* all_stats_ = nullptr;
  float* lse_ = nullptr;
  float* loss_ = nullptr;
  std::unique_ptr<EncoderHead> encoder_head_;
};

}  // namespace tercio::engine
