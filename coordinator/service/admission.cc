#include "coordinator/service/admission.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "config/job_file.h"
#include "coordinator/core/core.h"
#include "coordinator/planner/planner.h"
#include "plan/plan_builder.h"
#include "plan/snapshots.h"

namespace tercio::coordinator {
namespace {

// Of one rank on the roomiest node, with as many ranks beside it as the node can take.
int64_t MostMemory(const v1::JobSpec& spec, const std::vector<Coordinator::NodeView>& nodes) {
  int64_t memory = 0;
  for (const Coordinator::NodeView& node : nodes) {
    if (!HasDevicesFor(node.state, spec)) continue;
    const v1::AgentHello& hello = node.state.hello;
    const int ranks = std::max(1, std::min(plan::RanksOfJob(spec), hello.devices()));
    memory = std::max(memory, MemoryOfRank(hello, ranks));
  }
  return memory == 0 ? kUnknownMemory : memory;
}

absl::Status CheckDisk(const v1::JobSpec& spec, const std::string& state_dir) {
  constexpr double kMiB = 1 << 20;
  TERCIO_ASSIGN_OR_RETURN(const int64_t free, FreeBytes(state_dir));
  const int64_t one = CheckpointBytes(spec);
  const int64_t count = int64_t{spec.checkpoint().keep_last()} + 1;
  if (one <= free / count) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "disk full: %d checkpoints of %.1f MiB each (checkpoint.keep_last and the one being written) "
      "do not fit into the %.1f MiB that are free in the state directory %s; make room, or lower "
      "checkpoint.keep_last",
      count, static_cast<double>(one) / kMiB, static_cast<double>(free) / kMiB, state_dir));
}

}  // namespace

absl::Status Admit(v1::JobSpec* wanted, const std::vector<Coordinator::NodeView>& nodes,
                   const std::string& state_dir) {
  config::ResolveDevice(wanted, std::any_of(nodes.begin(), nodes.end(), [](const auto& node) {
                          return node.state.hello.device_kind() == "cuda";
                        }));
  const v1::JobSpec& spec = *wanted;
  // Whoever lists jobs has it on the terminal.
  if (const std::string fault = config::FaultOfName(spec.name()); !fault.empty()) {
    return absl::InvalidArgumentError("name: " + fault);
  }
  const int copies = spec.checkpoint().peer_copies();
  if (copies < 0 || copies > plan::kMostPeerCopies) {
    return absl::InvalidArgumentError(
        absl::StrFormat("checkpoint.peer_copies: %d, but it must be between 0 and %d", copies,
                        plan::kMostPeerCopies));
  }
  TERCIO_RETURN_IF_ERROR(AdmitJob(spec, MostMemory(spec, nodes)));
  return CheckDisk(spec, state_dir);
}

}  // namespace tercio::coordinator
