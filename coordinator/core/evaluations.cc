// Evaluations of held-out data: the best step so far, whose checkpoint is kept, and the outcome of
// the test data.
//
// The value of a step comes with its checkpoint: the records that a checkpoint holds are durable
// before it becomes visible. Until it is committed the step is a candidate; then the value stays
// with the checkpoint, so that the best one of a history is still known when a job goes back behind
// a better one.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/checkpoints.h"
#include "coordinator/core/stepper.h"
#include "plan/epochs.h"
#include "plan/names.h"
#include "plan/quality.h"

namespace tercio::coordinator {
namespace {

// Older candidates are those whose commits have failed.
constexpr int kMostCandidates = 4;

v1::QualityMetric MetricOf(const v1::JobRecord& record) {
  return record.spec().training().evaluate().keep_best();
}

// What messages bring is not trusted: all that reads an evaluation relies on its table.
v1::Evaluation Checked(v1::Evaluation evaluation) {
  if (!plan::IsConfusion(evaluation.confusion()) ||
      evaluation.confusion().classes() > plan::kMostScoredClasses) {
    evaluation.clear_confusion();
  }
  return evaluation;
}

const v1::BestEvaluation* BestIn(const v1::JobRecord& record) {
  return record.has_best() ? &record.best() : nullptr;
}

std::string DescribeValue(const v1::JobRecord& record, const v1::BestEvaluation& best) {
  return absl::StrFormat("step %d: %s %.6g", best.step(), plan::TextOf(MetricOf(record)),
                         best.value());
}

std::string DescribeTest(const v1::Evaluation& test) {
  std::string text =
      absl::StrFormat("the weights of step %d have loss %.6g", test.step(), test.loss());
  if (!test.has_confusion()) return text;
  const plan::Quality quality = plan::QualityOf(test.confusion());
  absl::StrAppendFormat(&text, ", accuracy %.4f, f1 %.4f over %d examples", quality.accuracy,
                        quality.overall.f1, quality.weighted.support);
  return text;
}

}  // namespace

bool HasTest(const v1::JobSpec& spec) { return !spec.data().test_path().empty(); }

void Stepper::OnValidation(JobState& job, const v1::StepReport& report) {
  if (!report.has_validation()) return;
  *job.record.mutable_validation() = Checked(report.validation());
  job.record.mutable_validation()->set_step(report.record().step());
}

// The checkpoint of the last of these steps is about to be committed, unless its attempt is just
// being replaced.
void Stepper::NoteCandidate(JobState& job, const StepsDone& done) {
  v1::JobRecord& record = job.record;
  const v1::QualityMetric metric = MetricOf(record);
  if (done.steps.empty() || !plan::IsNamed(metric)) return;
  const v1::StepRecord& last = done.steps.back();
  const int32_t attempt = done.run.attempt();
  if (last.attempt() != attempt) return;
  const std::optional<double> value = plan::ValueOf(metric, last);
  if (!value.has_value()) return;
  auto& candidates = *record.mutable_candidates();
  const bool known = std::any_of(candidates.begin(), candidates.end(), [&](const auto& candidate) {
    return candidate.step() == last.step() && candidate.attempt() == attempt;
  });
  const v1::CheckpointRecord* saved = FindCheckpointRecord(record, last.step());
  // It is sent again where the coordinator has not answered.
  if (known || (saved != nullptr && saved->attempt() == attempt)) return;
  v1::SavedEvaluation* candidate = candidates.Add();
  candidate->set_step(last.step());
  candidate->set_attempt(attempt);
  candidate->set_value(*value);
  if (candidates.size() > kMostCandidates) candidates.erase(candidates.begin());
  effects_.changed_jobs.insert(record.id());
}

void TakeCandidate(v1::JobRecord& record, v1::CheckpointRecord* checkpoint) {
  auto& candidates = *record.mutable_candidates();
  const auto found = std::find_if(candidates.begin(), candidates.end(), [&](const auto& candidate) {
    return candidate.step() == checkpoint->step() && candidate.attempt() == checkpoint->attempt();
  });
  if (found == candidates.end()) return;
  checkpoint->set_value(found->value());
  candidates.erase(found);
}

void Stepper::UpdateBest(JobState& job, const v1::CheckpointRecord& committed) {
  v1::JobRecord& record = job.record;
  if (!committed.has_value() ||
      !plan::BeatsBest(MetricOf(record), committed.value(), BestIn(record))) {
    return;
  }
  record.mutable_best()->set_step(committed.step());
  record.mutable_best()->set_value(committed.value());
  Note(job, "best_checkpoint", DescribeValue(record, record.best()));
}

// The attempt starts after resume_step: what later steps have found is no longer part of the
// history. Its ranks are told of the best one by orders that may be repeated until they run, so it
// does not change before that.
void Stepper::RestartEvaluations(JobState& job) {
  v1::JobRecord& record = job.record;
  const std::optional<v1::BestEvaluation> best = BestCheckpoint(record);
  const bool counted = record.has_best() && record.best().step() <= record.resume_step();
  // One whose commit could not be recorded may be better than the best that was known.
  const bool lost = counted && (!best.has_value() ||
                                plan::BeatsBest(MetricOf(record), record.best().value(), &*best));
  if (lost) {
    Note(job, "best_lost",
         absl::StrCat("the best checkpoint, ", DescribeValue(record, record.best()),
                      ", is damaged or missing; ",
                      best.has_value() ? "the best that is left is that of " : "none is left",
                      best.has_value() ? DescribeValue(record, *best) : ""));
  }
  record.clear_best();
  if (best.has_value()) *record.mutable_best() = *best;
  if (record.validation().step() > record.resume_step()) record.clear_validation();
  // A job that has been lengthened evaluates its test data again at its new end.
  if (record.resume_step() < record.spec().training().steps()) record.clear_test();
}

void Stepper::OnTestEvaluated(JobState& job, const v1::TestEvaluated& said,
                              const std::string& node) {
  v1::JobRecord& record = job.record;
  *record.mutable_test() = Checked(said.evaluation());
  record.set_progress_at(now_);
  effects_.changed_jobs.insert(record.id());
  if (!record.test().problem().empty()) Note(job, "best_lost", record.test().problem(), node);
  Note(job, "test_evaluated", DescribeTest(record.test()), node);
}

// From the end of the training on there is only the test data to evaluate, which is what the job
// is for.
void Stepper::BeginTest(JobState& job) {
  const v1::JobRecord& record = job.record;
  if (record.phase() != v1::JOB_PHASE_RUNNING || !HasTest(record.spec()) ||
      record.step() < record.spec().training().steps()) {
    return;
  }
  SwitchTime(job, record.elastic_ranks() > 0 ? v1::TIME_KIND_DEGRADED : v1::TIME_KIND_PRODUCTIVE);
}

std::string KeyOfNewData(const v1::JobSpec& spec) {
  if (spec.training().epochs() > 0) return "training.epochs";
  if (spec.training().evaluate().every_epochs() > 0) return "training.evaluate.every_epochs";
  if (HasTest(spec)) return "data.test";
  if (spec.training().evaluate().keep_best() != v1::QUALITY_METRIC_UNSPECIFIED) {
    return "training.evaluate.keep_best";
  }
  return "";
}

}  // namespace tercio::coordinator
