// Features of a job that exclude each other, as one table: job files, the planner and the documents
// (docs/configuration.md) have it from here, and plan/combinations_test.cc proves that every other
// pair is accepted. What depends on sizes is a rule of layouts instead (plan/rank_layout.h). Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {

struct Feature {
  const char* name;    // as documents have it: "training.fp8"
  const char* change;  // what gives it to a job: "training.fp8=true"
  bool (*is_used)(const v1::JobSpec& job);
};

struct Exclusion {
  const Feature* one;
  const Feature* other;
  const char* key;     // where a job file has the fault
  const char* reason;  // with what to do about it
};

absl::Span<const Feature> Features();
absl::Span<const Exclusion> Exclusions();

// The rows that a job breaks.
std::vector<const Exclusion*> BrokenBy(const v1::JobSpec& job);

}  // namespace tercio::plan
