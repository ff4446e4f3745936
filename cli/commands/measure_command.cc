// tercio doctor --measure: measures this machine for the planner, keeps the figures for jobs on
// this machine, and gives them to the coordinator where one is given.
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "cli/client.h"
#include "cli/commands/commands.h"
#include "cli/commands/findings.h"
#include "cli/commands/kept_figures.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/text.h"
#include "common/exit_codes.h"
#include "common/gpus/gpus.h"
#include "common/machine.h"
#include "common/run_program.h"
#include "common/status_macros.h"
#include "plan/planner/cost/measured.h"
#include "plan/text_form.h"
#include "proto/tercio/v1/figures.pb.h"

namespace tercio::cli {
namespace {

// Some ten seconds, and many more where others have the cores.
constexpr absl::Duration kMeasurePatience = absl::Minutes(5);

// As agents name themselves.
std::string NameOfHost() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

// The trainer for GPUs where there are any and nobody asks for CPUs.
absl::StatusOr<std::string> TrainerToMeasure(const std::string& device) {
  const std::string on_cpus = LocateProgram("tercio-trainer");
  if (device == "cpu") return on_cpus;
  const absl::StatusOr<std::string> on_gpus = PrepareCudaTrainer();
  if (device == "auto" && absl::IsNotFound(on_gpus.status())) return on_cpus;
  return on_gpus;
}

absl::StatusOr<v1::MachineFigures> MeasureHere(const DoctorOptions& options) {
  TERCIO_ASSIGN_OR_RETURN(const std::string trainer, TrainerToMeasure(options.device));
  std::vector<std::string> command = {trainer, "--measure"};
  if (options.threads > 0) {
    command.push_back("--threads");
    command.push_back(absl::StrCat(options.threads));
  }
  TERCIO_ASSIGN_OR_RETURN(const std::string text,
                          RunProgram(command, kMeasurePatience, ErrorOutput::kDiscarded));
  const nlohmann::json report = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!report.is_object()) {
    return absl::InternalError(absl::StrCat(trainer, " --measure did not print JSON"));
  }
  if (report.contains("error")) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot measure: ", report["error"].get<std::string>()));
  }
  v1::MachineFigures figures;
  TERCIO_RETURN_IF_ERROR(plan::FromJson(text, &figures));
  TERCIO_RETURN_IF_ERROR(plan::cost::CheckFigures(figures));
  return figures;
}

// Keeps figures of the whole machine for the verbs that train here. Returns where.
// FAILED_PRECONDITION: they are of a part of it only.
absl::StatusOr<std::string> Keep(const v1::MachineFigures& figures) {
  const bool on_cpus = figures.device() == "cpu";
  if (on_cpus && figures.devices() != MachineCores()) {
    return absl::FailedPreconditionError(absl::StrCat("they are of ", figures.devices(), " of ",
                                                      MachineCores(),
                                                      " cores; leave out --threads for that"));
  }
  MachineIdentity machine = IdentityOfCpus();
  if (!on_cpus) {
    TERCIO_ASSIGN_OR_RETURN(const Gpus gpus, FindGpus());
    machine = IdentityOfGpus(gpus);
  }
  const std::string path =
      FiguresPath(DefaultStateDir(), on_cpus ? FiguresOf::kCpus : FiguresOf::kGpus);
  TERCIO_RETURN_IF_ERROR(KeepFigures(path, machine, absl::Now(), figures));
  return path;
}

absl::Status Record(const DoctorOptions& options, const std::string& node,
                    const v1::MachineFigures& figures) {
  TERCIO_ASSIGN_OR_RETURN(const auto client, Client::Connect(options));
  grpc::ClientContext context;
  v1::RecordFiguresRequest request;
  request.set_node(node);
  *request.mutable_figures() = figures;
  v1::RecordFiguresResponse response;
  return CallStatus(client->stub().RecordFigures(&context, request, &response), *client);
}

