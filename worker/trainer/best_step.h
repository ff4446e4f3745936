// The evaluated step whose checkpoint a job keeps (evaluate.keep_best), as its ranks decide it.
//
// Every rank has the same numbers, so all of them decide alike. Only a step whose checkpoint is
// committed can be the best. A rank learns how its save has ended when the upload is answered; one
// whose connection broke does not, while others do. Hence a save whose step would be the best is at
// first a candidate. The ranks agree on its outcome when they need it: before a later step takes
// its place, and at the end of the job. A checkpoint is
// committed if any rank was told so, since the coordinator answers a rank only once the whole of it
// is visible.
//
// The coordinator decides by its own records, and keeps the checkpoint: where ranks know less than
// it, they save a step too many, and lose nothing.
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::trainer {

class BestStep {
 public:
  // `metric` unspecified: the job keeps none. `known`: the best committed step of the history from
  // which the attempt resumes; step 0: none.
  BestStep(v1::QualityMetric metric, const v1::BestEvaluation& known);

  // Whether the value of an evaluated step beats the best one that is known to be committed.
  bool Beats(const v1::StepRecord& step) const;
  // Whether it beats the candidate, too. REQUIRES: has_candidate().
  bool BeatsCandidate(const v1::StepRecord& step) const;

  // The step that is to be saved as the best: its save has begun.
  void SaveBegins(const v1::StepRecord& step);
  bool has_candidate() const { return candidate_.has_value(); }
  int64_t candidate() const { return candidate_.has_value() ? candidate_->step() : 0; }
  // REQUIRES: has_candidate().
  void Settle(bool committed);

  // 0: none is committed.
  int64_t step() const { return best_.has_value() ? best_->step() : 0; }

 private:
  bool BeatsValue(const v1::StepRecord& step, const v1::BestEvaluation* value) const;

  const v1::QualityMetric metric_;
  std::optional<v1::BestEvaluation> best_;
  std::optional<v1::BestEvaluation> candidate_;
};

}  // namespace tercio::trainer
