#include "tests/simulation/volume.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/core/checkpoints.h"

namespace tercio::simulation {
namespace {

constexpr char kAway[] = "the volume is not mounted";

v1::CheckpointRecord RecordOf(const StoredCheckpoint& stored) {
  v1::CheckpointRecord record;
  record.set_step(stored.step);
  record.set_attempt(stored.attempt);
  return record;
}

}  // namespace

const StoredCheckpoint* Volume::Find(int64_t step, double now) const {
  const auto found = checkpoints.find(step);
  return found != checkpoints.end() && found->second.IsThere(now) ? &found->second : nullptr;
}

// The verdict on every byte; no problem: all are right.
coordinator::CheckpointFinding Volume::Read(int64_t step, double now) {
  if (Find(step, now) == nullptr) return {step, "its directory is gone", true};
  StoredCheckpoint& stored = checkpoints.at(step);
  if (!stored.IsReadable(now)) return {step, "permission denied", false};
  if (stored.damaged) return {step, "a digest differs", true};
  stored.verified = true;
  return {step, "", false};
}

coordinator::CheckpointFinding Volume::Examine(const v1::CheckpointRecord& record,
                                               int64_t suspect_step, double now) {
  const StoredCheckpoint* stored = Find(record.step(), now);
  const bool looked_at =
      stored != nullptr && stored->IsReadable(now) && stored->attempt == record.attempt();
  const bool trusted = record.problem().empty() && record.step() != suspect_step;
  if (looked_at && trusted) return {record.step(), "", false};
  if (stored != nullptr && stored->attempt < record.attempt()) {
    return {record.step(), "its manifest is not the one that was committed", true};
  }
  return Read(record.step(), now);
}

// The job's history, by step: what is known, and what is there.
std::map<int64_t, v1::CheckpointRecord> Volume::Candidates(
    const coordinator::FindCheckpoint& wanted, double now) const {
  std::map<int64_t, v1::CheckpointRecord> candidates;
  for (const v1::CheckpointRecord& known : wanted.known) candidates[known.step()] = known;
  for (const auto& [step, stored] : checkpoints) {
    const bool newer = stored.attempt > candidates[step].attempt();
    if (stored.IsThere(now) && newer) candidates[step] = RecordOf(stored);
  }
  v1::JobRecord job;
  *job.mutable_resume_steps() = {wanted.resume_steps.begin(), wanted.resume_steps.end()};
  std::erase_if(candidates, [&](const auto& candidate) {
    return candidate.second.step() == 0 || !coordinator::Counts(job, candidate.second);
  });
  return candidates;
}

coordinator::CheckpointFound Volume::Search(const coordinator::FindCheckpoint& wanted, double now,
                                            bool hasty) {
  coordinator::CheckpointFound answer;
  answer.run = wanted.run;
  if (wanted.only == 0) return answer;
  if (!IsMounted(now)) {
    // As it would be where a job has not saved yet.
    const bool nothing = wanted.known.empty() && !wanted.only.has_value();
    if (!nothing) answer.findings.push_back({0, kAway, hasty});
    return answer;
  }
  for (const auto& [step, stored] : checkpoints) {
    if (stored.IsThere(now)) answer.there.push_back(RecordOf(stored));
  }
  std::vector<v1::CheckpointRecord> newest_first;
  for (const auto& [step, record] : Candidates(wanted, now)) newest_first.push_back(record);
  std::sort(newest_first.begin(), newest_first.end(), [](const auto& a, const auto& b) {
    return std::pair(a.attempt(), a.step()) > std::pair(b.attempt(), b.step());
  });
  for (const v1::CheckpointRecord& record : newest_first) {
    if (wanted.only.has_value() && record.step() != *wanted.only) continue;
    coordinator::CheckpointFinding finding = Examine(record, wanted.suspect_step, now);
    if (finding.problem.empty()) {
      answer.step = record.step();
      answer.path = "path";
      return answer;
    }
    finding.damaged |= hasty;
    answer.findings.push_back(finding);
    if (!finding.damaged) return answer;
  }
  return answer;
}

coordinator::CheckpointVerified Volume::Verify(const std::string& job, int64_t step, double now) {
  if (!IsMounted(now)) return {job, step, kAway, false};
  coordinator::CheckpointFinding finding = Read(step, now);
  return {job, step, std::move(finding.problem), finding.damaged};
}

}  // namespace tercio::simulation
