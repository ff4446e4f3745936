#include "plan/rank_layout.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "model/architecture.h"
#include "plan/base_format.h"
#include "plan/distillation.h"
#include "plan/lanes.h"
#include "plan/names.h"
#include "plan/offload.h"
#include "plan/preference.h"
#include "plan/reproducibility.h"
#include "plan/stage_layers.h"
#include "plan/state_shards.h"

namespace tercio::plan {
namespace {

// Members are given by first, stride and size, so that a group of any size is one small message.
v1::ProcessGroup Group(const std::string& name, v1::GroupKind kind, int first, int stride,
                       int size) {
  v1::ProcessGroup group;
  group.set_name(name);
  group.set_kind(kind);
  group.set_first(first);
  group.set_stride(stride);
  group.set_size(size);
  return group;
}

// The groups of one kind partition the ranks: those that differ in one coordinate only. Ranks of a
// group are `stride` apart; blocks of stride * size ranks hold `stride` interleaved groups.
struct Partition {
  const char* name;
  v1::GroupKind kind;
  int stride;
  int size;

  // Nothing is searched: a rank's groups cost the same in a job of any size.
  v1::ProcessGroup GroupOf(int rank) const {
    const int block = rank / (stride * size);
    const int inside = rank % stride;
    return Group(absl::StrCat(name, ".", block * stride + inside), kind,
                 block * stride * size + inside, stride, size);
  }
};

// Tensor ranks are neighbours, since they exchange the most and should share a node.
std::vector<Partition> Partitions(const v1::Layout& layout) {
  const int tensor = layout.tensor();
  std::vector<Partition> partitions = {
      {"tensor", v1::GROUP_KIND_TENSOR, 1, tensor},
      {"data", v1::GROUP_KIND_DATA, tensor, layout.data()},
      {"pipeline", v1::GROUP_KIND_PIPELINE, tensor * layout.data(), layout.pipeline()}};
  if (const int replicas = ReplicasOf(layout); replicas > 1 && ShardRanks(layout) > 1) {
    partitions.push_back({"shard", v1::GROUP_KIND_SHARD, tensor, ShardRanks(layout)});
    partitions.push_back(
        {"replica", v1::GROUP_KIND_REPLICA, tensor * ShardRanks(layout), replicas});
  }
  if (const int ranks = SecondaryRanks(layout); ranks > 0) {
    partitions.push_back({"secondary", v1::GROUP_KIND_SECONDARY, tensor, ranks});
  }
  // One group is used in one order: a layer that is gathered would wait for sums before it.
  const bool gathers = layout.zero_stage() >= 3 && layout.reshard_after_forward() != kKeepsWeights;
  if (gathers && ShardRanks(layout) > 1) {
    partitions.push_back({"sums", v1::GROUP_KIND_SUMS, tensor, ShardRanks(layout)});
  }
  return partitions;
}

// All faults begin alike, so that people recognise the rule behind them.
absl::Status Impossible(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("impossible layout: ", what));
}

// Those of a job file were checked there, those of a message were not.
absl::Status CheckLanes(const v1::TrainingSpec& training) {
  const int lanes = training.lanes();
  if (lanes == 0 || CanHaveLanes(training.global_batch(), lanes)) return absl::OkStatus();
  return Impossible(absl::StrCat("training.lanes ", lanes, " is not a power of two of at most ",
                                 kMostLanes, " that divides global_batch ",
                                 training.global_batch()));
}

// Where ranks keep sums of their shards only, a micro-batch is part of one round.
absl::Status CheckRounds(const v1::JobSpec& job, const v1::Layout& layout) {
  if (!DividesGradients(layout) || !OrderIsFixed(job)) return absl::OkStatus();
  const int64_t share = job.training().global_batch() / layout.data();
  const int64_t of_round = share / LanesPerDataRank(LanesOfJob(job.training()), layout.data());
  if (of_round % layout.micro_batch() == 0) return absl::OkStatus();
  return Impossible(absl::StrCat(
      "zero_stage ", layout.zero_stage(), ": micro_batch ", layout.micro_batch(),
      " does not divide the ", of_round,
      " sequences of a lane (global_batch / lanes); use fewer training.lanes, or a divisor"));
}

// "; the nearest are 24 and 32". Empty: there is no such batch.
std::string NearestBatches(int64_t batch, int64_t unit) {
  if (unit < 1) return "";
  const int64_t below = batch / unit * unit;
  if (below == 0) return absl::StrCat("; the least is ", unit);
  return absl::StrCat("; the nearest are ", below, " and ", below + unit);
}

// Groups of data ranks that divide the state, and smaller ones that keep gathered layers.
absl::Status CheckDivision(const v1::JobSpec& job, const v1::Layout& layout) {
  const int shard = layout.shard();
  const int data = layout.data();
  if (shard != 0 && (shard < 2 || data % shard != 0)) {
    return Impossible(absl::StrCat("shard ", shard, " does not divide data ", data,
                                   "; use a divisor of at least 2, or leave it out"));
  }
  // Sums within groups and then over them are the tree of all data ranks only then.
  if (OrderIsFixed(job) && !std::has_single_bit(static_cast<unsigned>(ReplicasOf(layout)))) {
    return Impossible(absl::StrCat("shard ", shard, " with data ", data, " makes ",
                                   ReplicasOf(layout),
                                   " replicas, which must be a power of two to keep equal bits"));
  }
  const int kept = layout.reshard_after_forward();
  if (layout.zero_stage() < 3 || kept == 0 || kept == kKeepsWeights) return absl::OkStatus();
  if (kept > 0 && kept < ShardRanks(layout) && ShardRanks(layout) % kept == 0) {
    return absl::OkStatus();
  }
  return Impossible(absl::StrCat("reshard_after_forward ", kept, " must divide the ",
                                 ShardRanks(layout),
                                 " ranks that share the state, and be less; use true, false or a "
                                 "divisor"));
}

}  // namespace

