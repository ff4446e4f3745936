// Every buffer of a rank, before the first allocation: names, kinds, offsets in one arena. Pure; the planner
// predicts with it, the trainer allocates from it, and nothing else is allocated in a step.
#pragma once

#include <string>

#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// Bytes a CPU rank needs per buffer for a stage. `threads` enters through per-thread scratch.
// REQUIRES: a layout that CheckLayout accepts; model.vocab_size > 0.
v1::MemoryTable MemoryOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage, int threads);

// The buffer of that name. REQUIRES: it exists.
const v1::Buffer& FindBuffer(const v1::MemoryTable& table, const std::string& name);

// For people: one line per kind and buffer, with totals.
std::string MemoryTableText(const v1::MemoryTable& table);

}  // namespace tercio::plan
