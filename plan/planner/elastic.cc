#include "plan/planner/elastic.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "plan/rank_layout.h"
#include "plan/state_shards.h"

namespace tercio::plan {
namespace {

// The search asks the planner itself, so that a layout that fits here also fits when it is placed.
bool Fits(v1::JobSpec job, const v1::ParallelismSpec& parallelism, int ranks, Cluster cluster) {
  *job.mutable_parallelism() = parallelism;
  job.mutable_resources()->set_ranks(ranks);
  cluster.ranks = ranks;
  return ChooseLayout(job, cluster).ok();
}

// Groups that divide the state may not divide another number of data ranks. Without them the bits
// are the same.
void DivideOverAll(v1::ParallelismSpec* parallelism) {
  parallelism->clear_shard();
  if (parallelism->reshard_after_forward() > kKeepsWeights) {
    parallelism->clear_reshard_after_forward();
  }
}

// The degrees that were asked for, but for the data degree.
v1::ParallelismSpec WithFewerReplicas(const v1::ParallelismSpec& wanted, int ranks) {
  v1::ParallelismSpec parallelism = wanted;
  // Fewer replicas change no product: the bits of every one of them stay (planner/elastic.h).
  const int replica = std::max(1, wanted.tensor()) * std::max(1, wanted.pipeline());
  // A number of ranks that the replica does not divide has no such layout.
  parallelism.set_data(ranks % replica == 0 ? ranks / replica : 0);
  if (parallelism.shard() > 0 && parallelism.data() % parallelism.shard() != 0) {
    DivideOverAll(&parallelism);
  }
  return parallelism;
}

// A job that leaves its degrees to the planner, and nothing else that was asked for.
v1::ParallelismSpec WithAnyDegrees(const v1::ParallelismSpec& wanted) {
  v1::ParallelismSpec parallelism = wanted;
  parallelism.set_automatic(true);
  parallelism.clear_tensor();
  parallelism.clear_pipeline();
  parallelism.clear_data();
  parallelism.clear_virtual_pipeline();
  parallelism.clear_stage_layers();
  DivideOverAll(&parallelism);
  return parallelism;
}

// The same with the degrees that the planner has chosen.
v1::ParallelismSpec WithDegrees(v1::ParallelismSpec parallelism, const v1::Layout& layout) {
  parallelism.set_automatic(false);
  parallelism.set_tensor(layout.tensor());
  parallelism.set_pipeline(layout.pipeline());
  parallelism.set_data(layout.data());
  parallelism.set_virtual_pipeline(layout.virtual_pipeline());
  *parallelism.mutable_stage_layers() = layout.stage_layers();
  parallelism.set_context_parallel(layout.context_parallel());
  parallelism.set_zero_stage(layout.zero_stage());
  parallelism.set_shard(layout.shard());
  parallelism.set_reshard_after_forward(layout.reshard_after_forward());
  // An interleaved one is possible for some degrees only.
  parallelism.set_schedule(layout.schedule());
  return parallelism;
}

}  // namespace

absl::StatusOr<v1::ParallelismSpec> SmallerLayout(const v1::JobSpec& job, int least, int most,
                                                  Cluster cluster, int* ranks) {
  // Keeping the degrees is worth more than one rank: it is tried for all numbers first.
  const v1::ParallelismSpec& wanted = job.parallelism();
  for (int count = most; count >= std::max(1, least) && !wanted.automatic(); --count) {
    const v1::ParallelismSpec candidate = WithFewerReplicas(wanted, count);
    if (candidate.data() == 0 || !Fits(job, candidate, count, cluster)) continue;
    *ranks = count;
    return candidate;
  }
  v1::JobSpec free = job;
  *free.mutable_parallelism() = WithAnyDegrees(wanted);
  // From above, since more ranks are faster.
  for (int count = most; count >= std::max(1, least); --count) {
    free.mutable_resources()->set_ranks(count);
    cluster.ranks = count;
    const absl::StatusOr<v1::Layout> layout = ChooseLayout(free, cluster);
    if (!layout.ok()) continue;
    *ranks = count;
    return WithDegrees(free.parallelism(), *layout);
  }
  return absl::NotFoundError(
      absl::StrCat("no layout of ", least, " to ", most, " ranks works for this model"));
}

}  // namespace tercio::plan
