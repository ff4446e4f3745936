#include "cli/commands/local_cluster.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "common/machine.h"
#include "common/status_macros.h"
#include "plan/gpu_figures.h"
#include "plan/gpu_reserve.h"
#include "plan/precision.h"

namespace tercio::cli {
namespace {

std::string GiB(int64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / (int64_t{1} << 30));
}

// What the driver says of all GPUs together.
struct Summary {
  int count = 0;
  std::string model;         // the first that is known; empty: none is
  int64_t memory_bytes = 0;  // the smallest that is known; 0: none is
};

Summary SummaryOf(const Gpus& gpus) {
  // Plans treat all GPUs alike, so that the smallest memory counts.
  Summary summary;
  summary.count = static_cast<int>(gpus.list.size());
  for (const Gpu& gpu : gpus.list) {
    if (summary.model.empty()) summary.model = gpu.model;
    if (gpu.memory_bytes <= 0) continue;
    summary.memory_bytes = summary.memory_bytes == 0
                               ? gpu.memory_bytes
                               : std::min(summary.memory_bytes, gpu.memory_bytes);
  }
  return summary;
}

std::string TextOf(const Summary& gpus, int64_t usable_bytes) {
  // A plan may be made on a laptop for a cluster: the assumption is said aloud.
  if (gpus.count == 0) {
    return absl::StrCat("there is no GPU here; the plan assumes that each rank has an ",
                        plan::kAssumedGpu, " with ", GiB(plan::kAssumedGpuBytes),
                        " of memory, and may use ", GiB(usable_bytes), " of it");
  }
  std::string text =
      absl::StrCat("the plan is for the GPUs of this machine: ", gpus.count, " x ",
                   gpus.model.empty() ? "GPU of unknown model" : gpus.model, " with ");
  if (gpus.memory_bytes > 0) {
    absl::StrAppend(&text, GiB(gpus.memory_bytes), " of memory each");
  } else {
    absl::StrAppend(&text, "memory that the driver does not report, assumed to be ",
                    GiB(plan::kAssumedGpuBytes), " each");
  }
  absl::StrAppend(&text, ", of which a rank may use ", GiB(usable_bytes));
  return text;
}

}  // namespace

KeptFigures FiguresHere(const v1::JobSpec& spec, const Gpus& gpus) {
  if (!plan::OnGpu(spec)) {
    return FindFigures(FiguresPath(DefaultStateDir(), FiguresOf::kCpus), IdentityOfCpus());
  }
  // GPUs that are assumed have been measured by nobody.
  if (gpus.list.empty()) return {};
  return FindFigures(FiguresPath(DefaultStateDir(), FiguresOf::kGpus), IdentityOfGpus(gpus));
}

absl::StatusOr<ClusterHere> FindClusterHere(const v1::JobSpec& spec, int ranks) {
  // Threads of the host are shared by the ranks of GPUs, too.
  plan::Cluster cluster = plan::LocalCluster(ranks, MachineCores(), MachineMemoryBytes(),
                                             spec.resources().threads_per_rank());
  if (!plan::OnGpu(spec)) {
    const KeptFigures kept = FiguresHere(spec, {});
    plan::UseCpus(kept.figures, cluster.cores_per_rank, &cluster);
    return ClusterHere{cluster, "", "", kept.notice};
  }
  TERCIO_ASSIGN_OR_RETURN(const Gpus gpus, FindGpus());
  const KeptFigures kept = FiguresHere(spec, gpus);
  ClusterHere here = OnGpusHere(gpus, kept.figures, cluster);
  here.measured = kept.notice;
  return here;
}

ClusterHere OnGpusHere(const Gpus& gpus, const v1::MachineFigures& figures, plan::Cluster cluster) {
  const Summary summary = SummaryOf(gpus);
  const int64_t memory = summary.memory_bytes > 0 ? summary.memory_bytes : plan::kAssumedGpuBytes;
  // More ranks than GPUs share them evenly.
  const int sharing = summary.count == 0 ? 1 : (cluster.ranks + summary.count - 1) / summary.count;
  cluster.memory_bytes = std::max<int64_t>(0, memory - plan::kGpuContextBytes) / sharing;
  cluster.shares_gpus = sharing > 1;
  // Where there is none, those that are assumed are on nodes of the usual size.
  cluster.ranks_per_node = summary.count == 0 ? 0 : std::max(summary.count, cluster.ranks);
  plan::UseGpus(figures, summary.model, &cluster);
  std::string text = TextOf(summary, cluster.memory_bytes);
  // Only ratios of speeds matter for the choice, so that the plan is still of use.
  const bool known = !figures.products().empty() || plan::FiguresOf(summary.model).has_value();
  if (summary.count > 0 && !known) {
    absl::StrAppend(&text, "; their speed is not known, and assumed to be that of an ",
                    plan::kAssumedGpu);
  }
  return {cluster, std::move(text), summary.model, ""};
}

}  // namespace tercio::cli
