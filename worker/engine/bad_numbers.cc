#include "worker/engine/bad_numbers.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "plan/lanes.h"
#include "plan/model_tensors.h"
#include "plan/rank_layout.h"
#include "plan/state_shards.h"

namespace tercio::engine {
namespace {

// The stage whose gradient of a tensor counts.
int StageOf(int tensor, const v1::RankPlan& plan) {
  for (int stage = 0; stage < plan.layout().pipeline(); ++stage) {
    for (const plan::StageTensor& entry :
         plan::TensorsOfStage(plan.model(), plan.layout(), stage).tensors) {
      if (entry.tensor.index == tensor && !entry.further_use) return stage;
    }
  }
  return 0;
}

// The ranks of the first data rank that have the tensor, or a part of it.
std::string HoldersOf(const plan::LogicalTensor& tensor, const v1::RankPlan& plan) {
  const v1::Layout& layout = plan.layout();
  const int stage = StageOf(tensor.index, plan);
  const int first = plan::RankOfCoordinates(layout, {0, 0, stage});
  // All tensor ranks hold the same of a tensor that is not cut.
  if (layout.tensor() == 1 || tensor.shard == plan::Shard::kWhole) {
    return absl::StrCat("rank ", first);
  }
  return absl::StrCat("ranks ", first, " to ",
                      plan::RankOfCoordinates(layout, {layout.tensor() - 1, 0, stage}));
}

}  // namespace

std::string DescribeBadNumbers(absl::Span<const double> losses, absl::Span<const double> not_finite,
                               const v1::RankPlan& plan) {
  const v1::Layout& layout = plan.layout();
  // A bad loss makes every gradient bad, so losses are looked at first.
  const auto sequences = static_cast<int64_t>(losses.size());
  for (int64_t i = 0; i < sequences; ++i) {
    const double loss = losses[static_cast<size_t>(i)];
    if (std::isfinite(loss)) continue;
    const int data = plan::DataRankOf(plan::BatchShapeOf(layout, plan.lanes()), i);
    // The last stage computes losses, on all its tensor ranks alike: the first of them is named.
    return absl::StrCat("the loss of sequence ", i, " is ", loss, " (rank ",
                        plan::RankOfCoordinates(layout, {0, data, layout.pipeline() - 1}), ")");
  }
  // Backward passes run from the last tensor to the first: the highest one went bad first.
  for (auto i = static_cast<int>(not_finite.size()) - 1; i >= 0; --i) {
    if (not_finite[static_cast<size_t>(i)] == 0) continue;
    const plan::LogicalTensor tensor = plan::ModelTensors(plan.model())[static_cast<size_t>(i)];
    return absl::StrCat(
        "the gradient of ", tensor.name, " is not finite (", HoldersOf(tensor, plan),
        layout.data() > 1 ? absl::StrCat(", summed over ", layout.data(), " data ranks") : "", ")");
  }
  return "the mean loss is not finite";
}

}  // namespace tercio::engine
