// run and resume: a private coordinator and agent on this machine for as long as the job runs.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/weight_source.h"
#include "cli/client.h"
#include "cli/commands/commands.h"
#include "cli/commands/local_cluster.h"
#include "cli/follow.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/private_pair.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/trace.h"
#include "common/daemon/daemon.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/gpus/gpus.h"
#include "common/status_macros.h"
#include "config/job_file.h"
#include "config/notices.h"
#include "data/prepared_data.h"
#include "plan/names.h"
#include "plan/plan_builder.h"
#include "plan/planner/planner.h"

namespace tercio::cli {
namespace {

// During its lifetime the first SIGINT or SIGTERM saves and stops the job, the second stops it
// immediately, and a process of the pair that dies is restarted.
class JobKeeper {
 public:
  JobKeeper(PrivatePair& pair, Client& client, std::string job)
      // A thread waits for signals, since handlers could not call the coordinator.
      : pair_(pair), client_(client), job_(std::move(job)) {
    thread_ = std::thread([this] { Watch(); });
  }
  ~JobKeeper() {
    // The thread looks every tenth of a second.
    done_ = true;
    thread_.join();
  }
  // The pair keeps dying: a process that is down now will not come back.
  bool given_up() const { return given_up_; }
  int signal() const { return signal_; }

 private:
  enum class LastCheckpoint { kNone, kSave };

  void Watch() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    const timespec pause{0, 100'000'000};
    while (!done_) {
      // Signals are taken one at a time; the first that comes while a call is under way waits.
      const int signal = sigtimedwait(&set, nullptr, &pause);
      if (signal <= 0) {
        Supervise();
        continue;
      }
      const bool again = signal_ != 0;
      signal_ = signal;
      std::fprintf(stderr, "\n%s\n",
                   again
                       ? "stopping immediately"
                       : "saving a checkpoint and stopping (interrupt again to stop immediately)");
      Cancel(again ? LastCheckpoint::kNone : LastCheckpoint::kSave, "interrupted");
    }
  }

  void Supervise() {
    if (given_up_) return;
    const absl::Status status = pair_.Supervise();
    if (status.ok()) return;
    given_up_ = true;
    // The reason goes with the request, so that the state of the job says why it ended.
    Cancel(LastCheckpoint::kNone, std::string(status.message()));
  }

  void Cancel(LastCheckpoint checkpoint, const std::string& reason) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCancelPatience);
    v1::CancelRequest request;
    request.set_job(job_);
    request.set_save_checkpoint(checkpoint == LastCheckpoint::kSave);
    request.set_reason(reason);
    v1::CancelResponse response;
    // The answer does not matter: a second signal, or the end of the job, follows in any case.
    client_.stub().Cancel(&context, request, &response);
  }

  // A coordinator that does not answer must not keep the next signal waiting.
  static constexpr std::chrono::seconds kCancelPatience{10};

  PrivatePair& pair_;
  Client& client_;
  std::string job_;
  std::atomic<int> signal_{0};
  std::atomic<bool> done_{false};
  std::atomic<bool> given_up_{false};
  std::thread thread_;
};

// Follows the job to its end and prints the outcome. `trace`: file for a trace; empty: none.
absl::StatusOr<int> FollowPrivately(PrivatePair& pair, Client& client, const std::string& job,
                                    const GlobalOptions& options, const std::string& trace) {
  FollowOptions follow;
  follow.ranks = options.format() != Output::kTable;
  const JobKeeper keeper(pair, client, job);
  follow.hope = [&keeper] { return !keeper.given_up(); };
  // The keeper lives as long as the job is followed, so that no signal is lost in between.
  TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus status, FollowJob(client, job, follow));
  const int signal = keeper.signal();
  if (options.format() != Output::kTable) {
    PrintJson(JobToJson(status), options.format());
  } else {
    std::cout << "job " << status.id() << " " << StateName(status.state()) << " after step "
              << status.step();
    if (status.has_loss()) std::cout << ", loss " << status.loss();
    if (status.has_validation_loss()) std::cout << ", validation loss " << status.validation_loss();
    std::cout << "\n";
    if (status.has_checkpoint()) std::cout << "checkpoint " << status.checkpoint().path() << "\n";
    std::cout.flush();
  }
  if (!status.error().empty()) {
    std::fprintf(stderr, "error: %s\n", ForTerminal(status.error()).c_str());
  }
  // A trace is an extra: a job that succeeded has succeeded without it.
  if (!trace.empty()) {
    const absl::Status traced = WriteTrace(client, status, trace);
    if (!traced.ok()) std::fprintf(stderr, "error: %s\n", std::string(traced.message()).c_str());
  }
  // Everything that is needed to continue is in the state directory.
  if (status.state() != v1::JOB_STATE_SUCCEEDED) {
    std::fprintf(stderr, "to resume: tercio resume %s --state-dir %s\n", status.id().c_str(),
                 options.state_dir.c_str());
  }
  if (signal == SIGINT && status.state() == v1::JOB_STATE_CANCELLED) return kExitInterrupted;
  if (signal == SIGTERM && status.state() == v1::JOB_STATE_CANCELLED) return kExitTerminated;
  return ExitCodeOfState(status.state());
}

