// Every buffer of a rank, before the first allocation: names, kinds, offsets in one arena. Pure;
// the planner predicts with it, the trainer allocates from it, and nothing else is allocated in a
// step.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/device_memory.h"
#include "plan/model_tensors.h"
#include "plan/precision.h"
#include "plan/stage_units.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// What stays of the optimizer's state in the device's memory is in a buffer of its own: "adamw.m"
// and "adamw.m.near" (plan/state_shards.h, KeepNear).
inline constexpr char kNearSuffix[] = ".near";

// Doubles per sequence of the global batch that all ranks learn after a step: the sum of its
// tokens' losses, and, where the architecture does not fix them, how many tokens were predicted,
// and the loss of the sequence as a whole.
int SumsPerSequence(const v1::JobSpec& job);
// All doubles of that exchange (worker/engine/exchange_vector.h).
int64_t ExchangedNumbers(const v1::JobSpec& job);

// Doubles with which ranks compare a stage's tensors (worker/engine/replica_check.h): `whole` of
// them that every data rank has, and the shards of all `tensors`, where others have the same shard.
int64_t ReplicaExchange(const v1::Layout& layout, int64_t whole, int64_t tensors);

// The data rank that saves each tensor of a stage, and its moments, in checkpoints: by index in
// `tensors`, -1 for a tied head, which its lookup's rank saves. All data ranks save about as much:
// the largest tensors are given out first, each to the rank that has the least (Graham 1969, LPT).
std::vector<int> SavingDataRanks(const StageTensors& tensors, int data);

// Bytes a rank needs per buffer for a stage; the same for all its ranks. `threads` enters
// through per-thread scratch. REQUIRES: a layout that CheckLayout accepts; model.vocab_size > 0.
v1::MemoryTable MemoryOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage,
                              int threads);

// The same for many stages and layouts of one job, whose tensors are listed once. Not for several
// threads at a time.
class MemoryTables {
 public:
  // `job` must outlive it.
  explicit MemoryTables(const v1::JobSpec& job) : job_(job), stages_(job) {}

  // MemoryOfStage.
  v1::MemoryTable OfStage(const v1::Layout& layout, int stage, int threads);
  // Bytes that its total does not fall below, in far less time: activations, and weights, gradients
  // and moments in shards of equal size.
  int64_t LeastOfStage(const v1::Layout& layout, int stage);

 private:
  // Bytes of a slot, and of the shared buffer.
  using Activations = std::pair<int64_t, int64_t>;

  const Activations& ActivationsOf(const v1::Layout& layout, int stage);

  const v1::JobSpec& job_;
  StageTables stages_;
  // By all that they depend on.
  using ActivationsKey = std::tuple<int, int, int, int, int, int, bool, int, std::vector<int>>;
  std::map<ActivationsKey, Activations> activations_;
};

// The most memory that a rank should take beside its arena, which is measured but not limited: on
// the CPU kHostReserveBytes, and one tensor of the stage, which is whole on the host while it is
// initialised or loaded; on a GPU what plans leave free (GpuReserveBytes).
int64_t MostBytesOutside(const v1::JobSpec& job, const v1::Layout& layout, int stage);

// The buffer of that name. REQUIRES: it exists.
const v1::Buffer& FindBuffer(const v1::MemoryTable& table, const std::string& name);

// "activations".
const char* BufferKindText(v1::BufferKind kind);

// For people: one line per kind of buffer, and the total.
std::string MemoryTableText(const v1::MemoryTable& table);

}  // namespace tercio::plan
