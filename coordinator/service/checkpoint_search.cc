#include "coordinator/service/checkpoint_search.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/checkpoints.h"

namespace tercio::coordinator {
namespace {

// The text is used by the search and by the verification, which find the same.
constexpr char kGone[] = "its directory or the manifest in it is missing";

// One that may be there, from what the core knows and what the disk holds.
struct Candidate {
  v1::CheckpointRecord record;
  bool on_disk = false;
  std::string path;
};

CheckpointFinding FindingOf(int64_t step, const absl::Status& status) {
  // A missing file is damage too: the directory was committed as a whole.
  const bool damaged = absl::IsDataLoss(status) || absl::IsNotFound(status);
  return {step, std::string(status.message()), damaged};
}

// Empty problem: all of it is right.
CheckpointFinding Summarize(int64_t step, const std::vector<checkpoint::Finding>& findings) {
  CheckpointFinding summary{step, "", false};
  for (const checkpoint::Finding& finding : findings) {
    if (finding.problem.empty()) continue;
    // One proof of damage is enough; a transient fault counts only as long as there is none.
    if (!summary.problem.empty() && (summary.damaged || !finding.damaged)) continue;
    // Findings of digests name their file already.
    const bool named = finding.problem.find(finding.path) != std::string::npos;
    summary.problem = named ? finding.problem : absl::StrCat(finding.path, ": ", finding.problem);
    summary.damaged = finding.damaged;
  }
  return summary;
}

v1::CheckpointRecord RecordOf(const checkpoint::Committed& committed) {
  v1::CheckpointRecord record;
  record.set_step(committed.step);
  record.set_attempt(committed.attempt);
  record.set_bytes(committed.bytes);
  record.set_manifest_digest(committed.manifest_digest);
  record.set_numerics(committed.numerics);
  if (committed.state_digest.has_value()) record.set_state_digest(*committed.state_digest);
  return record;
}

// Newest first, those that count.
std::vector<Candidate> Merge(const FindCheckpoint& wanted,
                             const std::vector<checkpoint::Committed>& there) {
  std::map<int64_t, Candidate> by_step;
  // A record without its directory has to be reported; a directory without a record counts.
  for (const v1::CheckpointRecord& known : wanted.known) by_step[known.step()].record = known;
  for (const checkpoint::Committed& committed : there) {
    Candidate& candidate = by_step[committed.step];
    candidate.on_disk = true;
    candidate.path = committed.path;
    // One whose manifest cannot be read is taken for the one the core knows, if any.
    if (committed.attempt > candidate.record.attempt()) candidate.record = RecordOf(committed);
    candidate.record.set_step(committed.step);
  }
  // Only the starts of attempts decide what counts, so this is all of the job that is needed.
  v1::JobRecord job;
  *job.mutable_resume_steps() = {wanted.resume_steps.begin(), wanted.resume_steps.end()};
  std::vector<Candidate> candidates;
  for (auto& [step, candidate] : by_step) {
    if (Counts(job, candidate.record)) candidates.push_back(std::move(candidate));
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    // Newer means a later attempt, whatever the steps: an attempt may have gone back.
    return std::pair(a.record.attempt(), a.record.step()) >
           std::pair(b.record.attempt(), b.record.step());
  });
  return candidates;
}

absl::Status CheckManifest(const Candidate& candidate, const checkpoint::Reader& reader) {
  const checkpoint::Manifest& manifest = reader.manifest();
  const v1::CheckpointRecord& record = candidate.record;
  if (manifest.step != record.step()) {
    return absl::DataLossError(
        absl::StrCat(candidate.path, "/manifest.json is of step ", manifest.step));
  }
  const bool known = !record.manifest_digest().empty();
  if (known && reader.manifest_digest() != record.manifest_digest()) {
    return absl::DataLossError(
        absl::StrCat(candidate.path, "/manifest.json is not the one that was committed"));
  }
  return absl::OkStatus();
}

bool HasBlockDigests(const checkpoint::Manifest& manifest) {
  return std::all_of(manifest.tensors.begin(), manifest.tensors.end(), [](const auto& tensor) {
    return std::all_of(tensor.second.pieces.begin(), tensor.second.pieces.end(),
                       [](const checkpoint::Piece& piece) { return !piece.block_digests.empty(); });
  });
}

// Empty problem: the attempt can start from it.
CheckpointFinding Examine(const Candidate& candidate, bool suspect, const VerifyDirectory& verify) {
  const v1::CheckpointRecord& record = candidate.record;
  if (!candidate.on_disk) {
    return {record.step(), kGone, true};
  }
  // Reading every byte here would delay every start; below it is done where it is needed.
  const auto reader = checkpoint::Reader::Open(candidate.path, checkpoint::DigestCheck::kNone);
  if (!reader.ok()) return FindingOf(record.step(), reader.status());
  if (const absl::Status same = CheckManifest(candidate, **reader); !same.ok()) {
    return FindingOf(record.step(), same);
  }
  // Where blocks have digests, ranks verify what they load: reading all of it twice is saved.
  const bool ranks_notice = HasBlockDigests((*reader)->manifest());
  const bool trusted =
      record.problem().empty() && !suspect && (ranks_notice || record.verified_at() > 0);
  if (trusted) return {record.step(), "", false};
  return Summarize(record.step(), verify(candidate.path));
}

}  // namespace

