// One way of training the model of an experiment, in numbers: a variant that Tercio has run, or a
// baseline that other software has run.
//
// Pure. Unknown values are absent, never 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/report/job_data.h"
#include "nlohmann/json.hpp"
#include "proto/tercio/v1/events.pb.h"

namespace tercio::compare {

using Json = nlohmann::ordered_json;

enum class MethodKind { kVariant, kBaseline };
enum class MethodState { kNotRun, kSucceeded, kFailed, kCancelled };
std::string TextOf(MethodState state);  // "not run"

struct Degrees {
  int tensor = 1;
  int pipeline = 1;
  int data = 1;
  int ranks = 1;
};

// One of several runs of a variant.
struct RunOfMethod {
  std::string job_id;
  MethodState state = MethodState::kNotRun;
  std::string error;
  std::optional<double> seconds;
  std::optional<double> step_seconds;  // median
};

struct Method {
  std::string name;
  MethodKind kind = MethodKind::kVariant;
  std::string software;  // with version
  MethodState state = MethodState::kNotRun;
  std::string error;   // why it has not succeeded; empty: it has, or nothing is known
  std::string job_id;  // of the run whose history and evaluations these are; empty: none
  std::optional<Degrees> layout;
  std::string device;     // "cpu"; empty: not known
  std::string precision;  // "fp32"; empty: not known

  // Counts are whole numbers, which a double holds exactly below 2^53.
  std::optional<double> parameters;
  std::optional<double> global_batch;
  std::optional<double> epochs;
  std::optional<double> steps;
  std::optional<double> samples_per_epoch;
  // From the first step to the end, with evaluations and checkpoints.
  std::optional<double> seconds;
  std::vector<double> epoch_seconds;                      // of the steps of each complete epoch
  std::optional<double> step_median, step_p10, step_p90;  // seconds
  std::optional<double> micro_batch_seconds;
  std::optional<double> samples_per_second;  // of the median step
  std::optional<double> tokens_per_second;
  std::optional<double> speed_up;    // samples per second as a multiple of the base's
  std::optional<double> efficiency;  // the same per rank
  std::optional<double> cores_used;
  std::optional<double> device_utilization;
  std::optional<double> planned_bytes, used_bytes, resident_bytes;  // of all ranks together
  // Sent by all ranks together, in the last attempt.
  std::optional<double> sent_tensor, sent_pipeline, sent_data, sent_world;
  std::optional<double> sent_per_step;
  std::optional<double> wait_share;  // mean over ranks
  std::optional<double> final_loss;
  std::optional<double> validation_loss;  // the last
  std::optional<double> cost;
  std::optional<double> largest_layers, largest_hidden, largest_parameters, largest_bytes;

  std::vector<v1::StepRecord> history;
  Json validation;  // as EvaluationToJson (cli/evaluation_json.h) writes it; null: not evaluated
  Json test;
  std::optional<double> best_step;
  std::vector<RunOfMethod> runs;  // of variants
};

// A run of the variant `name`.
Method MethodOfJob(const std::string& name, const report::JobData& job);

// A run that ended before there was a job, or that was not begun.
Method MethodWithoutJob(const std::string& name, MethodState state, const std::string& error);

// The runs of one variant as one method: numbers are medians over those that have succeeded, which
// give the history and the evaluations, too. It has failed if one of them has. REQUIRES: not empty.
Method Together(const std::vector<Method>& runs);

// The variant that others are compared with: the first on one rank that has a rate, else the first
// that has one; null: none has.
const Method* BaseOf(const std::vector<Method>& methods);

// Fills in speed-ups and efficiencies, relative to BaseOf.
void CompareSpeeds(std::vector<Method>* methods);

// Fills in what each method costs at this price of a device.
void AddCosts(double per_device_hour, std::vector<Method>* methods);

}  // namespace tercio::compare
