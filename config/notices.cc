#include "config/notices.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "config/job_file.h"
#include "plan/offload.h"
#include "plan/reproducibility.h"
#include "plan/state_shards.h"

namespace tercio::config {
namespace {

using Job = v1::JobSpec;

// With `auto` the planner may choose more than one.
bool HasOneTensorRank(const Job& job) {
  return !job.parallelism().automatic() && job.parallelism().tensor() <= 1;
}
bool HasOneDataRank(const Job& job) {
  const v1::ParallelismSpec& parallelism = job.parallelism();
  if (parallelism.automatic()) return false;
  if (parallelism.data() > 0) return parallelism.data() == 1;
  return job.resources().ranks() <=
         std::max(1, parallelism.tensor()) * std::max(1, parallelism.pipeline());
}
bool IsOnCpus(const Job& job) { return job.resources().device() == v1::DEVICE_KIND_CPU; }
bool HasNoValidation(const Job& job) {
  return job.data().validation_fraction() <= 0 && job.data().validation_path().empty() &&
         job.data().validation_blend().empty();
}
// What is offloaded is gathered on one rank, too.
bool HasNothingToDivide(const Job& job) {
  return HasOneDataRank(job) && !plan::IsOffloaded(job.offload().parameters());
}
bool IsUndivided(const Job& job) {
  return !job.parallelism().automatic() && job.parallelism().zero_stage() == 0;
}
bool KeepsWeights(const Job& job) {
  return !job.parallelism().automatic() && job.parallelism().zero_stage() < 3;
}
bool GathersNothing(const Job& job) {
  return KeepsWeights(job) || job.parallelism().reshard_after_forward() == plan::kKeepsWeights;
}
bool IsHost(v1::OffloadTier tier) { return tier == v1::OFFLOAD_TIER_HOST; }
bool MovesNoOptimizer(const Job& job) {
  const v1::OffloadTier tier = job.offload().optimizer();
  return !plan::IsOffloaded(tier) || (IsHost(tier) && IsOnCpus(job));
}
constexpr char kSameMemory[] = "on CPUs host is the memory of the ranks themselves";
// Without the key a job never continues on fewer ranks.
bool NeverShrinks(const Job& job) { return job.fault_tolerance().elastic_min_ranks() == 0; }

struct Row {
  const char* key;
  bool (*given)(const Job& job);  // it differs from its default
  bool (*idle)(const Job& job);   // nothing in the job depends on it
  const char* why;                // it is idle
};

// Keys are listed here, not found, since only people know when one cannot matter.
constexpr Row kRows[] = {
    {"parallelism.sequence_parallel",
     [](const Job& job) { return job.parallelism().sequence_parallel(); }, HasOneTensorRank,
     "parallelism.tensor is 1"},
    {"parallelism.tensor_overlap",
     [](const Job& job) { return job.parallelism().tensor_overlap() > 1; }, HasOneTensorRank,
     "parallelism.tensor is 1"},
    {"parallelism.zero_stage", [](const Job& job) { return job.parallelism().zero_stage() > 0; },
     HasNothingToDivide, "there is one data rank"},
    {"parallelism.shard", [](const Job& job) { return job.parallelism().shard() > 0; }, IsUndivided,
     "parallelism.zero_stage is 0"},
    {"parallelism.reshard_after_forward",
     [](const Job& job) { return job.parallelism().reshard_after_forward() > 0; }, KeepsWeights,
     "parallelism.zero_stage is below 3"},
    {"parallelism.prefetch",
     [](const Job& job) { return plan::PrefetchOf(job.parallelism()) != 1; }, GathersNothing,
     "no layers are gathered"},
    {"offload.optimizer", [](const Job& job) { return IsHost(job.offload().optimizer()); },
     IsOnCpus, kSameMemory},
    {"offload.parameters", [](const Job& job) { return IsHost(job.offload().parameters()); },
     IsOnCpus, kSameMemory},
    {"offload.activations", [](const Job& job) { return IsHost(job.offload().activations()); },
     IsOnCpus, kSameMemory},
    {"offload.share", [](const Job& job) { return job.offload().has_share(); }, MovesNoOptimizer,
     "offload.optimizer leaves the state where it is"},
    {"resources.cuda_graphs", [](const Job& job) { return job.resources().no_cuda_graphs(); },
     IsOnCpus, "resources.device is cpu"},
    {"training.lanes", [](const Job& job) { return plan::ChoosesLanes(job.training()); },
     [](const Job& job) { return !plan::OrderIsFixed(job); },
     "on GPUs sums have lanes only with training.reproducibility: exact"},
    {"training.evaluate.every_steps",
     [](const Job& job) { return job.training().evaluate().every_steps() > 0; }, HasNoValidation,
     "there is no data.validation"},
    {"training.evaluate.every_epochs",
     [](const Job& job) { return job.training().evaluate().every_epochs() > 0; }, HasNoValidation,
     "there is no data.validation"},
    {"training.evaluate.batches",
     [](const Job& job) { return job.training().evaluate().batches() > 0; }, HasNoValidation,
     "there is no data.validation"},
    {"checkpoint.snapshot",
     [](const Job& job) { return job.checkpoint().snapshot() == v1::SNAPSHOT_KIND_IN_PLACE; },
     [](const Job& job) { return job.resources().device() == v1::DEVICE_KIND_CUDA; },
     "resources.device is cuda, whose snapshots lie on the host"},
    // Its default is compared with, since a job does not tell which keys were written.
    {"fault_tolerance.elastic_wait",
     [](const Job& job) {
       return job.fault_tolerance().elastic_wait_seconds() != kElasticWaitSeconds;
     },
     NeverShrinks, "without fault_tolerance.elastic_min_ranks the job waits for all of its ranks"},
};

}  // namespace

std::vector<std::string> KeysWithoutEffect(const v1::JobSpec& job) {
  std::vector<std::string> notices;
  for (const Row& row : kRows) {
    // A key that is at its default was most likely not written, and needs no notice.
    if (!row.given(job) || !row.idle(job)) continue;
    notices.push_back(absl::StrCat(row.key, " has no effect: ", row.why));
  }
  return notices;
}

}  // namespace tercio::config