std::string Giga(double value, const char* unit) {
  return absl::StrFormat("%.2f G%s", value * 1e-9, unit);
}
std::string Micro(double seconds) { return absl::StrFormat("%.2f us", seconds * 1e6); }

void PrintFigures(const v1::MachineFigures& figures) {
  std::vector<std::vector<std::string>> rows = {{"FIGURE", "MEDIAN"}};
  const auto add = [&](const std::string& name, double value, const std::string& text) {
    // GPUs lack some.
    if (value > 0) rows.push_back({name, text});
  };
  for (const v1::ProductRate& rate : figures.products()) {
    add(absl::StrCat("product ", rate.format(), " ", rate.m(), " x ", rate.n(), " x ", rate.k()),
        rate.flops_per_second(), Giga(rate.flops_per_second(), "FLOP/s"));
  }
  for (const v1::AttentionRate& rate : figures.attention()) {
    const std::string size =
        absl::StrCat(rate.tokens(), " tokens, ", rate.heads(), " heads of ", rate.head_dim());
    add("attention, " + size, rate.forward_flops_per_second(),
        Giga(rate.forward_flops_per_second(), "FLOP/s"));
    add("its gradient, " + size, rate.backward_flops_per_second(),
        Giga(rate.backward_flops_per_second(), "FLOP/s"));
  }
  const auto rate = [&](const std::string& name, double value) {
    add(name, value, Giga(value, "B/s"));
  };
  rate("memory", figures.memory_bytes_per_second());
  rate("norms and residuals", figures.norm_bytes_per_second());
  rate("activations", figures.activation_bytes_per_second());
  rate("loss", figures.loss_bytes_per_second());
  rate("update", figures.update_bytes_per_second());
  rate("link", figures.link_bytes_per_second());
  add("message", figures.link_seconds(), Micro(figures.link_seconds()));
  add("operation", figures.operation_seconds(), Micro(figures.operation_seconds()));
  add("step of next to nothing", figures.step_seconds(), Micro(figures.step_seconds()));
  add("step of the reference model", figures.reference_step_seconds(),
      Micro(figures.reference_step_seconds()));
  add(absl::StrCat("a rank with ", figures.threads(), " threads, of ranks with one"),
      figures.threads() > 1 ? figures.thread_share() : 0,
      absl::StrFormat("%.0f %%", 100 * figures.thread_share()));
  std::cout << "Measured on " << figures.devices() << " x " << figures.device()
            << ": medians of several repetitions; what else runs on this machine lowers them.\n"
            << Table(rows);
}

}  // namespace

int DoctorMeasure(const DoctorOptions& options) {
  const absl::StatusOr<v1::MachineFigures> figures = MeasureHere(options);
  if (!figures.ok()) return Fail(figures.status());
  const bool record = !options.coordinator.empty() || !options.state_dir.empty();
  const std::string node = options.node.empty() ? NameOfHost() : options.node;
  if (options.format() == Output::kTable) PrintFigures(*figures);
  const absl::StatusOr<std::string> kept = Keep(*figures);
  if (!kept.ok()) {
    // They were measured all the same, and can be read.
    PrintNotices({absl::StrCat("the figures are not kept for plan, run and tune here: ",
                               std::string(kept.status().message()))});
  } else if (options.format() == Output::kTable) {
    std::cout << "Kept in " << *kept << " for plan, run and tune on this machine.\n";
  }
  if (record) {
    if (const absl::Status status = Record(options, node, *figures); !status.ok()) {
      return Fail(status);
    }
  }
  if (options.format() != Output::kTable) {
    PrintJson({{"figures", FiguresToJson(*figures)},
               {"kept_in", kept.ok() ? Json(*kept) : Json(nullptr)},
               {"recorded_for", record ? Json(node) : Json(nullptr)}},
              options.format());
  } else if (record) {
    std::cout << "Recorded for node " << node << ".\n";
  } else {
    std::cout << "Not recorded with a coordinator: give --coordinator HOST:PORT and --node NAME "
                 "for that.\n";
  }
  return kExitOk;
}

}  // namespace tercio::cli
