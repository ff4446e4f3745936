#include "coordinator/core/phases.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace tercio::coordinator {
namespace {

// A record may have been written by a coordinator that knows more phases.
std::string TextOf(v1::JobPhase phase) {
  return v1::JobPhase_IsValid(phase) ? v1::JobPhase_Name(phase)
                                     : absl::StrCat("phase ", static_cast<int>(phase));
}

}  // namespace

absl::Status SetPhase(v1::JobRecord& record, v1::JobPhase to) {
  const v1::JobPhase from = record.phase();
  if (MayChange(from, to)) {
    record.set_phase(to);
    return absl::OkStatus();
  }
  if (!IsTerminal(from)) record.set_phase(v1::JOB_PHASE_FAILED);
  return absl::InternalError(absl::StrCat("job ", record.id(), " cannot change from ", TextOf(from),
                                          " to ", TextOf(to), ": this is a fault of Tercio"));
}

}  // namespace tercio::coordinator
