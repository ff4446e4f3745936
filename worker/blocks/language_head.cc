#include "worker/blocks/language_head.h"

#include <algorithm>

#include "absl/types/span.h"
#include "common/check.h"

namespace tercio::blocks {
namespace {

bool ChoosesTargets(const Pass& pass) { return pass.batch.predicted_counts != nullptr; }

}  // namespace

VocabularyPart PartOfVocabulary(int64_t vocabulary, const Tools& tools) {
  VocabularyPart part{};
  const int64_t local = tools.shape.vocabulary;
  part.begin = tools.tensor.index() * local;
  part.valid = std::clamp<int64_t>(vocabulary - part.begin, 0, local);
  part.logits = tools.Values("head.logits");
  part.stats = tools.arena.Floats("head.stats");
  part.all_stats = tools.arena.Floats("head.all_stats");
  part.lse = tools.arena.Floats("head.lse");
  part.loss = tools.arena.Floats("head.loss");
  return part;
}

TokenRows RowsOfVocabulary(const VocabularyPart& part, const HeadJob& job, const Pass& pass,
                           const Tools& tools) {
  TokenRows rows{};
  rows.logits = part.logits;
  rows.stats = part.stats;
  rows.all_stats = part.all_stats;
  rows.lse = part.lse;
  rows.loss = part.loss;
  rows.valid = part.valid;
  rows.stride = tools.shape.vocabulary;
  rows.vocabulary_begin = part.begin;
  rows.smoothing = {.amount = pass.batch.training ? job.label_smoothing : 0.0f,
                    .vocabulary = job.vocabulary};
  return rows;
}

LanguageHead::LanguageHead(const model::LanguageHeadOptions& options, const HeadJob& job,
                           const WeightFinder& weights, const Tools& tools, device::Stream& stream)
    : tools_(tools),
      job_(job),
      stream_(stream),
      part_(PartOfVocabulary(job.vocabulary, tools)),
      softcap_(options.softcap),
      weight_(weights.HeadMatrix()),
      bias_(weights.Find("head.bias")),
      chosen_(tools.Values("head.rows")),
      chosen_gradient_(tools.Values("head.gradient")) {
  if (job.distillation.has_value()) divergences_.emplace(*job.distillation, tools, stream);
  if (!job.preferences.has_value()) return;
  const auto sequences = static_cast<size_t>(tools.shape.sequences);
  answers_.resize(sequences);
  sums_.resize(sequences);
  scales_.resize(sequences);
}

void LanguageHead::ForChosenChunks(const Pass& pass, int64_t first_sequence, int64_t sequences,
                                   absl::FunctionRef<void(const Chunk& chunk)> body) const {
  const int64_t most = tools_.shape.chunk_rows;
  for (int64_t i = first_sequence; i < first_sequence + sequences; ++i) {
    const int64_t count = pass.batch.predicted_counts[i];
    for (int64_t begin = 0; begin < count; begin += most) {
      body(Chunk{i * pass.tokens + begin, std::min(most, count - begin), pass.tokens, i});
    }
  }
}

// Short sequences are taken together whole, long ones in pieces of one sequence. The pieces of the
// sum over rows are the same either way (kernels/ops.h).
void LanguageHead::ForChunks(const Pass& pass, int64_t first_sequence, int64_t sequences,
                             absl::FunctionRef<void(const Chunk& chunk)> body) const {
  if (ChoosesTargets(pass)) return ForChosenChunks(pass, first_sequence, sequences, body);
  const int64_t most = tools_.shape.chunk_rows;
  const int64_t begin = first_sequence * pass.tokens;
  const int64_t end = begin + sequences * pass.tokens;
  for (int64_t row = begin; row < end;) {
    const int64_t limit = pass.tokens > most ? (row / pass.tokens + 1) * pass.tokens : end;
    const int64_t rows = std::min(most, limit - row);
    body(Chunk{row, rows, std::min(rows, pass.tokens)});
    row += rows;
  }
}

kernels::ConstValues LanguageHead::Logits(kernels::ConstValues x, int64_t rows) {
  TERCIO_CHECK_LE(rows, tools_.shape.chunk_rows);
  tools_.ops.Matmul({.x = x,
                     .w = weight_.In(tools_.parameters),
                     .bias = bias_.In(tools_.parameters),
                     .y = part_.logits,
                     .m = rows,
                     .n = tools_.shape.vocabulary,
                     .k = tools_.shape.hidden});
  if (softcap_ > 0) {
    tools_.ops.SoftCap(
        {.x = part_.logits, .count = rows * tools_.shape.vocabulary, .cap = softcap_});
  }
  return part_.logits;
}

TokenRows LanguageHead::RowsOf(const Pass& pass, const Chunk& chunk, double* sums) const {
  TokenRows rows = RowsOfVocabulary(part_, job_, pass, tools_);
  rows.targets = pass.batch.targets + chunk.row;
  rows.sums = sums;
  rows.rows = chunk.rows;
  rows.first_row = chunk.row;
  rows.softcap = softcap_;
  rows.rows_per_sum = pass.tokens;
  if (!ChoosesTargets(pass)) return rows;
  // All rows of a chunk belong to one sequence.
  rows.sums = sums + chunk.sequence;
  rows.first_row = 0;
  rows.rows_per_sum = chunk.rows;
  return rows;
}

kernels::ConstValues LanguageHead::InputOf(const Pass& pass, kernels::ConstValues x,
                                           const Chunk& chunk) {
  if (!ChoosesTargets(pass)) return x + chunk.row * tools_.shape.hidden;
  tools_.ops.Gather({.x = x,
                     .index = pass.batch.predicted + chunk.row,
                     .out = chosen_,
                     .count = chunk.rows,
                     .columns = tools_.shape.hidden});
  return chosen_;
}

void LanguageHead::BackwardInput(const Pass& pass, const Chunk& chunk, kernels::Values dx) {
  const int64_t hidden = tools_.shape.hidden;
  const bool chooses = ChoosesTargets(pass);
  tools_.ops.MatmulBackwardInput({.dy = part_.logits,
                                  .w = weight_.In(tools_.parameters),
                                  .dx = chooses ? chosen_gradient_ : dx + chunk.row * hidden,
                                  .m = chunk.rows,
                                  .n = tools_.shape.vocabulary,
                                  .k = hidden});
  if (!chooses) return;
  tools_.ops.ScatterAdd({.from = chosen_gradient_,
                         .index = pass.batch.predicted + chunk.row,
                         .to = dx,
                         .count = chunk.rows,
                         .columns = hidden});
}

kernels::ConstValues LanguageHead::AddDivergences(const Pass& pass, const Chunk& chunk,
                                                  double* divergences) {
  TERCIO_CHECK(teacher_ != nullptr);
  const kernels::ConstValues teacher = teacher_->Of(pass, chunk);
  const TokenRows rows = RowsOf(pass, chunk, divergences);
  divergences_->Add(rows, teacher, rows.sums);
  return teacher;
}

void LanguageHead::LossesAndGradients(const Pass& pass, const Chunk& chunk, const LossSums& losses,
                                      float scale) {
  const TokenRows rows = RowsOf(pass, chunk, losses.tokens);
  if (!divergences_.has_value()) {
    return TokenLossesAndGradients(tools_.ops, stream_, tools_.tensor.communicator(), rows, scale);
  }
  TokenLosses(tools_.ops, stream_, tools_.tensor.communicator(), rows);
  const kernels::ConstValues teacher = AddDivergences(pass, chunk, losses.divergences);
  divergences_->Gradients(rows, teacher, scale);
}

void LanguageHead::Loss(const Pass& pass, kernels::ConstValues x, const LossSums& losses) {
  ForChunks(pass, 0, tools_.shape.sequences, [&](const Chunk& chunk) {
    LogitsOf(pass, x, chunk);
    TokenLosses(tools_.ops, stream_, tools_.tensor.communicator(),
                RowsOf(pass, chunk, losses.tokens));
    if (divergences_.has_value()) AddDivergences(pass, chunk, losses.divergences);
  });
}

void LanguageHead::FindScales(const Pass& pass, kernels::ConstValues x, const LossSums& losses) {
  TERCIO_CHECK(pass.batch.answers != nullptr);
  const auto bytes = static_cast<int64_t>(sums_.size() * sizeof(double));
  Loss(pass, x, losses);
  stream_.CopyToHost(sums_.data(), losses.tokens, bytes);
  // The first error of a stream stays: the step ends with it when it learns its sums.
  stream_.Synchronize().IgnoreError();
  // The pass that makes the gradients adds the same losses.
  stream_.SetZero(losses.tokens, bytes);
  for (size_t i = 0; i < answers_.size(); ++i) {
    answers_[i] = pass.batch.answers[i];
    answers_[i].log_probability = -sums_[i];
  }
  plan::PreferenceGradients(*job_.preferences, answers_, pass.batch.divergence,
                            absl::MakeSpan(sums_));
  // A loss is a log-probability with the other sign.
  for (size_t i = 0; i < scales_.size(); ++i) {
    scales_[i] = static_cast<float>(-sums_[i] * gradient_scale_);
  }
}

void LanguageHead::Backward(const Pass& pass, kernels::ConstValues x, kernels::Values dx,
                            const LossSums& losses, GradientLanes& lanes) {
  const int64_t hidden = tools_.shape.hidden;
  const bool chooses = ChoosesTargets(pass);
  // Rows that predict nothing get no gradient below.
  if (chooses) tools_.ops.Zero(dx, pass.rows * hidden);
  const auto scale = static_cast<float>(
      chooses ? gradient_scale_ / static_cast<double>(pass.batch.step_predictions)
              : job_.loss_weight * gradient_scale_);
  if (job_.preferences.has_value()) FindScales(pass, x, losses);
  const auto scale_of = [&](const Chunk& chunk) {
    return scales_.empty() ? scale : scales_[static_cast<size_t>(chunk.sequence)];
  };
  lanes.Assign(pass.batch.index, {weight_, bias_}, tools_.ops,
               [&](const plan::LaneSegment& segment, const Gradients& gradients, bool accumulate) {
                 ForChunks(pass, segment.first_sequence, segment.sequences,
                           [&](const Chunk& chunk) {
                             const kernels::ConstValues rows = InputOf(pass, x, chunk);
                             Logits(rows, chunk.rows);
                             LossesAndGradients(pass, chunk, losses, scale_of(chunk));
                             tools_.ops.MatmulBackwardWeight({.dy = part_.logits,
                                                              .x = rows,
                                                              .dw = weight_.GradientIn(gradients),
                                                              .dbias = bias_.GradientIn(gradients),
                                                              .m = chunk.rows,
                                                              .n = tools_.shape.vocabulary,
                                                              .k = hidden,
                                                              .rows_per_leaf = chunk.rows_per_leaf,
                                                              .accumulate = accumulate});
                             accumulate = true;
                             BackwardInput(pass, chunk, dx);
                           });
                 if (accumulate) return;
                 // The lane's sequences predict nothing.
                 tools_.ops.Zero(weight_.GradientIn(gradients), weight_.elements);
                 if (bias_.elements > 0) {
                   tools_.ops.Zero(bias_.GradientIn(gradients), bias_.elements);
                 }
               });
}

}  // namespace tercio::blocks
