// tercio doctor: checks this machine, and the coordinator if one is given.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/client.h"
#include "cli/commands/commands.h"
#include "cli/commands/findings.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/text.h"
#include "common/exit_codes.h"
#include "common/gpus/driver_library.h"
#include "common/gpus/gpus.h"
#include "common/patient_call.h"
#include "common/run_program.h"
#include "common/status_macros.h"

namespace tercio::cli {
namespace {

// A driver that hangs is a finding; it must not hang the doctor.
constexpr absl::Duration kDriverPatience = absl::Seconds(60);
// Rates of eight GPUs and a small training take minutes.
constexpr absl::Duration kTrainerPatience = absl::Minutes(5);
constexpr std::chrono::seconds kCoordinatorPatience{5};

struct Looked {
  absl::StatusOr<Gpus> gpus = Gpus();
  std::vector<GpuSample> samples;
};

Looked AskDriver() {
  Looked looked;
  const auto session = GpuSession::Open();
  // Without a driver there are simply no GPUs.
  if (absl::IsNotFound(session.status())) return looked;
  if (!session.ok()) {
    looked.gpus = session.status();
    return looked;
  }
  const Gpus& all = (*session)->gpus();
  // All GPUs are sampled before some are left out: positions are those of the driver.
  const std::vector<GpuSample> samples = (*session)->Sample();
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  // The variable says which GPUs this user may take.
  looked.gpus = visible == nullptr ? all : VisibleGpus(all, visible);
  for (const Gpu& gpu : looked.gpus->list) {
    looked.samples.push_back(samples.at(static_cast<size_t>(gpu.index)));
  }
  return looked;
}

// CUDA device numbers become positions in this list.
void ShowToCuda(const Gpus& gpus) {
  // Uuids name GPUs however the driver orders them.
  std::vector<std::string> uuids;
  for (const Gpu& gpu : gpus.list) {
    if (gpu.error.empty()) uuids.push_back(gpu.uuid);
  }
  setenv("CUDA_VISIBLE_DEVICES", absl::StrJoin(uuids, ",").c_str(), 1);
}

// The report that a trainer prints for --doctor. `device`: the kind of device it must be built for.
absl::StatusOr<nlohmann::json> AskTrainer(const std::string& trainer, const std::string& device) {
  TERCIO_ASSIGN_OR_RETURN(
      const std::string text,
      RunProgram({trainer, "--doctor"}, kTrainerPatience, ErrorOutput::kDiscarded));
  nlohmann::json report = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  // Another program of that name may be on the path.
  if (!report.is_object()) {
    return absl::InternalError(absl::StrCat(trainer, " --doctor did not print JSON"));
  }
  if (report.value("device", "") != device) {
    return absl::FailedPreconditionError(
        absl::StrCat(trainer, " is not a trainer for ", device == "cuda" ? "GPUs" : "CPUs"));
  }
  return report;
}

std::string CudaTrainer() {
  // Tests and developers name their own trainer.
  const char* named = std::getenv("TERCIO_TRAINER");
  return named != nullptr ? named : LocateProgram("tercio-trainer-cuda");
}

// Chooses the driver library as an agent would, and puts its folder first.
absl::StatusOr<std::string> ChooseDriver(const Gpus& gpus, const std::string& trainer) {
  TERCIO_ASSIGN_OR_RETURN(
      const std::string text,
      RunProgram({trainer, "--version"}, kTrainerPatience, ErrorOutput::kDiscarded));
  const nlohmann::json facts = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const int runtime = facts.is_object() ? facts.value("cuda_runtime", 0) : 0;
  const size_t slash = trainer.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : trainer.substr(0, slash);
  TERCIO_ASSIGN_OR_RETURN(const std::string chosen,
                          ChooseDriverLibrary(QuestionOf(gpus, runtime, folder + "/../lib")));
  if (!chosen.empty()) PutLibrariesFirst(chosen);
  return chosen;
}

// The CPU trainer trains a small model for this check.
Finding CheckMemoryPlan() {
  absl::StatusOr<nlohmann::json> report = AskTrainer(LocateProgram("tercio-trainer"), "cpu");
  if (report.ok()) report = report->value("memory_plan", nlohmann::json::object());
  return MemoryPlanFinding("memory plan", report);
}

Finding CheckCoordinator(const GlobalOptions& options) {
  const auto client = Client::Connect(options);
  absl::Status status = client.status();
  if (client.ok()) {
    grpc::ClientContext context;
    // A coordinator that is reached but does not answer is a finding as well.
    context.set_deadline(std::chrono::system_clock::now() + kCoordinatorPatience);
    v1::NodesResponse nodes;
    status = CallStatus((*client)->stub().Nodes(&context, {}, &nodes), **client);
    if (status.ok()) {
      return {"coordinator", Health::kOk,
              absl::StrCat((*client)->address(), " answers, ", nodes.nodes_size(), " nodes"), ""};
    }
  }
  return {"coordinator", Health::kError, std::string(status.message()),
          "start it, or give its address and certificates"};
}

const char* HealthWord(Health health) {
  switch (health) {
    case Health::kOk:
      return "ok";
    case Health::kWarning:
      return "warning";
    case Health::kError:
      return "error";
    case Health::kUnknown:
      break;
  }
  return "unknown";
}

void PrintFindings(const std::vector<Finding>& findings, bool healthy, Output output) {
  if (output != Output::kTable) {
    Json list = Json::array();
    for (const Finding& finding : findings) {
      list.push_back({{"check", finding.check},
                      {"status", HealthWord(finding.health)},
                      {"detail", finding.detail},
                      {"mend", finding.mend.empty() ? Json(nullptr) : Json(finding.mend)}});
    }
    PrintJson({{"healthy", healthy}, {"findings", list}}, output);
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"STATUS", "CHECK", "FOUND"}};
  for (const Finding& finding : findings) {
    rows.push_back({HealthWord(finding.health), finding.check, finding.detail});
    if (!finding.mend.empty()) rows.push_back({"", "", "-> " + finding.mend});
  }
  std::cout << Table(rows);
}

}  // namespace

