#include "worker/engine/bad_numbers.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "plan/lanes.h"
#include "plan/model_tensors.h"
#include "plan/rank_layout.h"

namespace tercio::engine {
namespace {

// The stage whose gradient of a tensor counts.
int StageOf(int tensor, const v1::RankPlan& plan) {
  for (int stage = 0; stage < plan.layout().pipeline(); ++stage) {
    for (const plan::StageTensor& entry :
         plan::TensorsOfStage(plan.model(), plan.layout(), stage).tensors) {
      if (entry.tensor.index == tensor && entry.role != plan::TensorRole::kHead) return stage;
    }
  }
  return 0;
}

}  // namespace

std::string DescribeBadNumbers(absl::Span<const double> losses, absl::Span<const double> squares,
                               const v1::RankPlan& plan) {
  const v1::Layout& layout = plan.layout();
  // A bad loss makes every gradient bad, so losses are looked at first.
  const auto sequences = static_cast<int64_t>(losses.size());
  for (int64_t i = 0; i < sequences; ++i) {
    const double loss = losses[static_cast<size_t>(i)];
    if (std::isfinite(loss)) continue;
    const int data = plan::DataRankOf({layout.micro_batch(), layout.micro_batches()}, i);
    // The last stage computes losses, on all its tensor ranks alike: the first of them is named.
    return absl::StrCat("the loss of sequence ", i, " is ", loss, " (rank ",
                        plan::RankOfCoordinates(layout, {0, data, layout.pipeline() - 1}), ")");
  }
  // Backward passes run from the last tensor to the first: the highest one went bad first.
  for (auto i = static_cast<int>(squares.size()) - 1; i >= 0; --i) {
    const double sum = squares[static_cast<size_t>(i)];
    if (std::isfinite(sum)) continue;
    const int tensor = i / layout.tensor();
    const int rank =
        plan::RankOfCoordinates(layout, {i % layout.tensor(), 0, StageOf(tensor, plan)});
    return absl::StrCat(
        "the gradient of ", plan::ModelTensors(plan.model())[static_cast<size_t>(tensor)].name,
        " is not finite (rank ", rank,
        layout.data() > 1 ? absl::StrCat(", summed over ", layout.data(), " data ranks") : "", ")");
  }
  return "the mean loss is not finite";
}

}  // namespace tercio::engine
