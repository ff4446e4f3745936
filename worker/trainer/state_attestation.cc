#include "worker/trainer/state_attestation.h"

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"
#include "plan/data_position.h"
#include "plan/numerics.h"
#include "plan/state_digest.h"

namespace tercio::trainer {

bool StateAttestation::IsRecorded(int64_t step) const {
  const v1::JobSpec& spec = assignment_.spec();
  const int64_t every = spec.fault_tolerance().check_replicas_every();
  return every > 0 && (step % every == 0 || step == spec.training().steps());
}

absl::StatusOr<uint64_t> StateAttestation::After(int64_t step, engine::TrainingEngine& engine) {
  if (step_ == step) return digest_;
  TERCIO_ASSIGN_OR_RETURN(digest_, engine.StateDigest());
  step_ = step;
  return digest_;
}

absl::Status StateAttestation::CheckLoaded(engine::TrainingEngine& engine) {
  if (!assignment_.has_resume_state_digest()) return absl::OkStatus();
  const int64_t step = assignment_.resume_step();
  TERCIO_ASSIGN_OR_RETURN(const uint64_t loaded, After(step, engine));
  const uint64_t saved = assignment_.resume_state_digest();
  if (!engine.HoldsWhatItLoaded()) {
    LogInfo(absl::StrCat("the state of step ", step,
                         " is not compared with what was saved: frozen "
                         "weights were rounded to training.precision, which was another one"));
    return absl::OkStatus();
  }
  if (loaded == saved) {
    LogInfo(absl::StrCat("the state of step ", step, " is what was saved: digest ",
                         plan::StateDigestText(loaded)));
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      "the checkpoint of step ", step, " was loaded, but the state of all ranks has the digest ",
      plan::StateDigestText(loaded), " where its trainers saved ", plan::StateDigestText(saved),
      ": memory or network of a rank may be faulty; read the files with tercio checkpoint verify"));
}

std::string TrainingStateJson(const v1::TrainerAssignment& assignment, int64_t step, int64_t tokens,
                              uint64_t digest) {
  const v1::TrainingSpec& training = assignment.spec().training();
  const nlohmann::json state = {{"step", step},
                                {"tokens", tokens},
                                {"seed", training.seed()},
                                {"lanes", assignment.plan().lanes()},
                                {"numerics", plan::kNumerics},
                                {"next_sample", plan::FirstSampleOfStep(training, step + 1)},
                                {"state_digest", plan::StateDigestText(digest)}};
  return state.dump();
}

}  // namespace tercio::trainer
