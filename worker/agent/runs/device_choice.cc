#include "worker/agent/runs/device_choice.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/daemon/daemon.h"
#include "common/file.h"
#include "common/gpus/driver_library.h"
#include "common/gpus/gpu_faults.h"
#include "common/log.h"
#include "common/patient_call.h"
#include "common/run_program.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace tercio::agent {
namespace {

// The driver may need long for its first answer if nothing keeps the GPUs awake (persistence mode).
constexpr absl::Duration kDriverPatience = absl::Seconds(60);
constexpr absl::Duration kTrainerPatience = absl::Seconds(60);

// Looks beside the agent, or (in Bazel's tree) in the trainer's own folder.
std::string FindTrainer(const std::string& name) {
  const std::string beside = absl::StrCat(ProgramDirectory(), "/", name);
  return PathExists(beside) ? beside : absl::StrCat(ProgramDirectory(), "/../trainer/", name);
}

// The GPUs that this process may use.
absl::StatusOr<Gpus> FindUsableGpus() {
  const auto found = CallWithin<absl::StatusOr<Gpus>>(kDriverPatience, FindGpus);
  if (!found.has_value()) {
    return absl::UnavailableError(absl::StrCat(
        "the NVIDIA driver has not answered within ", absl::FormatDuration(kDriverPatience),
        ": check nvidia-smi and the kernel log; restart the node if this persists"));
  }
  TERCIO_RETURN_IF_ERROR(found->status());
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  // The variable is obeyed as CUDA obeys it: the other GPUs may belong to someone else.
  return visible == nullptr ? **found : VisibleGpus(**found, visible);
}

// The libraries that the trainer is linked with.
absl::StatusOr<nlohmann::json> LibrariesOf(const std::string& trainer) {
  TERCIO_ASSIGN_OR_RETURN(const std::string text,
                          RunProgram({trainer, "--version"}, kTrainerPatience));
  nlohmann::json facts = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (facts.is_object()) return facts;
  return absl::InternalError(absl::StrCat(trainer, " --version does not print JSON"));
}

// Makes trainers load a newer driver library, if they need one and it runs them.
absl::Status ChooseDriver(const AgentOptions& options, int runtime) {
  const Gpus& gpus = options.gpus;
  TERCIO_ASSIGN_OR_RETURN(
      const std::string folder,
      ChooseDriverLibrary(QuestionOf(gpus, runtime, ProgramDirectory() + "/../lib")));
  if (folder.empty()) return absl::OkStatus();
  PutLibrariesFirst(folder);
  TERCIO_ASSIGN_OR_RETURN(const nlohmann::json facts, LibrariesOf(options.trainer));
  const int loaded = facts.value("cuda_driver", 0);
  TERCIO_RETURN_IF_ERROR(CheckDriver(absl::StrCat("library in ", folder), loaded, runtime));
  LogInfo(absl::StrCat("the NVIDIA driver ", gpus.driver, " is older than CUDA ",
                       CudaVersionText(runtime),
                       ": trainers load the libraries for forward compatibility in ", folder));
  return absl::OkStatus();
}

// Asks the trainer which libraries it is linked with, and checks whether this driver runs them.
absl::Status AskTrainer(AgentOptions* options) {
  TERCIO_ASSIGN_OR_RETURN(const nlohmann::json facts, LibrariesOf(options->trainer));
  options->nccl = facts.value("nccl", "");
  const absl::Status driver = ChooseDriver(*options, facts.value("cuda_runtime", 0));
  options->gpus_unusable = std::string(driver.message());
  return absl::OkStatus();
}

}  // namespace

absl::Status ChooseDevice(const std::string& wanted, AgentOptions* options) {
  AgentOptions& agent = *options;
  const std::string cuda_trainer =
      agent.trainer.empty() ? FindTrainer("tercio-trainer-cuda") : agent.trainer;
  // A trainer that is given by name is taken for the CPU's, unless --device says otherwise.
  if (wanted == "cuda" || (wanted == "auto" && agent.trainer.empty())) {
    absl::StatusOr<Gpus> gpus = FindUsableGpus();
    if (!gpus.ok() && wanted == "cuda") return gpus.status();
    // A node with a broken driver can still compute on its CPU, but people should know why it does.
    if (!gpus.ok()) LogWarning(std::string(gpus.status().message()));
    // A GPU is of no use without a trainer for it.
    if (gpus.ok() && !gpus->list.empty() && PathExists(cuda_trainer)) {
      agent.device_kind = v1::DEVICE_KIND_CUDA;
      agent.gpus = *std::move(gpus);
    } else if (wanted == "cuda") {
      return absl::FailedPreconditionError(absl::StrCat(
          "--device cuda: ",
          gpus->list.empty() ? "no NVIDIA driver with a GPU was found on this machine"
                             : absl::StrCat("the trainer program ", cuda_trainer, " is missing")));
    }
  }
  const bool cuda = agent.device_kind == v1::DEVICE_KIND_CUDA;
  if (agent.trainer.empty()) agent.trainer = cuda ? cuda_trainer : FindTrainer("tercio-trainer");
  if (agent.slots == 0) {
    agent.slots = cuda ? static_cast<int>(agent.gpus.list.size()) : std::max(2, agent.cores);
  }
  return cuda ? AskTrainer(options) : absl::OkStatus();
}

}  // namespace tercio::agent
