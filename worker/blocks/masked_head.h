// The prediction of masked tokens (Devlin et al. 2019, with the transform of their code: dense,
// GELU, norm, tied matrix with a bias).
//
// The vocabulary is cut over tensor ranks; everything else is computed by each of them alike. Only
// positions that are predicted go through the head: a sequence after the other, in chunks of rows,
// so that sums do not depend on the layout.
#pragma once

#include "model/options.h"
#include "worker/blocks/block.h"
#include "worker/blocks/language_head.h"

namespace tercio::blocks {

class MaskedHead {
 public:
  MaskedHead(const model::MaskedHeadOptions& options, const HeadJob& job,
             const WeightFinder& weights, const Tools& tools, device::Stream& stream);

  // Sets the factor of the loss's gradient; 1 at first.
  void SetLossScale(double scale) { gradient_scale_ = scale; }

  // x (rows x hidden): all rows of the micro-batch. Adds the losses of its sequences.
  void Loss(const Pass& pass, kernels::ConstValues x, double* losses);
  // Loss, and its gradients: added to the predicted rows of `dx` (rows x hidden), alike on every
  // tensor rank; weight gradients go to `lanes`.
  void Backward(const Pass& pass, kernels::ConstValues x, kernels::Values dx, double* losses,
                GradientLanes& lanes);
  // The logits of the first sequence's predicted rows (rows x local vocabulary). REQUIRES: at most
  // the chunk of the stage's shape.
  kernels::ConstValues Logits(const Pass& pass, kernels::ConstValues x);

 private:
  // Predicted rows [begin, begin + rows) of a sequence.
  struct Chunk {
    int64_t sequence;  // in the micro-batch
    int64_t at;        // in `targets` and `predicted`
    int64_t rows;
  };
  // Scratch of a chunk: (rows, hidden).
  struct Buffers {
    kernels::Values rows, transform, activation, norm, gradient, transform_gradient;
    float *mean, *rstd;
  };

  template <typename Body>
  void ForChunks(const Pass& pass, int64_t first_sequence, int64_t sequences,
                 const Body& body) const;
  void LogitsOfChunk(const Pass& pass, kernels::ConstValues x, const Chunk& chunk);
  TokenRows RowsOf(const Pass& pass, const Chunk& chunk, double* losses) const;
  // After the chunk's logits have become their gradient. `accumulate`: the matrix's gradient is
  // added to what is there.
  void BackwardChunk(const Pass& pass, const Chunk& chunk, kernels::Values dx,
                     const Gradients& gradients, bool accumulate);
  void BackwardTransform(const Chunk& chunk, const Gradients& gradients);

  const model::NormOptions norm_;
  const Tools& tools_;
  const HeadJob job_;
  device::Stream& stream_;
  const VocabularyPart part_;
  // To the vocabulary (local vocabulary, hidden); the transform and its norm (hidden, hidden).
  const WeightRef weight_, bias_, transform_, transform_bias_, norm_weight_, norm_bias_;
  const Buffers at_;
  double gradient_scale_ = 1;
};

}  // namespace tercio::blocks
