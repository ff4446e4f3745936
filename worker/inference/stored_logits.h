// Stored logits and the samples of a job: written by a teacher over all of them, and checked before
// a student learns from them.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/logits/header.h"
#include "data/prepared_data.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/inference/whole_model.h"

namespace tercio::inference {

// What decides the samples of the job. INVALID_ARGUMENT: they have no numbers, because they are
// packed, or are not those of a model that predicts each token from those before it.
absl::StatusOr<checkpoint::LogitsSubject> LogitsSubjectOf(const v1::JobSpec& job,
                                                          const data::PreparedData& data);

// OK for a job without stored logits. Else reads all of the files, and the digest of the data
// becomes that of both. INVALID_ARGUMENT: they do not belong to the job's samples; NOT_FOUND |
// DATA_LOSS: they are not there, or damaged. Each names the file and what to do. REQUIRES: `data`
// was prepared with its digest.
absl::Status CheckStoredLogits(const v1::JobSpec& job, data::PreparedData* data);

struct LogitsOptions {
  std::string directory;  // to create
  int64_t k = 0;
  int threads = 1;
  // Gets the tokens that are done, and their total; may be empty.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct LogitsReport {
  int64_t samples = 0;
  int64_t rows = 0;
  int64_t bytes = 0;  // of the directory
  int64_t resumed_samples = 0;
  bool removed_others = false;  // unfinished logits of other samples or another teacher
};

// Writes the largest logits of the teacher for every sample of the job. Resumes what an interrupted
// call of the same arguments has left. Errors of LogitsWriter and TeacherPass; INVALID_ARGUMENT:
// another vocabulary, or a shorter context than the job's. Tokenizers are not compared
// (teacher_check.h).
absl::StatusOr<LogitsReport> WriteLogits(const OpenedModel& teacher, const v1::JobSpec& job,
                                         data::PreparedData data, const LogitsOptions& options);

}  // namespace tercio::inference