GpuEvidence LookAtGpus() {
  GpuEvidence evidence;
  // The driver is asked in a thread of its own, which stays behind when it hangs.
  const auto looked = CallWithin<Looked>(kDriverPatience, AskDriver);
  if (!looked.has_value()) {
    evidence.gpus = absl::UnavailableError(absl::StrCat("the NVIDIA driver did not answer within ",
                                                        absl::FormatDuration(kDriverPatience)));
    return evidence;
  }
  evidence.gpus = looked->gpus;
  evidence.samples = looked->samples;
  if (evidence.gpus.ok() && !evidence.gpus->list.empty()) {
    // The trainer must count the GPUs as this program does.
    ShowToCuda(*evidence.gpus);
    const std::string trainer = CudaTrainer();
    evidence.driver_library = ChooseDriver(*evidence.gpus, trainer);
    evidence.report = AskTrainer(trainer, "cuda");
  }
  return evidence;
}

absl::StatusOr<std::string> PrepareCudaTrainer() {
  const auto looked = CallWithin<Looked>(kDriverPatience, AskDriver);
  if (!looked.has_value()) {
    return absl::UnavailableError(absl::StrCat("the NVIDIA driver did not answer within ",
                                               absl::FormatDuration(kDriverPatience)));
  }
  TERCIO_RETURN_IF_ERROR(looked->gpus.status());
  if (looked->gpus->list.empty()) {
    return absl::NotFoundError(
        "this machine has no GPU, or its driver is not installed; measure its CPUs with --device "
        "cpu");
  }
  ShowToCuda(*looked->gpus);
  const std::string trainer = CudaTrainer();
  TERCIO_RETURN_IF_ERROR(ChooseDriver(*looked->gpus, trainer).status());
  return trainer;
}

int Doctor(const DoctorOptions& options) {
  if (options.measure) return DoctorMeasure(options);
  std::vector<Finding> findings =
      MachineFindings(options.directory.empty() ? DefaultStateDir() : options.directory);
  findings.push_back(CheckMemoryPlan());
  for (Finding& finding : GpuFindings(LookAtGpus())) findings.push_back(std::move(finding));
  // Without an address nobody expects a coordinator.
  if (!options.coordinator.empty()) findings.push_back(CheckCoordinator(options));
  bool healthy = true;
  // Warnings do not keep a machine from training.
  for (const Finding& finding : findings) healthy &= finding.health != Health::kError;
  PrintFindings(findings, healthy, options.format());
  return healthy ? kExitOk : kExitConflict;
}

}  // namespace tercio::cli
