// The largest model of a job's family that fits into the memory of its ranks. Pure.
//
// The family of a model: the same architecture, vocabulary, context and head size, the same ratios
// of feed-forward width, key heads and layers to the hidden size. Its members are numbered by their
// width, in the smallest steps that the layout can cut; layers follow in proportion, rounded to
// what the pipeline can cut. The model of the job is one of them.
#pragma once

#include <cstdint>
#include <optional>

#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

struct LargestModel {
  int layers = 0;
  int hidden = 0;
  int64_t parameters = 0;
  int64_t memory_bytes = 0;  // of the rank that needs most, by the memory map
};

// Member `number` >= 1 of the family of `job`: the job with that model; nullopt: beyond the sizes
// that a job may have (plan/limits.h). REQUIRES: a layout that CheckLayout accepts for `job`, whose
// vocabulary is known.
std::optional<v1::JobSpec> FamilyMember(const v1::JobSpec& job, const v1::Layout& layout,
                                        int64_t number);

// The largest member that needs at most `memory_bytes` on each rank of the layout, with its
// micro-batch; nullopt: not even the smallest fits. `threads` as in MemoryOfStage. REQUIRES: as
// above.
std::optional<LargestModel> LargestModelThatFits(const v1::JobSpec& job, v1::Layout layout,
                                                 int threads, int64_t memory_bytes);

}  // namespace tercio::plan
