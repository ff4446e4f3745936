#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/checkpoints.h"
#include "plan/names.h"
#include "plan/quality.h"

namespace tercio::coordinator {
namespace {

// An error is read in a terminal: a job may have hundreds of checkpoints.
constexpr size_t kMostFindings = 8;

enum class AmongVerified { kNo, kYes };

std::optional<v1::BestEvaluation> BestAmong(const v1::JobRecord& record, AmongVerified among) {
  const v1::QualityMetric metric = record.spec().training().evaluate().keep_best();
  if (!plan::IsNamed(metric)) return std::nullopt;
  std::optional<v1::BestEvaluation> best;
  // Within a history checkpoints are in the order of their steps, so the first of equals wins.
  for (const v1::CheckpointRecord& known : record.checkpoints()) {
    if (!known.has_value() || !known.problem().empty() || !Counts(record, known)) continue;
    if (among == AmongVerified::kYes && known.verified_at() <= 0) continue;
    if (!plan::BeatsBest(metric, known.value(), best.has_value() ? &*best : nullptr)) continue;
    best.emplace();
    best->set_step(known.step());
    best->set_value(known.value());
  }
  return best;
}

// The steps of checkpoints that are kept for their quality, among those that count.
std::set<int64_t> BestSteps(const v1::JobRecord& record) {
  std::set<int64_t> steps;
  if (record.has_best()) steps.insert(record.best().step());
  for (const AmongVerified among : {AmongVerified::kNo, AmongVerified::kYes}) {
    if (const auto best = BestAmong(record, among)) steps.insert(best->step());
  }
  return steps;
}

}  // namespace

std::optional<v1::BestEvaluation> BestCheckpoint(const v1::JobRecord& record) {
  return BestAmong(record, AmongVerified::kNo);
}

bool Counts(const v1::JobRecord& record, const v1::CheckpointRecord& checkpoint) {
  // A checkpoint is part of the history exactly where its last step is.
  v1::StepRecord step;
  step.set_step(checkpoint.step());
  step.set_attempt(checkpoint.attempt());
  return StepCounts(record, step);
}

std::vector<v1::CheckpointRecord> CheckpointsThatCount(const v1::JobRecord& record) {
  std::vector<v1::CheckpointRecord> found;
  // Records are in the order of their commits, so that the newest is the last one.
  for (auto at = record.checkpoints().rbegin(); at != record.checkpoints().rend(); ++at) {
    if (Counts(record, *at)) found.push_back(*at);
  }
  return found;
}

v1::CheckpointRecord* FindCheckpointRecord(v1::JobRecord& record, int64_t step) {
  for (v1::CheckpointRecord& known : *record.mutable_checkpoints()) {
    if (known.step() == step) return &known;
  }
  return nullptr;
}

void AddCheckpointRecord(v1::JobRecord& record, v1::CheckpointRecord checkpoint) {
  // The new record goes to the end even where it replaces one: its commit is the newest.
  RemoveCheckpointRecord(record, checkpoint.step());
  *record.add_checkpoints() = std::move(checkpoint);
}

void RemoveCheckpointRecord(v1::JobRecord& record, int64_t step) {
  auto& all = *record.mutable_checkpoints();
  all.erase(
      std::remove_if(all.begin(), all.end(),
                     [step](const v1::CheckpointRecord& known) { return known.step() == step; }),
      all.end());
}

void AddUnrecordedCheckpoint(v1::JobRecord& record) {
  if (record.checkpoints_size() > 0 || record.checkpoint_step() == 0) return;
  v1::CheckpointRecord* known = record.add_checkpoints();
  known->set_step(record.checkpoint_step());
  // The oldest versions did not say which attempt had saved; no later one can have.
  known->set_attempt(record.checkpoint_attempt() > 0 ? record.checkpoint_attempt()
                                                     : record.attempt());
  known->set_bytes(record.checkpoint_bytes());
}

std::vector<v1::CheckpointRecord> SuperfluousCheckpoints(const v1::JobRecord& record, int keep_last,
                                                         int64_t keep_every) {
  std::vector<v1::CheckpointRecord> superfluous;
  const std::set<int64_t> best = BestSteps(record);
  int verified = 0;
  for (auto at = record.checkpoints().rbegin(); at != record.checkpoints().rend(); ++at) {
    const bool kept =
        // Even keep_last 0 keeps one: a job without any checkpoint could only start over.
        verified < std::max(1, keep_last) || (keep_every > 0 && at->step() % keep_every == 0) ||
        (best.contains(at->step()) && Counts(record, *at));
    if (!kept) superfluous.push_back(*at);
    // Only proven bytes allow older ones to go; a checkpoint that is
    // damaged or not part of the history is no substitute for them.
    const bool good = at->verified_at() > 0 && at->problem().empty();
    verified += good && Counts(record, *at) ? 1 : 0;
  }
  std::reverse(superfluous.begin(), superfluous.end());
  return superfluous;
}

bool IsSuperfluous(const v1::JobRecord& record, int64_t step) {
  const v1::CheckpointSpec& wanted = record.spec().checkpoint();
  const std::vector<v1::CheckpointRecord> all =
      SuperfluousCheckpoints(record, wanted.keep_last(), wanted.keep_every());
  return std::any_of(all.begin(), all.end(),
                     [step](const v1::CheckpointRecord& old) { return old.step() == step; });
}

const v1::CheckpointRecord* NextToVerify(const v1::JobRecord& record) {
  const v1::CheckpointRecord* next = nullptr;
  for (const v1::CheckpointRecord& known : record.checkpoints()) {
    // Damage is a fact already; reading it again finds nothing new.
    if (!known.problem().empty()) continue;
    if (next == nullptr || known.verified_at() < next->verified_at()) next = &known;
  }
  return next;
}

std::string DescribeFindings(const std::vector<CheckpointFinding>& findings) {
  std::vector<std::string> texts;
  for (const CheckpointFinding& finding : findings) {
    if (texts.size() == kMostFindings) {
      texts.push_back(absl::StrCat(findings.size() - kMostFindings, " more"));
      break;
    }
    // A finding without a step is about the directory as a whole.
    texts.push_back(finding.step > 0 ? absl::StrCat("step ", finding.step, ": ", finding.problem)
                                     : finding.problem);
  }
  return absl::StrJoin(texts, "; ");
}

}  // namespace tercio::coordinator
