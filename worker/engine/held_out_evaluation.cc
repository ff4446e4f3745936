#include "worker/engine/held_out_evaluation.h"

#include <algorithm>

#include "common/check.h"
#include "common/status_macros.h"
#include "plan/preference.h"
#include "plan/quality.h"

namespace tercio::engine {

HeldOutEvaluation::HeldOutEvaluation(const v1::JobSpec& spec, const v1::RankPlan& plan,
                                     const plan::StageShape& shape, data::SampleSource& source,
                                     StageModel& model, RankBatch& batch, ProgramExecutor& executor,
                                     PipelineLinks& links, const Communicators& communicators,
                                     device::Stream& stream, progress::Whereabouts& where,
                                     Teacher* teacher)
    : spec_(spec),
      plan_(plan),
      shape_(shape),
      source_(source),
      model_(model),
      batch_(batch),
      executor_(executor),
      program_(plan::EvaluationProgram(
          plan::ShapeOfProgram(spec, plan.layout(), plan.placement().pipeline_index()))),
      links_(links),
      communicators_(communicators),
      stream_(stream),
      where_(where),
      teacher_(teacher) {
  if (batch.gives_losses() && plan::ScoresClasses(spec.model())) {
    outcomes_ = std::make_unique<ClassOutcomes>(spec.model().labels(), shape.sequences_per_rank);
  }
}

// One global batch of held-out samples, micro-batch after micro-batch through activation slot 0.
// Sequences beyond `samples` are computed (all ranks take part) and not counted.
absl::Status HeldOutEvaluation::RunBatch(data::HeldOut set, int64_t first_sample, int64_t samples,
                                         ExchangeVector::Totals* totals, v1::Evaluation* result) {
  ExchangeVector& exchange = batch_.exchange();
  const auto read = [&](int64_t i, data::Sample* out) {
    source_.HeldOutSample(set, first_sample + (i < samples ? i : 0), out);
  };
  if (plan::HasDivergence(spec_.training())) {
    TERCIO_RETURN_IF_ERROR(MeasureDivergence(read, samples));
  }
  TERCIO_RETURN_IF_ERROR(Score("evaluation", read));
  exchange.AddTotals(samples, totals);
  if (!result->has_confusion()) return absl::OkStatus();
  ClassOutcomes::Count(
      exchange.KnownSums(RankBatch::Sum::kOutcome).first(static_cast<size_t>(samples)),
      result->mutable_confusion());
  return absl::OkStatus();
}

absl::Status HeldOutEvaluation::MeasureDivergence(ReadSequence read, int64_t samples) {
  const int64_t numbered = source_.numbered_samples();
  TERCIO_RETURN_IF_ERROR(Score("divergence", [&](int64_t i, data::Sample* out) {
    read(i, out);
    source_.NumberedSample(numbered + out->number, out);
  }));
  batch_.SetDivergence(plan::DivergenceOf(batch_.exchange().KnownAnswers(samples)));
  return absl::OkStatus();
}

absl::Status HeldOutEvaluation::Score(const char* what, ReadSequence read) {
  ExchangeVector& exchange = batch_.exchange();
  batch_.Read(read);
  if (teacher_ != nullptr) teacher_->Run(batch_);
  batch_.ClearSums();
  RunProgram(what);
  links_.WaitAll();
  if (outcomes_ != nullptr) {
    TERCIO_RETURN_IF_ERROR(stream_.Synchronize());
    batch_.SetSums(RankBatch::Sum::kOutcome, outcomes_->Encode(batch_.samples().labels()));
  }
  batch_.ContributeSums();
  communicators_.world().AllReduceSum(stream_, exchange.begin(), exchange.sum_count());
  return batch_.Learn(exchange.sum_count());
}

void HeldOutEvaluation::RunProgram(const char* what) {
  for (const plan::ProgramStep& step : program_) {
    if (step.kind == plan::ProgramStep::Kind::kBeginForward) {
      where_.BeginAction(what, step.micro_batch);
    }
    executor_.Evaluate(step);
    if (step.kind != plan::ProgramStep::Kind::kEndForward) continue;
    const blocks::MicroBatch batch = executor_.BatchOf(step, 0);
    if (!model_.IsLast(batch)) continue;
    model_.Loss(batch, batch_.LossesAt(batch));
    if (outcomes_ == nullptr) continue;
    outcomes_->Take(int64_t{batch.index} * shape_.sequences, shape_.sequences,
                    model_.LastClassLogits(), stream_);
  }
}

absl::StatusOr<v1::Evaluation> HeldOutEvaluation::Run(data::HeldOut set) {
  const int64_t batch = spec_.training().global_batch();
  const int64_t available = source_.held_out_samples(set);
  TERCIO_CHECK_GE(available, 1);
  // The last update changed the weights, of which FP8's products read rounded copies.
  model_.products().BeginPass();
  // Only what is evaluated again and again may be limited.
  const int64_t wanted =
      set == data::HeldOut::kValidation ? spec_.training().evaluate().batches() * batch : 0;
  const int64_t samples = wanted > 0 ? std::min(wanted, available) : available;
  v1::Evaluation result;
  if (plan::ScoresClasses(spec_.model())) {
    *result.mutable_confusion() = plan::EmptyConfusion(spec_.model().labels());
  }
  ExchangeVector::Totals totals;
  for (int64_t first = 0; first < samples; first += batch) {
    const int64_t count = std::min(batch, samples - first);
    TERCIO_RETURN_IF_ERROR(RunBatch(set, first, count, &totals, &result));
  }
  result.set_loss(ExchangeVector::MeanLoss(totals));
  if (const auto figures = totals.Figures()) *result.mutable_figures() = *figures;
  return result;
}

}  // namespace tercio::engine
