// The class of each sequence, read from its first token (Devlin et al. 2019): dense, tanh, dense.
// Computed by every tensor rank alike.
#pragma once

#include "model/options.h"
#include "worker/blocks/block.h"
#include "worker/blocks/language_head.h"

namespace tercio::blocks {

class ClassHead {
 public:
  // `job.loss_weight`: of each sequence in the mean.
  ClassHead(const model::ClassHeadOptions& options, const HeadJob& job, const WeightFinder& weights,
            const Tools& tools);

  // Sets the factor of the loss's gradient; 1 at first.
  void SetLossScale(double scale) { gradient_scale_ = scale; }

  // x (rows x hidden): all rows of the micro-batch. Adds the losses of its sequences.
  void Loss(const Pass& pass, kernels::ConstValues x, double* losses);
  // Loss, and its gradients: added to the first rows of the sequences in `dx` (rows x hidden),
  // alike on every tensor rank; weight gradients go to `lanes`.
  void Backward(const Pass& pass, kernels::ConstValues x, kernels::Values dx, double* losses,
                GradientLanes& lanes);

  // The logits of each sequence's classes (sequences x classes); or as Loss has computed them last.
  kernels::ConstValues Logits(const Pass& pass, kernels::ConstValues x);
  kernels::ConstValues LastLogits() const { return at_.logits; }

 private:
  // One row for each sequence: hidden elements, or the classes'.
  struct Buffers {
    kernels::Values first, pooled, dropped, gradient, pooled_gradient, logits;
    float *stats, *lse, *loss;
  };

  // Sequences [first, first + count) of the micro-batch.
  void Compute(const Pass& pass, kernels::ConstValues x, int64_t first, int64_t count);
  void AddLosses(const Pass& pass, int64_t first, int64_t count, double* losses);
  void BackwardPooled(const Pass& pass, int64_t first, int64_t count);
  void BackwardWeights(int64_t first, int64_t count, const Gradients& gradients);
  kernels::Dropout DropoutOf(const Pass& pass, int64_t first_sequence) const;
  kernels::LabelSmoothing SmoothingOf(const Pass& pass) const {
    return {.amount = pass.batch.training ? job_.label_smoothing : 0.0f,
            .vocabulary = options_.classes};
  }

  const model::ClassHeadOptions options_;
  const HeadJob job_;
  const Tools& tools_;
  const WeightRef pooler_, pooler_bias_;    // (hidden, hidden)
  const WeightRef classes_, classes_bias_;  // (classes, hidden)
  const Buffers at_;
  double gradient_scale_ = 1;
};

}  // namespace tercio::blocks
