// run and resume: a private coordinator and agent on this machine for as long as the job runs.
#include <csignal>
#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands/commands.h"
#include "cli/commands/private_run.h"
#include "cli/evaluation_text.h"
#include "cli/follow.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/private_pair.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/trace.h"
#include "common/daemon/daemon.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"
#include "config/job_file.h"
#include "config/notices.h"
#include "plan/names.h"
#include "plan/plan_builder.h"

namespace tercio::cli {
namespace {

EndRanks RanksFor(const GlobalOptions& options) {
  return options.format() == Output::kTable ? EndRanks::kNo : EndRanks::kYes;
}

// Prints the outcome of a job. `trace`: file for a trace; empty: none.
int PrintEnd(Client& client, const PrivateEnd& end, const GlobalOptions& options,
             const std::string& trace) {
  const v1::JobStatus& status = end.status;
  if (options.format() != Output::kTable) {
    PrintJson(JobToJson(status), options.format());
  } else {
    std::cout << "job " << status.id() << " " << StateName(status.state()) << " after step "
              << status.step();
    if (status.has_loss()) std::cout << ", loss " << status.loss();
    if (status.has_validation_loss()) std::cout << ", validation loss " << status.validation_loss();
    if (status.has_test()) std::cout << "\ntest data: " << EvaluationText(status.test());
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
  if (end.signal == SIGINT && status.state() == v1::JOB_STATE_CANCELLED) return kExitInterrupted;
  if (end.signal == SIGTERM && status.state() == v1::JOB_STATE_CANCELLED) return kExitTerminated;
  return ExitCodeOfState(status.state());
}

absl::StatusOr<int> RunJob(const v1::JobSpec& spec, const RunOptions& options) {
  return RunPrivately(spec, options.state_dir, Announce::kYes, RanksFor(options),
                      [&](Client& client, const PrivateEnd& end) -> absl::StatusOr<int> {
                        return PrintEnd(client, end, options, options.trace);
                      });
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

absl::StatusOr<std::string> ResumeAsAsked(Client& client, const ResumeOptions& options,
                                          const v1::JobStatus& job) {
  v1::ResumeRequest request;
  request.set_job(job.id());
  request.set_accept_data_change(options.accept_data_change);
  request.set_accept_change(options.accept_change);
  if (options.from_step >= 0) request.set_from_step(options.from_step);
  if (!options.set.empty()) {
    TERCIO_ASSIGN_OR_RETURN(*request.mutable_spec(), config::ChangeJob(job.spec(), options.set));
  }
  return SendResume(client, request);
}

absl::StatusOr<int> ResumeJob(const ResumeOptions& options) {
  // Asks a running coordinator and follows the job; an interrupt does not affect the job.
  const bool live = options.state_dir.empty() || LiveAddress(options.state_dir).ok();
  if (live) {
    TERCIO_ASSIGN_OR_RETURN(const auto client, Client::Connect(options));
    TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus job, FindJob(*client, options.job));
    TERCIO_ASSIGN_OR_RETURN(const std::string id, ResumeAsAsked(*client, options, job));
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
  TERCIO_ASSIGN_OR_RETURN(const PrivateCluster cluster,
                          StartPrivateCluster(spec, options.state_dir, Announce::kYes));
  Client& client = *cluster.client;
  TERCIO_ASSIGN_OR_RETURN(const v1::JobStatus job, FindJob(client, options.job));
  std::string id = job.id();
  // A job whose coordinator was killed has not ended: it continues by itself.
  if (IsTerminal(job.state())) {
    TERCIO_ASSIGN_OR_RETURN(id, ResumeAsAsked(client, options, job));
  }
  FollowOptions follow;
  follow.ranks = options.format() != Output::kTable;
  TERCIO_ASSIGN_OR_RETURN(const PrivateEnd end,
                          FollowToEnd(cluster.pair.get(), client, id, follow));
  return PrintEnd(client, end, options, /*trace=*/"");
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
