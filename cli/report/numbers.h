// The numbers of a job, and the comparison of two jobs.
//
// Pure. Unknown values are absent, never 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/report/job_data.h"
#include "nlohmann/json.hpp"

namespace tercio::report {

using Json = nlohmann::ordered_json;

struct Distribution {
  double least = 0;
  double p10 = 0;
  double median = 0;
  double p90 = 0;
  double p99 = 0;
  double greatest = 0;
  double mean = 0;
};
// nullopt if there are no finite values.
std::optional<Distribution> DistributionOf(std::vector<double> values);

struct Numbers {
  int64_t steps = 0;
  int64_t tokens = 0;
  int ranks = 0;
  std::optional<double> final_loss;
  std::optional<double> least_loss;
  std::optional<double> validation_loss;  // the last
  std::optional<double> perplexity;       // exp(validation_loss)
  // Scores of classifiers: the last evaluation's, and those of the test data.
  std::optional<double> validation_accuracy;
  std::optional<double> validation_f1;
  // Preferences: the last step's and the last evaluation's.
  std::optional<double> rewards_margin;
  std::optional<double> rewards_accuracy;
  std::optional<double> validation_rewards_margin;
  std::optional<double> validation_rewards_accuracy;
  std::optional<double> test_loss;
  std::optional<double> test_accuracy;
  std::optional<double> test_f1;
  // Seconds of an optimizer step; the first step of each attempt, which warms up, is left out if
  // there are others.
  std::optional<Distribution> step_seconds;
  std::optional<double> micro_batch_seconds;  // median step / micro-batches of a rank
  std::optional<double> tokens_per_second;    // rate of the median step
  std::optional<double> mfu;
  std::optional<double> cores_used;  // processor seconds / elapsed seconds, summed over ranks
  std::optional<double> device_utilization;  // mean over ranks
  std::optional<double> wait_share;          // share of the step loop, mean over ranks
  std::optional<double>
      wait_per_compute;  // waiting / (forward + backward): beside the predicted bubble
  std::optional<int64_t> planned_bytes_most;  // largest arena of a rank
  std::optional<int64_t> used_bytes_most;     // most of an arena in use, measured
  std::optional<int64_t> peak_bytes_most;     // largest per-rank peak, memory outside the arena too
  std::optional<int64_t> outside_bytes_most;  // outside the arena of a rank: its peak - used
  std::optional<int64_t> peak_bytes_total;    // sum over all ranks
  std::optional<int64_t> resident_bytes_most;
  std::optional<int64_t> resident_bytes_total;
  std::optional<int64_t> planned_bytes_total;
  std::optional<int64_t> used_bytes_total;
  // Sent to other ranks by all ranks together, in the current or last attempt.
  std::optional<v1::CommunicationBytes> communication;
  std::optional<int64_t> communication_bytes;          // of all kinds
  std::optional<double> communication_bytes_per_step;  // of the steps of the same attempt
  std::optional<double> goodput;        // productive share of the time in which it was not stopped
  std::optional<double> total_seconds;  // since submission
  int restarts = 0;
  int64_t lost_steps = 0;
};
Numbers NumbersOf(const JobData& job);
// Keys as the fields, unknown is null.
Json NumbersToJson(const Numbers& numbers);

// Two curves of losses, step by step.
struct LossComparison {
  int64_t steps = 0;             // steps that both have
  int64_t equal_steps = 0;       // steps with bit-identical losses
  int64_t states = 0;            // steps after which both have a digest of the state
  int64_t equal_states = 0;      // how many of those digests are equal
  int64_t not_finite_steps = 0;  // steps at which one loss is not finite: no difference
  double largest_difference = 0;
  int64_t largest_at = 0;  // step of the largest difference
  // When each job's smoothed loss first reaches the last smoothed loss of `base`: the step, and
  // seconds of steps until then; absent: never.
  struct Reached {
    int64_t step = 0;
    double seconds = 0;
  };
  std::optional<Reached> base_reaches;
  std::optional<Reached> other_reaches;
};
LossComparison CompareLosses(const JobData& base, const JobData& other);

// A fault, from the events.
struct Fault {
  int attempt = 0;
  double at = 0;  // seconds since 1970
  std::string kind;
  std::string cause;
  std::string node;
  std::optional<double> training_again_seconds;  // until all ranks of a later attempt were training
  std::optional<int64_t> steps_lost;
};
std::vector<Fault> FaultsOf(const JobData& job);

double SecondsOf(const google::protobuf::Timestamp& time);

// The kinds of groups that ranks communicate in.
struct GroupKind {
  const char* name;
  int64_t (v1::CommunicationBytes::*bytes)() const;
};
inline constexpr GroupKind kGroupKinds[] = {{"tensor", &v1::CommunicationBytes::tensor},
                                            {"pipeline", &v1::CommunicationBytes::pipeline},
                                            {"data", &v1::CommunicationBytes::data},
                                            {"world", &v1::CommunicationBytes::world}};

}  // namespace tercio::report
