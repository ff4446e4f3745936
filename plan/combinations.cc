#include "plan/combinations.h"

#include <algorithm>

#include "plan/fp8.h"
#include "plan/model_tensors.h"
#include "plan/offload.h"
#include "plan/precision.h"
#include "plan/state_shards.h"

namespace tercio::plan {
namespace {

using Job = v1::JobSpec;

// Where the planner chooses the degrees, it chooses the stage as well.
bool StageIsBelow(const Job& job, int stage) {
  return !job.parallelism().automatic() && job.parallelism().zero_stage() < stage;
}

bool IsOnDisk(v1::OffloadTier tier) { return tier == v1::OFFLOAD_TIER_NVME; }

enum Index {
  kOnCpus,
  kNotOnGpus,
  kOnGpus,
  kTf32,
  kFp8,
  kNotBf16,
  kExact,
  kNccl,
  kSequenceParallel,
  kTensorOverlap,
  kUndivided,
  kWholeWeights,
  kDividedWeights,
  kKeptWeights,
  kOptimizerElsewhere,
  kParametersElsewhere,
  kActivationsElsewhere,
  kStateOnDisk,
  kInPlace,
  kPeerCopies,
  kBaseFormat,
  kFeatureCount,
};

constexpr Feature kFeatures[kFeatureCount] = {
    {"resources.device: cpu", "resources.device=cpu",
     [](const Job& job) { return job.resources().device() == v1::DEVICE_KIND_CPU; }},
    {"resources.device other than cuda", "resources.device=auto",
     [](const Job& job) { return !OnGpu(job); }},
    {"resources.device: cuda", "resources.device=cuda", [](const Job& job) { return OnGpu(job); }},
    {"training.tf32", "training.tf32=true", [](const Job& job) { return job.training().tf32(); }},
    {"training.fp8", "training.fp8=true", [](const Job& job) { return HasFp8(job); }},
    {"training.precision other than bf16", "training.precision=fp32",
     [](const Job& job) { return FormatOf(job.training()) != kernels::Format::kBfloat16; }},
    {"training.reproducibility: exact", "training.reproducibility=exact",
     [](const Job& job) { return job.training().reproducibility() == v1::REPRODUCIBILITY_EXACT; }},
    {"resources.collectives: nccl", "resources.collectives=nccl",
     [](const Job& job) { return job.resources().collectives() == v1::COLLECTIVES_NCCL; }},
    {"parallelism.sequence_parallel", "parallelism.sequence_parallel=true",
     [](const Job& job) { return job.parallelism().sequence_parallel(); }},
    {"parallelism.tensor_overlap above 1", "parallelism.tensor_overlap=2",
     [](const Job& job) { return job.parallelism().tensor_overlap() > 1; }},
    {"parallelism.zero_stage 0 with several data ranks", "parallelism.zero_stage=0",
     [](const Job& job) { return StageIsBelow(job, 1) && job.parallelism().data() > 1; }},
    {"parallelism.zero_stage below 3", "parallelism.zero_stage=2",
     [](const Job& job) { return StageIsBelow(job, 3); }},
    {"parallelism.zero_stage 3", "parallelism.zero_stage=3",
     [](const Job& job) { return job.parallelism().zero_stage() >= 3; }},
    {"parallelism.reshard_after_forward: false", "parallelism.reshard_after_forward=false",
     [](const Job& job) { return job.parallelism().reshard_after_forward() == kKeepsWeights; }},
    {"offload.optimizer", "offload.optimizer=nvme",
     [](const Job& job) { return IsElsewhere(job, job.offload().optimizer()); }},
    {"offload.parameters", "offload.parameters=nvme",
     [](const Job& job) { return IsElsewhere(job, job.offload().parameters()); }},
    {"offload.activations", "offload.activations=nvme",
     [](const Job& job) { return IsElsewhere(job, job.offload().activations()); }},
    {"offload: nvme", "offload.optimizer=nvme",
     [](const Job& job) {
       return IsOnDisk(job.offload().optimizer()) || IsOnDisk(job.offload().parameters());
     }},
    {"checkpoint.snapshot: in_place", "checkpoint.snapshot=in_place",
     [](const Job& job) { return job.checkpoint().snapshot() == v1::SNAPSHOT_KIND_IN_PLACE; }},
    {"checkpoint.peer_copies", "checkpoint.peer_copies=1",
     [](const Job& job) { return job.checkpoint().peer_copies() > 0; }},
    {"model.base_format", "model.base_format=nf4",
     [](const Job& job) { return BaseFormatOf(job.model()) != kernels::BaseFormat::kNone; }},
};

constexpr const Feature* At(Index index) { return &kFeatures[index]; }

constexpr Exclusion kExclusions[] = {
    {At(kNccl), At(kOnCpus), "resources.collectives", "nccl needs device: cuda"},
    {At(kNccl), At(kExact), "resources.collectives",
     "nccl sums in its own order: training.reproducibility: exact needs host"},
    {At(kTf32), At(kOnCpus), "resources.device", "training.tf32 needs device: cuda"},
    {At(kFp8), At(kNotOnGpus), "resources.device", "training.fp8 needs device: cuda"},
    {At(kFp8), At(kNotBf16), "resources.device", "training.fp8 needs training.precision: bf16"},
    {At(kFp8), At(kDividedWeights), "training.fp8",
     "is not supported by this version with parallelism.zero_stage 3; use stage 2"},
    {At(kBaseFormat), At(kFp8), "model.base_format",
     "training.fp8 makes factors of 8 bits of weights in 16; leave one of them out"},
    {At(kBaseFormat), At(kDividedWeights), "model.base_format",
     "is not supported by this version with parallelism.zero_stage 3, which would have to divide "
     "codes; use stage 2"},
    {At(kTensorOverlap), At(kSequenceParallel), "parallelism.tensor_overlap",
     "a value above 1 with sequence_parallel is not supported by this version"},
    {At(kInPlace), At(kPeerCopies), "checkpoint.snapshot",
     "in_place cannot be combined with peer_copies; use copy"},
    {At(kOptimizerElsewhere), At(kUndivided), "offload.optimizer",
     "every data rank would keep all of it there; set parallelism.zero_stage: 1"},
    {At(kParametersElsewhere), At(kWholeWeights), "offload.parameters",
     "the model's layers are read from there one by one; set parallelism.zero_stage: 3"},
    {At(kParametersElsewhere), At(kKeptWeights), "offload.parameters",
     "parallelism.reshard_after_forward: false keeps all weights in memory; leave one of them out"},
    {At(kStateOnDisk), At(kOnGpus), "offload.optimizer",
     "nvme is not supported by this version on GPUs; use host"},
    {At(kActivationsElsewhere), At(kOnGpus), "offload.activations",
     "is not supported by this version on GPUs; use parallelism.recompute: full"},
};

}  // namespace

absl::Span<const Feature> Features() { return kFeatures; }
absl::Span<const Exclusion> Exclusions() { return kExclusions; }

std::vector<const Exclusion*> BrokenBy(const v1::JobSpec& job) {
  std::vector<const Exclusion*> broken;
  for (const Exclusion& row : kExclusions) {
    if (row.one->is_used(job) && row.other->is_used(job)) broken.push_back(&row);
  }
  return broken;
}

}  // namespace tercio::plan