int WorldSize(const v1::Layout& layout) {
  return layout.tensor() * layout.data() * layout.pipeline() * layout.context_parallel();
}

Coordinates CoordinatesOfRank(const v1::Layout& layout, int rank) {
  TERCIO_CHECK(rank >= 0 && rank < WorldSize(layout));
  Coordinates at;
  at.tensor = rank % layout.tensor();
  at.data = rank / layout.tensor() % layout.data();
  at.pipeline = rank / (layout.tensor() * layout.data());
  return at;
}

int RankOfCoordinates(const v1::Layout& layout, const Coordinates& at) {
  // The inverse of CoordinatesOfRank: both follow the formula in the header.
  return (at.pipeline * layout.data() + at.data) * layout.tensor() + at.tensor;
}

std::vector<v1::ProcessGroup> ProcessGroups(const v1::Layout& layout) {
  const int world = WorldSize(layout);
  std::vector<v1::ProcessGroup> groups = {Group("world", v1::GROUP_KIND_WORLD, 0, 1, world)};
  for (const Partition& partition : Partitions(layout)) {
    for (int rank = 0; rank < world; ++rank) {
      // Each group is made once, from its first rank.
      v1::ProcessGroup group = partition.GroupOf(rank);
      if (group.first() == rank) groups.push_back(std::move(group));
    }
  }
  return groups;
}

std::vector<v1::ProcessGroup> GroupsOfRank(const v1::Layout& layout, int rank) {
  std::vector<v1::ProcessGroup> groups = {
      Group("world", v1::GROUP_KIND_WORLD, 0, 1, WorldSize(layout))};
  for (const Partition& partition : Partitions(layout)) groups.push_back(partition.GroupOf(rank));
  return groups;
}

std::vector<int> RanksOf(const v1::ProcessGroup& group) {
  std::vector<int> ranks(static_cast<size_t>(std::max(0, group.size())));
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i] = group.first() + static_cast<int>(i) * group.stride();
  }
  return ranks;
}

int IndexInGroup(const v1::ProcessGroup& group, int rank) {
  const int offset = rank - group.first();
  // The group may come from a message, so that nothing is assumed about its numbers.
  if (group.stride() <= 0 || offset < 0 || offset % group.stride() != 0) return -1;
  const int index = offset / group.stride();
  return index < group.size() ? index : -1;
}

void SetChoices(const v1::JobSpec& job, v1::Layout* layout) {
  const v1::ParallelismSpec& wanted = job.parallelism();
  layout->set_schedule(wanted.schedule() == v1::PIPELINE_SCHEDULE_UNSPECIFIED
                           ? v1::PIPELINE_SCHEDULE_1F1B
                           : wanted.schedule());
  layout->set_recompute(wanted.recompute() == v1::RECOMPUTE_UNSPECIFIED ? v1::RECOMPUTE_NONE
                                                                        : wanted.recompute());
  layout->set_sequence_parallel(wanted.sequence_parallel());
  layout->set_tensor_overlap(std::max(1, wanted.tensor_overlap()));
  layout->set_zero_stage(wanted.zero_stage());
  layout->set_shard(wanted.shard());
  layout->set_reshard_after_forward(wanted.reshard_after_forward());
  layout->set_prefetch(PrefetchOf(wanted));
  // One that the planner chooses is the least, until it has to be more.
  if (IsElsewhere(job, job.offload().optimizer()) && job.offload().has_share()) {
    layout->set_offload_share(job.offload().share());
  }
}

bool DivideAlike(v1::Layout a, v1::Layout b) {
  a.clear_offload_share();
  b.clear_offload_share();
  return a.SerializeAsString() == b.SerializeAsString();
}

