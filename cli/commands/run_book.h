// Which jobs have run the variants of an experiment: the file runs.json of `tercio compare`, by
// which a later call finds what is done.
//
// A run counts for a variant by its effective job, not by a name: renaming a variant repeats
// nothing, and changing it runs it again. What the files of a job contain is not compared.
//
// Threads: one.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::cli {

struct RecordedRun {
  std::string digest;   // DigestOfJob
  std::string job;      // its id
  std::string variant;  // name at that time, for people
};

// A digest of everything in the job but its name.
std::string DigestOfJob(const v1::JobSpec& spec);

class RunBook {
 public:
  // Reads the file; a missing one is an empty book. FAILED_PRECONDITION: it is something else.
  static absl::StatusOr<RunBook> Open(const std::string& path);

  const std::vector<RecordedRun>& runs() const { return runs_; }

  // Adds the run, or puts it in the place of that of the job `instead_of`; the file is written
  // before it returns.
  absl::Status Record(RecordedRun run, const std::string& instead_of = "");

 private:
  explicit RunBook(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::vector<RecordedRun> runs_;
};

struct PlannedRun {
  size_t variant = 0;
  int repetition = 0;  // from 0
  std::string digest;
  std::string job;  // that has run it, or has begun to; empty: none
};

// All runs of the variants with these digests, `repeat` of each: the first of every variant, then
// the second ... Each takes the first recorded run with its digest that no other has taken. Pure.
std::vector<PlannedRun> PlanRuns(const std::vector<std::string>& digests, int repeat,
                                 const std::vector<RecordedRun>& recorded);

}  // namespace tercio::cli
