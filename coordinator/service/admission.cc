#include "coordinator/service/admission.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "config/job_file.h"
#include "coordinator/core/core.h"
#include "plan/old_words.h"
#include "plan/plan_builder.h"
#include "plan/planner/planner.h"
#include "plan/snapshots.h"

namespace tercio::coordinator {
namespace {

// Whether the job fits on the roomiest node, with as many ranks beside one as the node can take.
absl::Status CheckMemory(const v1::JobSpec& spec, const std::vector<Coordinator::NodeView>& nodes) {
  int64_t memory = 0;
  bool shares_gpus = false;
  for (const Coordinator::NodeView& node : nodes) {
    if (!HasDevicesFor(node.state, spec)) continue;
    const v1::AgentHello& hello = node.state.hello;
    // The node may be shared with other ranks of the same job, which share its memory as well.
    const int ranks = std::max(1, std::min(plan::RanksOfJob(spec), hello.devices()));
    memory = std::max(memory, MemoryOfRank(hello, ranks));
    shares_gpus = shares_gpus || SharesGpus(hello);
  }
  // Without a node nothing is known; the job is checked again where it is placed.
  return plan::AdmitJob(spec, memory == 0 ? kUnknownMemory : memory, shares_gpus);
}

int64_t CheckpointsAtOnce(const v1::JobSpec& spec) {
  // The newest is written before the oldest is removed; the best one may be older than all others.
  const bool best = spec.training().evaluate().keep_best() != v1::QUALITY_METRIC_UNSPECIFIED;
  return int64_t{spec.checkpoint().keep_last()} + 1 + (best ? 1 : 0);
}

// The bytes that other unfinished jobs may still write to the same place.
int64_t PromisedBytes(const v1::JobSpec& spec, const std::vector<Coordinator::JobView>& jobs) {
  int64_t promised = 0;
  for (const Coordinator::JobView& job : jobs) {
    const v1::JobSpec& other = job.record.spec();
    // Jobs with another directory write to another disk, as far as the paths tell.
    if (IsTerminal(job.record.phase()) || other.checkpoint().path() != spec.checkpoint().path()) {
      continue;
    }
    int64_t written = 0;
    // What is there already is no longer free, and is not needed again.
    for (const v1::CheckpointRecord& known : job.record.checkpoints()) written += known.bytes();
    promised +=
        std::max<int64_t>(0, CheckpointsAtOnce(other) * plan::CheckpointBytes(other) - written);
  }
  return promised;
}

absl::Status CheckDisk(const v1::JobSpec& spec, const std::string& directory,
                       const std::vector<Coordinator::JobView>& jobs) {
  constexpr double kMiB = 1 << 20;
  TERCIO_ASSIGN_OR_RETURN(const int64_t free, FreeBytes(directory));
  const int64_t one = plan::CheckpointBytes(spec);
  const int64_t count = CheckpointsAtOnce(spec);
  const int64_t promised = PromisedBytes(spec, jobs);
  // The division cannot overflow, unlike the product of many large checkpoints.
  if (one <= std::max<int64_t>(0, free - promised) / count) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "disk full: %d checkpoints of %.1f MiB each (checkpoint.keep_last%s and the one being "
      "written) "
      "do not fit in the %.1f MiB free in %s, of which other jobs may still need %.1f MiB; free "
      "some disk space, or lower checkpoint.keep_last",
      count, static_cast<double>(one) / kMiB,
      count > int64_t{spec.checkpoint().keep_last()} + 1 ? ", the best one" : "",
      static_cast<double>(free) / kMiB, directory, static_cast<double>(promised) / kMiB));
}

// A job's own directory is named by a user: it must lie below a directory the operator allows.
absl::Status CheckPath(const std::string& path, const CheckpointPlaces& places) {
  if (!path.starts_with('/')) {
    return absl::InvalidArgumentError(
        absl::StrFormat("checkpoint.path: %s is not an absolute path", path));
  }
  std::error_code error;
  // Links are resolved as far as the path exists, so that none leads out of the roots.
  const std::string real = std::filesystem::weakly_canonical(path, error).string() + "/";
  const bool allowed =
      places.any || std::any_of(places.roots.begin(), places.roots.end(), [&](auto root) {
        // The slash keeps /data-old from being taken for a part of /data.
        if (!root.ends_with('/')) root += '/';
        return real.starts_with(root);
      });
  if (error || !allowed) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "checkpoint.path: %s is outside the directories that jobs may use; the coordinator's "
        "--checkpoint-root sets them",
        path));
  }
  // The directory is made now: a mistake is told to the person who submits, not hours later.
  if (absl::Status made = MakeDirectories(path); !made.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint.path, on the coordinator: ", std::string(made.message())));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Admit(v1::JobSpec* wanted, const std::vector<Coordinator::NodeView>& nodes,
                   const std::vector<Coordinator::JobView>& jobs, const CheckpointPlaces& places) {
  // A command line of the version before sends words.
  if (const absl::Status words = plan::UpgradeWords(wanted); !words.ok()) {
    return absl::InvalidArgumentError(std::string(words.message()));
  }
  // The device is settled first, since everything that follows depends on it.
  const bool gpus = std::any_of(nodes.begin(), nodes.end(), [](const auto& node) {
    return node.state.hello.device_kind() == v1::DEVICE_KIND_CUDA;
  });
  config::ResolveDevice(wanted, gpus ? config::AutoDevice::kCuda : config::AutoDevice::kCpu);
  const v1::JobSpec& spec = *wanted;
  // The name is printed on the terminals of all who list jobs.
  if (const std::string fault = config::FaultOfName(spec.name()); !fault.empty()) {
    return absl::InvalidArgumentError("name: " + fault);
  }
  const int copies = spec.checkpoint().peer_copies();
  if (copies < 0 || copies > plan::kMostPeerCopies) {
    return absl::InvalidArgumentError(
        absl::StrFormat("checkpoint.peer_copies: %d, but it must be between 0 and %d", copies,
                        plan::kMostPeerCopies));
  }
  TERCIO_RETURN_IF_ERROR(CheckMemory(spec, nodes));
  const std::string& path = spec.checkpoint().path();
  if (!path.empty()) TERCIO_RETURN_IF_ERROR(CheckPath(path, places));
  return CheckDisk(spec, path.empty() ? places.state_dir : path, jobs);
}

}  // namespace tercio::coordinator