// The teacher's sizes have to divide, too.
absl::Status CheckTeacher(const v1::JobSpec& job, const v1::Layout& layout, int ranks) {
  TERCIO_RETURN_IF_ERROR(CheckDistillation(job));
  if (!HasTeacher(job.training())) return absl::OkStatus();
  const absl::Status status = CheckLayout(TeacherJob(job), TeacherLayout(job, layout), ranks);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("the teacher of training.distillation: ",
                                                  std::string(status.message())));
}

absl::Status CheckLayout(const v1::JobSpec& job, const v1::Layout& layout, int ranks) {
  return CheckLayout(job, layout, ranks,
                     model::SizesThatTensorDivides(model::ArchitectureOf(job.model())));
}

absl::Status CheckLayout(const v1::JobSpec& job, const v1::Layout& layout, int ranks,
                         const std::vector<model::DividedSize>& divided) {
  const v1::ModelSpec& spec = job.model();
  const int tensor = layout.tensor();
  const int pipeline = layout.pipeline();
  const int data = layout.data();
  // The degrees come first: the rules below divide by them.
  if (tensor < 1 || pipeline < 1 || data < 1 || layout.context_parallel() < 1) {
    return Impossible(absl::StrCat("every degree must be at least 1 (tensor ", tensor,
                                   ", pipeline ", pipeline, ", data ", data, ")"));
  }
  if (WorldSize(layout) != ranks) {
    return Impossible(absl::StrCat("tensor ", tensor, " x pipeline ", pipeline, " x data ", data,
                                   " = ", WorldSize(layout), " ranks, but resources.ranks is ",
                                   ranks));
  }
  // Heads and feed-forward columns are what tensor ranks divide among them.
  for (const model::DividedSize& each : divided) {
    if (each.size % tensor == 0) continue;
    return Impossible(
        absl::StrCat("tensor ", tensor, " does not divide ", each.key, " ", each.size));
  }
  // Ranks hold equal parts of every sequence's rows.
  if (layout.sequence_parallel() && spec.context() % tensor != 0) {
    return Impossible(absl::StrCat("sequence_parallel: tensor ", tensor,
                                   " does not divide model.context ", spec.context()));
  }
  if (layout.sequence_parallel() && spec.decoder_context() % tensor != 0) {
    return Impossible(absl::StrCat("sequence_parallel: tensor ", tensor,
                                   " does not divide model.decoder_context ",
                                   spec.decoder_context()));
  }
  if (const absl::Status base = CheckBaseLayout(job, layout); !base.ok()) {
    return Impossible(std::string(base.message()));
  }
  const int chunks = std::max(1, layout.virtual_pipeline());
  TERCIO_RETURN_IF_ERROR(CheckStageLayers(spec, layout));
  if ((layout.schedule() == v1::PIPELINE_SCHEDULE_INTERLEAVED) != (chunks > 1)) {
    return Impossible(absl::StrCat("schedule ", TextOf(layout.schedule()),
                                   " with virtual_pipeline ", chunks,
                                   ": interleaved needs 2 or more, the others 1"));
  }
  if (chunks > 1 && pipeline < 2) return Impossible("interleaved needs pipeline 2 or more");
  // Every rank has to run equally many micro-batches of the same size.
  const int64_t batch = job.training().global_batch();
  const int64_t unit = int64_t{data} * layout.micro_batch();
  if (layout.micro_batch() < 1 || batch % unit != 0) {
    return Impossible(absl::StrCat("training.global_batch ", batch, " is not a multiple of data ",
                                   data, " x micro_batch ", layout.micro_batch(),
                                   NearestBatches(batch, unit)));
  }
  // The interleaved order works in groups of as many micro-batches as there are stages.
  if (chunks > 1 && batch / unit % pipeline != 0) {
    return Impossible(absl::StrCat("interleaved needs a multiple of pipeline ", pipeline,
                                   " micro-batches, global_batch / (data x micro_batch) is ",
                                   batch / unit));
  }
  // A plan from elsewhere must not contradict itself.
  if (layout.micro_batches() != batch / unit) {
    return Impossible(absl::StrCat("micro_batches is ", layout.micro_batches(),
                                   ", but global_batch / (data x micro_batch) is ", batch / unit));
  }
  TERCIO_RETURN_IF_ERROR(CheckLanes(job.training()));
  TERCIO_RETURN_IF_ERROR(CheckPreferences(job, layout.micro_batch()));
  TERCIO_RETURN_IF_ERROR(CheckTeacher(job, layout, ranks));
  TERCIO_RETURN_IF_ERROR(CheckDivision(job, layout));
  return CheckRounds(job, layout);
}

}  // namespace tercio::plan
