#include "worker/engine/rank_batch.h"

#include <numeric>

#include "common/status_macros.h"
#include "model/architecture.h"
#include "plan/distillation.h"
#include "plan/lanes.h"
#include "plan/state_shards.h"
#include "plan/token_buffers.h"

namespace tercio::engine {

namespace {

RankSamples::Kind KindOf(const v1::JobSpec& spec) {
  const bool encoder = !model::ArchitectureOf(spec.model()).causal;
  return {.padded = encoder,
          .chooses_targets = encoder || plan::ChoosesTargets(spec),
          .packed = plan::PacksDocuments(spec)};
}

}  // namespace

RankBatch::RankBatch(const v1::JobSpec& spec, const v1::RankPlan& plan,
                     const plan::StageShape& shape, Arena& arena,
                     const Communicators& communicators, device::Stream& stream)
    : plan_(plan),
      shape_(shape),
      kind_(KindOf(spec)),
      communicators_(communicators),
      stream_(stream),
      gives_losses_(shape.last && plan.placement().tensor_index() == 0),
      distills_(plan::LearnsFromTeacher(spec.training())),
      samples_(shape, kind_, arena),
      exchange_(spec, shape, arena.Get<double>("exchange")),
      sample_(spec.model().context(), spec.model().decoder_context()) {
  if (plan::ReadsStoredLogits(spec.training()) && shape.last) {
    teacher_.emplace(shape, spec.training().distillation().top_k(), arena);
  }
  if (!plan::LearnsPreferences(spec.training())) return;
  answers_.resize(static_cast<size_t>(shape.sequences_per_rank));
}

int64_t RankBatch::FirstSequenceOf(int micro_batch) const {
  return plan::FirstSequenceOf(plan::BatchShapeOf(plan_.layout(), plan_.lanes()),
                               plan_.placement().data_index(), micro_batch);
}

void RankBatch::Read(absl::FunctionRef<void(int64_t sequence, data::Sample* out)> read) {
  // A bert's stages all know which tokens are padding, and attention which are of one document.
  if (!shape_.first && !shape_.last && !kind_.padded && !kind_.packed) return;
  for (int m = 0; m < plan_.layout().micro_batches(); ++m) {
    for (int64_t i = 0; i < shape_.sequences; ++i) {
      read(FirstSequenceOf(m) + i, &sample_);
      samples_.Store(m, i, sample_);
      if (teacher_.has_value()) teacher_->Store(m, i, sample_);
      if (!answers_.empty()) KeepAnswer(static_cast<size_t>(m * shape_.sequences + i));
    }
  }
  samples_.Copy(stream_);
  if (teacher_.has_value()) teacher_->Copy(stream_);
}

void RankBatch::KeepAnswer(size_t of_rank) {
  plan::Answer& answer = answers_[of_rank];
  answer.tokens = samples_.predicted_counts()[of_rank];
  answer.desirable = sample_.label == 1;
  answer.reference =
      references_ != nullptr ? references_->at(static_cast<size_t>(sample_.number)) : 0;
}

absl::Status RankBatch::CountPredictions() {
  if (!counts_predictions() || !shape_.last) return absl::OkStatus();
  const std::vector<int32_t>& counts = samples_.predicted_counts();
  const double mine = std::accumulate(counts.begin(), counts.end(), 0.0);
  double* first = exchange_.begin();
  stream_.CopyFromHost(first, &mine, sizeof(mine));
  if (plan_.layout().data() > 1) communicators_.data().AllReduceSum(stream_, first, 1);
  TERCIO_RETURN_IF_ERROR(Learn(1));
  predictions_ = static_cast<int64_t>(*exchange_.known());
  return absl::OkStatus();
}

blocks::MicroBatch RankBatch::At(int64_t step, int micro_batch, int chunk, int slot) const {
  blocks::MicroBatch batch;
  batch.index = micro_batch;
  batch.slot = slot;
  batch.chunk = chunk;
  batch.step = step;
  batch.first_sequence = FirstSequenceOf(batch.index);
  samples_.Point(&batch);
  if (teacher_.has_value()) teacher_->Point(&batch);
  batch.step_predictions = predictions_;
  if (!answers_.empty()) batch.answers = answers_.data() + batch.index * shape_.sequences;
  batch.divergence = divergence_;
  return batch;
}

void RankBatch::ClearSums() {
  stream_.SetZero(exchange_.begin(), exchange_.sum_count() * static_cast<int64_t>(sizeof(double)));
}

blocks::LossSums RankBatch::LossesAt(const blocks::MicroBatch& batch) const {
  return {exchange_.SumsOf(Sum::kTokenLoss) + batch.first_sequence,
          kind_.padded ? exchange_.SumsOf(Sum::kSequenceLoss) + batch.first_sequence : nullptr,
          distills_ ? exchange_.SumsOf(Sum::kDivergence) + batch.first_sequence : nullptr};
}

void RankBatch::SetSums(Sum sum, const std::vector<double>& numbers) {
  for (int m = 0; m < plan_.layout().micro_batches(); ++m) {
    stream_.CopyFromHost(exchange_.SumsOf(sum) + FirstSequenceOf(m),
                         numbers.data() + m * shape_.sequences,
                         shape_.sequences * static_cast<int64_t>(sizeof(double)));
  }
}

// A rank writes the sums of its own sequences only, so those of others are zero already. Ranks with
// the same sequences have the same sums, of which one counts.
void RankBatch::ContributeSums() {
  if (!gives_losses_) return ClearSums();
  if (!counts_predictions()) return;
  counts_.assign(samples_.predicted_counts().begin(), samples_.predicted_counts().end());
  SetSums(Sum::kPredictions, counts_);
  if (answers_.empty()) return;
  for (size_t i = 0; i < answers_.size(); ++i) counts_[i] = answers_[i].reference;
  SetSums(Sum::kReference, counts_);
  for (size_t i = 0; i < answers_.size(); ++i) counts_[i] = answers_[i].desirable ? 1 : 0;
  SetSums(Sum::kDesirable, counts_);
}

absl::Status RankBatch::Learn(int64_t count) {
  stream_.CopyToHost(exchange_.known(), exchange_.begin(),
                     count * static_cast<int64_t>(sizeof(double)));
  return stream_.Synchronize();
}

}  // namespace tercio::engine
