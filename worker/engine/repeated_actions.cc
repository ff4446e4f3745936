#include "worker/engine/repeated_actions.h"

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "model/architecture.h"
#include "plan/precision.h"
#include "plan/state_shards.h"

namespace tercio::engine {
namespace {

constexpr int kMostMicroBatches = 32;

// Dropout is keyed by the step, the loss scale changes, and an encoder's head counts on the host.
bool DependsOnStep(const v1::JobSpec& job) {
  return job.model().dropout() > 0 || plan::ScalesLoss(job.training()) ||
         !model::ArchitectureOf(job.model()).causal;
}

}  // namespace

int RepeatedActions(const v1::JobSpec& job, const v1::RankPlan& plan) {
  const v1::Layout& layout = plan.layout();
  if (DependsOnStep(job) || layout.tensor() > 1 || layout.pipeline() > 1) return 0;
  // Layers are gathered in every pass.
  if (plan::GathersWeights(job, layout)) return 0;
  int count = 0;
  for (const v1::Action& action : plan.stage().actions()) {
    const bool computes =
        action.kind() == v1::ACTION_KIND_FORWARD || action.kind() == v1::ACTION_KIND_BACKWARD;
    // Its gradients are summed over data ranks while it runs.
    const bool in_last_only = !plan::DividesGradients(layout);
    const bool reduces = layout.data() > 1 && action.kind() == v1::ACTION_KIND_BACKWARD &&
                         (!in_last_only || action.micro_batch() + 1 == layout.micro_batches());
    if (!computes || reduces || action.micro_batch() >= kMostMicroBatches) break;
    ++count;
  }
  return count;
}

bool RecordsNow(int64_t steps, bool is_ready, int* actions) {
  if (*actions == 0 || steps <= kStepsBeforeGraph) return false;
  if (is_ready) return true;
  // The results that a verdict waits for may be zeros or no numbers for many steps, not for ever.
  if (steps < kMostStepsBeforeGraph) return false;
  LogWarning(absl::StrCat("steps are enqueued without a CUDA graph: after ", steps,
                          " steps the results of the attention's library could not be compared "
                          "with our own kernel's, since they were zero or no numbers"));
  *actions = 0;
  return false;
}

}  // namespace tercio::engine