// Finds every error that can be found before a job exists: exit code 2.
absl::Status CheckBeforeStart(const v1::JobSpec& spec, const std::string& state_dir, int ranks) {
  TERCIO_ASSIGN_OR_RETURN(const ClusterHere here, FindClusterHere(spec, ranks));
  TERCIO_RETURN_IF_ERROR(plan::AdmitJob(spec, here.cluster.memory_bytes));
  // The data is prepared where the agent will look for it, so that it is done once.
  TERCIO_RETURN_IF_ERROR(AsConflict(MakeDirectories(state_dir + "/agent/data-cache")));
  const absl::StatusOr<data::PreparedData> prepared =
      data::PrepareData(spec.data(), spec.model(), state_dir + "/agent/data-cache");
  absl::Status status = prepared.status();
  if (status.ok()) {
    PrintNotices(prepared->notices);
    if (!spec.model().from().empty()) {
      status = checkpoint::CheckInitialWeights(spec.model(), prepared->vocab_size);
    }
  }
  // A missing file is a mistake in the job, not a resource that was asked for by name.
  if (absl::IsNotFound(status) || absl::IsPermissionDenied(status)) {
    return absl::InvalidArgumentError(std::string(status.message()));
  }
  TERCIO_RETURN_IF_ERROR(status);
  // Checks once more, now that the vocabulary is known.
  v1::JobSpec known = spec;
  // Weights that are loaded have a vocabulary of their own.
  if (spec.model().from().empty()) known.mutable_model()->set_vocab_size(prepared->vocab_size);
  return plan::AdmitJob(known, here.cluster.memory_bytes);
}

// `auto` means the device of this machine.
absl::Status ChooseDevice(v1::JobSpec* spec) {
  // A job for CPUs must not wait for a driver that hangs.
  if (spec->resources().device() == v1::DEVICE_KIND_CPU) return absl::OkStatus();
  TERCIO_ASSIGN_OR_RETURN(const Gpus gpus, FindGpus());
  config::ResolveDevice(spec,
                        gpus.list.empty() ? config::AutoDevice::kCpu : config::AutoDevice::kCuda);
  if (spec->resources().device() == v1::DEVICE_KIND_CPU || !gpus.list.empty())
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      "resources.device is cuda, but there is no NVIDIA driver with a GPU on this machine; use "
      "device: cpu, or submit the job to a cluster that has GPUs");
}

absl::StatusOr<int> RunJob(const v1::JobSpec& spec, const RunOptions& options) {
  const int ranks = plan::RanksOfJob(spec);
  // An unwritable directory is a conflict (7), not a fault of the job.
  TERCIO_RETURN_IF_ERROR(AsConflict(MakeDirectories(options.state_dir)));
  {
    // Large texts take a while; there is no job yet that would have to be stopped in order.
    const LastWords words("interrupted before a job was started\n");
    TERCIO_RETURN_IF_ERROR(CheckBeforeStart(spec, options.state_dir, ranks));
  }
  BlockStopSignals();  // for JobKeeper; before lasting threads are started
  TERCIO_ASSIGN_OR_RETURN(
      const auto pair,
      PrivatePair::Start(options.state_dir, ranks, plan::TextOf(spec.resources().device())));
  TERCIO_ASSIGN_OR_RETURN(const auto client, Client::ConnectTo(pair->coordinator(), {}));
  TERCIO_ASSIGN_OR_RETURN(const std::string id, client->Submit(spec));
  std::fprintf(stderr, "job %s in %s\n", id.c_str(), options.state_dir.c_str());
  return FollowPrivately(*pair, *client, id, options, options.trace);
}

