#include "worker/engine/repeated_steps.h"

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "model/architecture.h"
#include "plan/precision.h"
#include "plan/stage_units.h"
#include "plan/state_shards.h"

namespace tercio::engine {
namespace {

constexpr int kMostMicroBatches = 32;

// Dropout is keyed by the step, the loss scale changes, and a head whose targets are chosen counts
// them on the host.
bool DependsOnStep(const v1::JobSpec& job) {
  return job.model().dropout() > 0 || plan::ScalesLoss(job.training()) ||
         plan::ChoosesTargets(job) || !model::ArchitectureOf(job.model()).causal;
}

}  // namespace

int RepeatedSteps(const v1::JobSpec& job, const v1::Layout& layout, const plan::Program& program) {
  if (DependsOnStep(job) || layout.tensor() > 1 || layout.pipeline() > 1) return 0;
  using Kind = plan::ProgramStep::Kind;
  // Where gradients are divided, every backward pass waits for those that are being summed.
  const bool waits_for_sums = layout.data() > 1 && plan::DividesGradients(layout);
  int whole = 0;  // steps of whole passes
  for (size_t i = 0; i < program.size(); ++i) {
    const plan::ProgramStep& step = program[i];
    switch (step.kind) {
      case Kind::kBeginForward:
      case Kind::kBeginBackward:
        if (step.micro_batch >= kMostMicroBatches) return whole;
        if (step.kind == Kind::kBeginBackward && waits_for_sums) return whole;
        break;
      case Kind::kForward:
      case Kind::kBackward:
        break;
      case Kind::kEndForward:
      case Kind::kEndBackward:
        whole = static_cast<int>(i) + 1;
        break;
      case Kind::kReceiveActivation:
      case Kind::kSendActivation:
      case Kind::kReceiveGradient:
      case Kind::kSendGradient:
      case Kind::kGather:
      case Kind::kReduce:
      case Kind::kFinish:
      case Kind::kJudge:
      case Kind::kFetch:
      case Kind::kUpdate:
      case Kind::kPublish:
        return whole;
    }
  }
  return whole;
}

bool RecordsNow(int64_t steps, bool is_ready, int* repeated) {
  if (*repeated == 0 || steps <= kStepsBeforeGraph) return false;
  if (is_ready) return true;
  // The results that a verdict waits for may be zeros or no numbers for many steps, not for ever.
  if (steps < kMostStepsBeforeGraph) return false;
  LogWarning(absl::StrCat("steps are enqueued without a CUDA graph: after ", steps,
                          " steps the results of the attention's library could not be compared "
                          "with our own kernel's, since they were zero or no numbers"));
  *repeated = 0;
  return false;
}

}  // namespace tercio::engine
