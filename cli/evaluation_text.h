// Evaluations for people. Pure.
#pragma once

#include <string>
#include <vector>

#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/job_service.pb.h"

namespace tercio::cli {

// "step 15: loss 0.3100, accuracy 0.9120, f1 0.9050"; the scores of classifiers only.
std::string EvaluationText(const v1::Evaluation& evaluation);

// A table of the scores of each class, and their averages; empty without classes.
std::string ClassTable(const v1::Evaluation& evaluation, const v1::ModelSpec& model);

// Whether the job's number of steps is known: that of epochs is once its data is prepared.
bool KnowsSteps(const v1::JobStatus& job);

// "12 of 30"; "0, 3 epochs" until the number of steps is known.
std::string StepsText(const v1::JobStatus& job);

}  // namespace tercio::cli
