#include "cli/commands/planned_timeline.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/commands/timeline_figure.h"
#include "cli/plot/timeline.h"
#include "cli/trace.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "plan/planner/cost/recipe.h"
#include "plan/planner/cost/step_cost.h"
#include "plan/simulator/step_timeline.h"

namespace tercio::cli {
namespace {

using plan::simulator::StepTimeline;

// Passes of one step that a browser still shows, and a file of some 60 MB holds.
constexpr int64_t kMostPasses = 400000;

absl::Status Write(const char* option, const std::string& path, const std::string& content) {
  const absl::Status written = AsConflict(WriteFileDurably(path, content));
  if (written.ok()) return written;
  return absl::Status(
      written.code(),
      absl::StrCat(option, ": ", std::string(written.message()),
                   "; name a file in a folder that exists, may be written to and has room"));
}

}  // namespace

absl::Status WriteTimelines(const ClusterPlan& plan, const PlanOptions& options) {
  if (options.svg.empty() && options.timeline.empty()) return absl::OkStatus();
  if (plan.found.fitting.empty()) return absl::OkStatus();
  const v1::Layout& layout = plan.found.fitting.front().layout;
  const int64_t passes = int64_t{2} * std::max(1, layout.micro_batches()) *
                         std::max(1, layout.pipeline()) * std::max(1, layout.virtual_pipeline());
  if (passes > kMostPasses) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.svg.empty() ? "--timeline" : "--svg", ": a step of the best layout has ", passes,
        " passes, and at most ", kMostPasses,
        " can be shown; choose a layout with fewer micro-batches or stages with --explain"));
  }
  const plan::cost::ClusterModel cluster = ClusterOf(plan, plan.found.fitting.front());
  plan::cost::PipelineWalks walks;
  const StepTimeline timeline = plan::simulator::TimelineOfStep(
      plan::cost::TimingOfStep({.job = plan.job,
                                .layout = layout,
                                .cluster = cluster,
                                .recipe = *plan::cost::FindRecipe("tercio")},
                               &walks));
  if (!options.svg.empty()) {
    const std::string gpus =
        cluster.groups.empty()
            ? absl::StrCat(cluster.devices(), " x ", std::string(cluster.accelerator.name))
            : absl::StrCat(cluster.devices(), " GPUs of ", cluster.groups.size(), " kinds");
    TERCIO_RETURN_IF_ERROR(
        Write("--svg", options.svg,
              plot::Draw(TimelineFigure(timeline, layout, gpus), plot::SvgPlace::kOwnFile)));
  }
  if (!options.timeline.empty()) {
    TERCIO_RETURN_IF_ERROR(
        Write("--timeline", options.timeline,
              TraceJson(TimelineTraces(timeline, layout), PlacesOfRanks(layout))));
  }
  return absl::OkStatus();
}

}  // namespace tercio::cli
