// The experiment file of `tercio compare`: strict YAML in, a complete JobSpec for each variant out
// (docs/configuration.md).
//
// A variant is the job file with a map of changes merged over it: maps key by key, everything else
// as a whole; a null takes a key away, so that its default counts. Paths in it are relative to the
// job file, as all paths of a job.
//
// Every fault of the file, and of the jobs of all variants, is reported in one message, one line
// each: FILE:LINE: KEY: what. Where not all variants have a fault of the job, its line begins with
// the variant's name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/reader.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::config {

struct Variant {
  std::string name;
  v1::JobSpec job;  // named after the job file's job and the variant
};

// Results of other software that are shown beside those of the variants.
struct Baseline {
  std::string name;
  std::string results;  // path of their file
};

struct DeviceCost {
  double per_device_hour = 0;
  std::string currency;  // may be empty
};

// The section `cost:` of an experiment or a cluster.
DeviceCost ParseDeviceCost(Section cost);

// A key that decides what is trained, with its value in each variant; empty: it has no such key.
struct DifferentKey {
  std::string key;
  std::vector<std::string> values;
};

struct Experiment {
  std::string name;
  std::vector<Variant> variants;  // not empty
  std::vector<Baseline> baselines;
  std::optional<DeviceCost> cost;
  // Why the variants cannot be compared in every respect; empty unless that was allowed.
  std::vector<DifferentKey> different;
};

// Whether variants may train other models, on other data, or for longer, than the first one.
enum class DifferentTraining { kRefuse, kAllow };

// NOT_FOUND when there is no such file or no such job file, INVALID_ARGUMENT with all faults.
absl::StatusOr<Experiment> ParseExperimentFile(const std::string& path,
                                               DifferentTraining different);

}  // namespace tercio::config
