// Evaluations: values of steps, the best of them, and the test data at the end.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/checkpoints.h"
#include "plan/epochs.h"
#include "plan/quality.h"
#include "tests/simulation/world.h"

namespace tercio::simulation {

void World::TellBest(const agent::RunKey& run, Training& training, const v1::StartRun& start) {
  if (!training.best.has_value()) {
    training.told = start.best();
    training.best.emplace(start.spec().training().evaluate().keep_best(), start.best());
  }
  if (training.told.step() != start.best().step() ||
      training.told.value() != start.best().value()) {
    Wrong(absl::StrCat(run.first, ": ranks of attempt ", run.second,
                       " are told of different best steps"));
  }
}

// Every rank evaluates alike.
void World::Evaluate(const agent::RunKey& run, Training& training, v1::TrainerMessage* message) {
  if (!plan::EvaluatesAfter(training.data, kSamples, training.step)) return;
  const double value = ValueOf(training.weights);
  v1::StepRecord* record = message->mutable_step()->mutable_record();
  record->set_validation_loss(value);
  record->set_validation_accuracy(value);
  message->mutable_step()->mutable_validation()->set_loss(value);
  values_[run.first][{training.step, run.second}] = value;
  training.judged = *record;
}

std::optional<bool> World::Judge(Training& training) {
  if (!training.judged.has_value()) return false;
  trainer::BestStep& best = *training.best;
  bool is_best = best.Beats(*training.judged);
  if (is_best && best.has_candidate()) {
    const bool busy =
        std::any_of(training.saves.begin(), training.saves.end(),
                    [&](const SaveOf& save) { return save.step == best.candidate(); });
    if (busy && best.BeatsCandidate(*training.judged)) return std::nullopt;
    if (!busy) best.Settle(training.candidate_committed);
    is_best = !busy && best.Beats(*training.judged);
  }
  training.judged.reset();
  return is_best;
}

// After the last checkpoint: with the best one, or with the weights of the last step.
void World::TestOf(const agent::RunKey& run) {
  At(Uniform(0.1, 3), [=, this] {
    Training& training = trainings_[run];
    bool broken = false;
    const bool works = AllWork(training, run, &broken);
    if (broken) return BreakAttempt(run);
    if (!works || !volumes_[run.first].Answers(now_)) return TestOf(run);
    if (training.best->has_candidate()) training.best->Settle(training.candidate_committed);
    v1::TrainerMessage message;
    v1::Evaluation* test = message.mutable_test();
    test->set_step(training.steps);
    test->set_loss(LossOf(training.weights));
    if (const int64_t best = training.best->step(); best > 0 && best != training.steps) {
      const Volume& volume = volumes_[run.first];
      const StoredCheckpoint* stored = volume.Find(best, now_);
      if (stored == nullptr || !volume.IsMounted(now_) || !stored->IsReadable(now_) ||
          stored->damaged) {
        test->set_problem("it cannot be read");
      } else {
        test->set_step(best);
        test->set_loss(LossOf(stored->weights));
      }
    }
    SendFromRank(training.ranks.at(0), run, 0, message);
    EndAll(run, 0);
  });
}

// At the start of an attempt: the best step is that of the checkpoints of its history.
void World::CheckBest(const v1::JobRecord& record) {
  const std::string& id = record.id();
  const v1::QualityMetric metric = record.spec().training().evaluate().keep_best();
  const v1::CheckpointRecord* best = nullptr;
  for (const v1::CheckpointRecord& known : record.checkpoints()) {
    const auto value = values_[id].find({known.step(), known.attempt()});
    if (value == values_[id].end() || !coordinator::Counts(record, known)) continue;
    // What retention has removed is forgotten, even if its directory turns up again.
    if (forgotten_[id].contains({known.step(), known.attempt()})) continue;
    if (!known.has_value() || known.value() != value->second) {
      Wrong(absl::StrCat(id, ": nobody knows any more how good step ", known.step(), " was"));
    }
    if (!known.problem().empty()) continue;
    if (best == nullptr || plan::IsBetter(metric, known.value(), best->value())) best = &known;
  }
  const int64_t expected = best == nullptr ? 0 : best->step();
  if (record.best().step() != expected) {
    Wrong(absl::StrCat(id, ": attempt ", record.attempt(), " starts after step ",
                       record.resume_step(), " with step ", record.best().step(),
                       " as the best, but it is step ", expected));
  }
}

// Once a job has succeeded. `losses`: of the steps that count.
void World::CheckTest(const v1::JobRecord& record, const std::map<int64_t, double>& losses) {
  const std::string& id = record.id();
  if (!record.has_test()) return Wrong(absl::StrCat(id, " has no result for its test data"));
  const v1::Evaluation& test = record.test();
  const auto loss = losses.find(test.step());
  if (loss == losses.end() || loss->second != test.loss()) {
    return Wrong(
        absl::StrCat(id, " was tested with other weights than those of step ", test.step()));
  }
  const int64_t last = record.spec().training().steps();
  const int64_t best = record.has_best() && test.problem().empty() ? record.best().step() : last;
  if (test.step() != best) {
    Wrong(absl::StrCat(id, " was tested with step ", test.step(), " instead of step ", best));
  }
}

void World::SpoilBest(const std::map<std::string, v1::JobRecord>& before,
                      coordinator::Effects& effects) {
  for (coordinator::SendToNode& send : effects.messages) {
    if (!send.message.has_start_run()) continue;
    v1::StartRun& start = *send.message.mutable_start_run();
    v1::JobRecord& record = state_.jobs.at(start.run().job_id()).record;
    if (broken_ == Broken::kBestIsNotTold) {
      record.clear_best();
      start.clear_best();
    }
    const auto old = before.find(record.id());
    if (broken_ != Broken::kBestOfLostHistory || old == before.end() || !old->second.has_best()) {
      continue;
    }
    *record.mutable_best() = old->second.best();
    *start.mutable_best() = old->second.best();
  }
}

}  // namespace tercio::simulation
