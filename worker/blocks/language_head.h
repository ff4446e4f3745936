// The logits of the vocabulary, and their cross-entropy: at every position, or, where samples
// choose their targets, at those that are predicted, a sequence after the other, so that sums do
// not depend on the layout. The vocabulary is cut over tensor ranks; the logits are computed in
// chunks of rows, so that they are never all there.
//
// Where preferences are learnt (plan/preference.h) the gradient of a sequence depends on the
// log-probabilities of its whole pair: the losses of a micro-batch are computed first, and the
// host waits for them.
//
// Where a teacher is learnt from (plan/distillation.h) its logits are asked for chunk by chunk.
#pragma once

#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "model/options.h"
#include "plan/preference.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/blocks/block.h"
#include "worker/blocks/divergences.h"
#include "worker/blocks/teacher_logits.h"
#include "worker/blocks/token_losses.h"
#include "worker/device/device.h"

namespace tercio::blocks {

// The part of the vocabulary that a tensor rank has, and the scratch of its cross-entropy.
struct VocabularyPart {
  int64_t begin;
  int64_t valid;           // rows that are not padding
  kernels::Values logits;  // (chunk rows, local vocabulary)
  float* stats;
  float* all_stats;
  float* lse;
  float* loss;
};
// REQUIRES: the stage's memory has the buffers of a head that predicts tokens.
VocabularyPart PartOfVocabulary(int64_t vocabulary, const Tools& tools);

// What every head needs of a job.
struct HeadJob {
  int64_t vocabulary;  // of the model
  float label_smoothing;
  double loss_weight;  // of each token in the mean, where the number of all is known beforehand
  std::optional<v1::TrainingSpec> preferences = std::nullopt;  // where these are learnt
  // Where a teacher is learnt from.
  std::optional<v1::DistillationSpec> distillation = std::nullopt;
};

// Without what depends on the rows.
TokenRows RowsOfVocabulary(const VocabularyPart& part, const HeadJob& job, const Pass& pass,
                           const Tools& tools);

class LanguageHead {
 public:
  LanguageHead(const model::LanguageHeadOptions& options, const HeadJob& job,
               const WeightFinder& weights, const Tools& tools, device::Stream& stream);

  // Sets the factor of the loss's gradient; 1 at first.
  void SetLossScale(double scale) { gradient_scale_ = scale; }

  // The teacher that is learnt from, which outlives the head. Before the first loss.
  void SetTeacher(TeacherLogits* teacher) { teacher_ = teacher; }

  // x (rows x hidden): all rows of the micro-batch. Adds the losses of its sequences.
  void Loss(const Pass& pass, kernels::ConstValues x, const LossSums& losses);
  // Loss, and its gradients: `dx` (rows x hidden) is this rank's part, to be summed over tensor
  // ranks; weight gradients go to `lanes`.
  void Backward(const Pass& pass, kernels::ConstValues x, kernels::Values dx,
                const LossSums& losses, GradientLanes& lanes);
  // Logits of a chunk of x (rows x hidden).
  kernels::ConstValues LogitsOf(const Pass& pass, kernels::ConstValues x, const HeadChunk& chunk) {
    return Logits(InputOf(pass, x, chunk), chunk.rows);
  }
  // rows x local vocabulary (padding included) of rows of hidden elements. REQUIRES: at most the
  // chunk of the stage's shape.
  kernels::ConstValues Logits(kernels::ConstValues x, int64_t rows);

 private:
  using Chunk = HeadChunk;
  // body(const Chunk&) for the chunks of those sequences, in order.
  void ForChunks(const Pass& pass, int64_t first_sequence, int64_t sequences,
                 absl::FunctionRef<void(const Chunk& chunk)> body) const;
  void ForChosenChunks(const Pass& pass, int64_t first_sequence, int64_t sequences,
                       absl::FunctionRef<void(const Chunk& chunk)> body) const;
  // The rows of x (rows x hidden) that a chunk reads, which lie densely.
  kernels::ConstValues InputOf(const Pass& pass, kernels::ConstValues x, const Chunk& chunk);
  // Gradients of InputOf, from those of the logits, to `dx`.
  void BackwardInput(const Pass& pass, const Chunk& chunk, kernels::Values dx);
  // `sums`: of each sequence of the micro-batch.
  TokenRows RowsOf(const Pass& pass, const Chunk& chunk, double* sums) const;
  // Adds the losses of a chunk whose logits are there, which become their gradient times `scale`.
  void LossesAndGradients(const Pass& pass, const Chunk& chunk, const LossSums& losses,
                          float scale);
  // Adds the divergences of a chunk whose logits are there. Returns the teacher's.
  kernels::ConstValues AddDivergences(const Pass& pass, const Chunk& chunk, double* divergences);
  // What the gradient of each sequence's loss is multiplied with, where preferences are learnt. The
  // losses are left as they were.
  void FindScales(const Pass& pass, kernels::ConstValues x, const LossSums& losses);

  const Tools& tools_;
  const HeadJob job_;
  device::Stream& stream_;
  const VocabularyPart part_;
  const float softcap_;
  const WeightRef weight_, bias_;  // (local vocabulary, hidden)
  // Scratch of a chunk of chosen rows: (rows, hidden).
  const kernels::Values chosen_, chosen_gradient_;
  std::optional<Divergences> divergences_;  // where a teacher is learnt from
  TeacherLogits* teacher_ = nullptr;
  double gradient_scale_ = 1;
  // One for each sequence, where preferences are learnt.
  std::vector<plan::Answer> answers_;
  std::vector<double> sums_;
  std::vector<float> scales_;
};

}  // namespace tercio::blocks
