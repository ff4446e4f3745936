// The part after the last layer of a bert: the prediction of masked tokens (Devlin et al. 2019,
// with the transform of their code: dense, GELU, norm, tied matrix with a bias), and the class of
// each sequence, read from its first token (dense, tanh, dense).
//
// The vocabulary is cut over tensor ranks; everything else is computed by each of them alike. Only
// positions that are predicted go through the head: a sequence after the other, in chunks of rows,
// so that sums do not depend on the layout.
//
// Works in the buffers of the arena only; all operations go to the given stream.
#pragma once

#include "plan/memory_map.h"
#include "plan/model_traits.h"
#include "plan/precision.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/collective/communicator.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"
#include "worker/engine/gradient_lanes.h"
#include "worker/engine/micro_batch.h"
#include "worker/engine/stage_weights.h"

namespace tercio::engine {

class EncoderHead {
 public:
  EncoderHead(const v1::JobSpec& spec, const plan::StageShape& shape,
              const plan::ModelTraits& traits, const OutputWeights& weights, int tensor_index,
              kernels::ConstValues parameters, Arena& arena, device::Stream& stream,
              collective::Communicator& tensor_group);

  // Sets the factor of the loss's gradient; 1 at first.
  void SetLossScale(double scale) { gradient_scale_ = scale; }

  // hidden: rows x C, all rows of the micro-batch. Adds to `losses`.
  void Loss(const MicroBatch& batch, kernels::ConstValues hidden, const LossSums& losses);

  // Loss, and its gradients: `gradient` (rows x C, all rows, the same on every tensor rank) is
  // written, weight gradients go to `lanes`.
  void Backward(const MicroBatch& batch, kernels::ConstValues hidden, kernels::Values gradient,
                const LossSums& losses, GradientLanes& lanes);

  // The logits of each sequence's classes (sequences x classes).
  kernels::ConstValues ClassLogits(const MicroBatch& batch, kernels::ConstValues hidden);
  // The same, as Loss has computed them last.
  kernels::ConstValues LastClassLogits() const { return classes_.logits; }
  // The logits of the first sequence's predicted rows (rows x local vocabulary). REQUIRES: at most
  // the chunk of the stage's shape.
  kernels::ConstValues TokenLogits(const MicroBatch& batch, kernels::ConstValues hidden);

 private:
  // Predicted rows [begin, begin + rows) of a sequence.
  struct Chunk {
    int64_t sequence;  // in the micro-batch
    int64_t at;        // in `targets` and `predicted`
    int64_t rows;
  };
  struct Buffers {
    kernels::Values rows, transform, activation, norm, gradient, transform_gradient, logits;
    float *mean, *rstd, *stats, *all_stats, *lse, *loss;
  };
  struct ClassBuffers {
    kernels::Values first, pooled, dropped, gradient, pooled_gradient, logits;
    float *stats, *lse, *loss;
  };

  template <typename Body>
  void ForChunks(const MicroBatch& batch, int64_t first_sequence, int64_t sequences,
                 const Body& body) const;
  void LogitsOfChunk(const MicroBatch& batch, kernels::ConstValues hidden, const Chunk& chunk);
  void ForwardChunk(const MicroBatch& batch, kernels::ConstValues hidden, const Chunk& chunk,
                    double* losses);
  void BackwardChunk(const MicroBatch& batch, const Chunk& chunk, kernels::Values gradient,
                     const Gradients& gradients, bool accumulate);
  void BackwardTokens(const MicroBatch& batch, kernels::ConstValues hidden,
                      kernels::Values gradient, double* losses, GradientLanes& lanes);
  kernels::Dropout DropoutAt(const MicroBatch& batch, int64_t first_sequence) const;
  // Rows [first, first + count) of the class buffers.
  void ForwardClasses(const MicroBatch& batch, kernels::ConstValues hidden, int64_t first,
                      int64_t count);
  void ClassLosses(const MicroBatch& batch, int64_t first, int64_t count, double* losses);
  void BackwardClasses(const MicroBatch& batch, kernels::ConstValues hidden,
                       kernels::Values gradient, double* losses, GradientLanes& lanes);
  kernels::LabelSmoothing Smoothing(const MicroBatch& batch, int64_t classes) const {
    return {.amount = batch.training ? smoothing_ : 0.0f, .vocabulary = classes};
  }

  const plan::StageShape shape_;
  const plan::ModelTraits traits_;
  const OutputWeights weights_;
  // With sequence parallelism the gradients of whole tensors are summed over tensor ranks: one of
  // them gives all of it.
  const bool gives_whole_tensors_;
  const float smoothing_;
  const float dropout_;
  const uint64_t seed_;
  const int64_t vocabulary_;  // vocabulary of the model
  const int64_t vocabulary_begin_;
  const int64_t vocabulary_valid_;
  const double sequence_scale_;
  double gradient_scale_ = 1;
  kernels::ConstValues parameters_;
  device::Stream& stream_;
  kernels::Ops& ops_;
  collective::Communicator& tensor_group_;
  Buffers at_{};
  ClassBuffers classes_{};
  float* tensor_scratch_;
};

}  // namespace tercio::engine