// The job to resume, by id or name, or the newest unfinished one.
absl::StatusOr<v1::JobStatus> FindJob(Client& client, const std::string& job) {
  if (!job.empty()) return client.Get(job);
  grpc::ClientContext context;
  v1::ListResponse response;
  TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().List(&context, {}, &response), client));
  // The list begins with the newest job.
  for (const v1::JobStatus& status : response.jobs()) {
    if (status.state() == v1::JOB_STATE_FAILED || status.state() == v1::JOB_STATE_CANCELLED ||
        !IsTerminal(status.state())) {
      return status;
    }
  }
  return absl::NotFoundError("there is no unfinished job to resume");
}

absl::StatusOr<std::string> SendResume(Client& client, const ResumeOptions& options,
                                       const v1::JobStatus& job) {
  grpc::ClientContext context;
  v1::ResumeRequest request;
  request.set_job(job.id());
  request.set_accept_data_change(options.accept_data_change);
  request.set_accept_change(options.accept_change);
  if (options.from_step >= 0) request.set_from_step(options.from_step);
  if (!options.set.empty()) {
    TERCIO_ASSIGN_OR_RETURN(*request.mutable_spec(), config::ChangeJob(job.spec(), options.set));
  }
  v1::JobStatus status;
  TERCIO_RETURN_IF_ERROR(CallStatus(client.stub().Resume(&context, request, &status), client));
  return status.id();
}

absl::StatusOr<int> ResumeJob(const ResumeOptions& options) {
  // Asks a running coordinator and follows the job; an interrupt does not affect the job.
  const bool live = options.state_dir.empty() || LiveAddress(options.state_dir).ok();
  if (live) {
    TERCIO_ASSIGN_OR_RETURN(const auto client, Client::Connect(options));
    TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus job, FindJob(*client, options.job));
    TERCIO_ASSIGN_OR_RETURN(const std::string id, SendResume(*client, options, job));
    const LastWords words(StillRunsNotice(id));
    FollowOptions follow;
    follow.ranks = options.format() != Output::kTable;
    TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus status, FollowJob(*client, id, follow));
    if (options.format() != Output::kTable) PrintJson(JobToJson(status), options.format());
    return ExitCodeOfState(status.state());
  }
  BlockStopSignals();  // for JobKeeper; before threads are started
  v1::JobSpec spec;
  {
    TERCIO_ASSIGN_OR_RETURN(const auto reader, Client::Connect(options));
    // The reader answers from the store, and ends with this block, before the pair takes the lock.
    TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus job, FindJob(*reader, options.job));
    TERCIO_ASSIGN_OR_RETURN(spec, config::ChangeJob(job.spec(), options.set));
  }
  TERCIO_ASSIGN_OR_RETURN(const auto pair,
                          PrivatePair::Start(options.state_dir, plan::RanksOfJob(spec),
                                             plan::TextOf(spec.resources().device())));
  TERCIO_ASSIGN_OR_RETURN(const auto client, Client::ConnectTo(pair->coordinator(), {}));
  TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus job, FindJob(*client, options.job));
  // A job whose coordinator was killed has not ended: it continues by itself.
  if (!IsTerminal(job.state()))
    return FollowPrivately(*pair, *client, job.id(), options, /*trace=*/"");
  TERCIO_ASSIGN_OR_RETURN(const std::string id, SendResume(*client, options, job));
  return FollowPrivately(*pair, *client, id, options, /*trace=*/"");
}

}  // namespace

int Run(const RunOptions& given) {
  RunOptions options = given;
  // The directory is filled in here, since messages name it.
  if (options.state_dir.empty()) options.state_dir = DefaultStateDir();
  std::vector<std::string> changes = options.set;
  if (!options.trace.empty()) {
    changes.push_back(absl::StrCat("training.trace_step=", options.trace_step));
  }
  if (options.ranks > 0) changes.push_back(absl::StrCat("resources.ranks=", options.ranks));
  auto spec = config::ParseJobFile(options.job_file, changes);
  if (!spec.ok()) return Fail(spec.status());
  if (const absl::Status status = ChooseDevice(&*spec); !status.ok()) return Fail(status);
  PrintNotices(config::KeysWithoutEffect(*spec));
  const absl::StatusOr<int> code = RunJob(*spec, options);
  return code.ok() ? *code : Fail(code.status());
}

int Resume(const ResumeOptions& options) {
  const absl::StatusOr<int> code = ResumeJob(options);
  return code.ok() ? *code : Fail(code.status());
}

}  // namespace tercio::cli