CheckpointFound SearchCheckpoint(const checkpoint::Store& store, const FindCheckpoint& wanted,
                                 const VerifyDirectory& verify) {
  CheckpointFound answer;
  answer.run = wanted.run;
  // A person has asked for the beginning: there is nothing to look for.
  if (wanted.only == 0) return answer;
  const auto there = store.List(wanted.run.job_id());
  if (absl::IsNotFound(there.status()) && wanted.known.empty() && !wanted.only.has_value()) {
    return answer;  // it has not saved yet
  }
  if (!there.ok()) {
    // A job that has saved had a directory: without it, its volume is missing.
    const bool gone = absl::IsNotFound(there.status());
    answer.findings.push_back(
        {0,
         absl::StrCat(std::string(there.status().message()),
                      gone ? ", where the job's checkpoints were: is the volume mounted?" : ""),
         /*damaged=*/false});
    return answer;
  }
  for (const checkpoint::Committed& committed : *there) answer.there.push_back(RecordOf(committed));
  for (const Candidate& candidate : Merge(wanted, *there)) {
    if (wanted.only.has_value() && candidate.record.step() != *wanted.only) continue;
    // Where one is damaged, its neighbours may be, too.
    const bool suspect = candidate.record.step() == wanted.suspect_step || !answer.findings.empty();
    CheckpointFinding finding = Examine(candidate, suspect, verify);
    if (finding.problem.empty()) {
      answer.step = candidate.record.step();
      answer.path = candidate.path;
      answer.bytes = candidate.record.bytes();
      return answer;
    }
    answer.findings.push_back(std::move(finding));
    // A fault that may pass ends the search: older ones must not be used in place of this one.
    if (!answer.findings.back().damaged) return answer;
  }
  return answer;
}

CheckpointVerified VerifyStep(const checkpoint::Store& store, const std::string& job, int64_t step,
                              const VerifyDirectory& verify) {
  // Where the whole job is missing, its volume is: that is not damage.
  const auto there = store.List(job);
  if (!there.ok()) return {job, step, std::string(there.status().message()), /*damaged=*/false};
  const bool listed = std::any_of(there->begin(), there->end(),
                                  [step](const auto& committed) { return committed.step == step; });
  if (!listed) return {job, step, kGone, /*damaged=*/true};
  return VerdictOf(job, step, verify(store.PathOf(job, step)));
}

CheckpointVerified VerdictOf(const std::string& job, int64_t step,
                             const std::vector<checkpoint::Finding>& findings) {
  CheckpointFinding summary = Summarize(step, findings);
  return {job, step, std::move(summary.problem), summary.damaged};
}

}  // namespace tercio::coordinator
