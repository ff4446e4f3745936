#include "cli/private_pair.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/format.h"
#include "common/file.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio::cli {
namespace {

// A lock that is taken says nothing about who has it: the coordinator that runs there does.
absl::Status NameRunningJob(const std::string& state_dir, const absl::Status& status) {
  const absl::StatusOr<std::string> address = LiveAddress(state_dir);
  if (!address.ok()) return status;
  const auto client = Client::ConnectTo(*address, {});
  if (!client.ok()) return status;
  grpc::ClientContext context;
  v1::ListResponse jobs;
  if (!(*client)->stub().List(&context, {}, &jobs).ok()) return status;
  for (const v1::JobStatus& job : jobs.jobs()) {
    // Jobs that have ended hold no directory; the coordinator may just be stopping.
    if (IsTerminal(job.state())) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the state directory ", state_dir, " is in use: job ", job.id(), " (",
                     job.name(), ") is running there; wait for it or give another --state-dir"));
  }
  return status;
}

// Keeps the old log when a new one is started: it may contain the last lines of a program that
// died.
void KeepLog(const std::string& path) {
  if (PathExists(path)) RenamePath(path, path + ".before").IgnoreError();
}

}  // namespace

PrivatePair::PrivatePair(std::string state_dir, int slots, std::string device,
                         std::unique_ptr<PrivateSocket> socket)
    : state_dir_(std::move(state_dir)),
      slots_(slots),
      device_(std::move(device)),
      socket_(std::move(socket)) {}

PrivatePair::~PrivatePair() {
  agent_.reset();  // first: its trainers must not lose their coordinator
  coordinator_.reset();
}

absl::StatusOr<std::unique_ptr<PrivatePair>> PrivatePair::Start(const std::string& state_dir,
                                                                int slots,
                                                                const std::string& device) {
  // The socket lives as long as the pair, so that a
  // coordinator that is restarted has the same address.
  TERCIO_ASSIGN_OR_RETURN(auto socket, PrivateSocket::Make());
  std::unique_ptr<PrivatePair> pair(new PrivatePair(state_dir, slots, device, std::move(socket)));
  // The coordinator comes first: an agent without one would only retry.
  if (const absl::Status status = pair->StartCoordinator(); !status.ok()) {
    return NameRunningJob(state_dir, status);
  }
  TERCIO_RETURN_IF_ERROR(pair->StartAgent());
  std::fprintf(stderr, "coordinator %s, metrics http://%s/metrics and http://%s/metrics\n",
               pair->coordinator().c_str(), pair->coordinator_->Ready("metrics").c_str(),
               pair->agent_->Ready("metrics").c_str());
  return pair;
}

absl::Status PrivatePair::StartCoordinator() {
  const std::string log = state_dir_ + "/coordinator.log";
  // A restart would otherwise overwrite the reason why it is needed.
  KeepLog(log);
  TERCIO_ASSIGN_OR_RETURN(coordinator_,
                          Child::Start("tercio-coordinator",
                                       // Port 0 lets several runs share a machine.
                                       {"--parent-death", "--state-dir", state_dir_, "--listen",
                                        coordinator(), "--metrics-listen", "127.0.0.1:0"},
                                       log));
  return absl::OkStatus();
}

absl::Status PrivatePair::StartAgent() {
  const std::string log = state_dir_ + "/agent.log";
  KeepLog(log);
  TERCIO_ASSIGN_OR_RETURN(
      // The programs end with this one, however it ends.
      agent_, Child::Start("tercio-agent",
                           {"--parent-death", "--coordinator", coordinator(), "--state-dir",
                            state_dir_ + "/agent", "--slots", absl::StrCat(slots_), "--device",
                            device_, "--metrics-listen", "127.0.0.1:0", "--name", kNode},
                           log));
  return absl::OkStatus();
}

absl::Status PrivatePair::Revive(std::unique_ptr<Child>* child, const char* name,
                                 absl::Status (PrivatePair::*start)()) {
  if (*child != nullptr) {
    // Without an end it still runs.
    const std::string end = (*child)->EndedWith();
    if (end.empty()) return absl::OkStatus();
    std::fprintf(stderr, "\n%s exited (%s); restarting it\n", name, end.c_str());
    child->reset();
  }
  // A program that dies at once must not be restarted in a loop.
  if (SteadyNow() < not_before_) return absl::OkStatus();
  not_before_ = SteadyNow() + kPause;
  const absl::Status status = restarts_ < kMostRestarts
                                  ? (this->*start)()
                                  : absl::AbortedError(absl::StrCat(name, " keeps exiting"));
  ++restarts_;
  // Other failures, such as a full disk, may be over at the next look.
  if (status.ok() || absl::IsAborted(status)) return status;
  std::fprintf(stderr, "\n%s: %s\n", name, std::string(status.message()).c_str());
  return absl::OkStatus();
}

absl::Status PrivatePair::Supervise() {
  // The coordinator is looked after first, as the agent needs it.
  TERCIO_RETURN_IF_ERROR(
      Revive(&coordinator_, "the private coordinator", &PrivatePair::StartCoordinator));
  return Revive(&agent_, "the private agent", &PrivatePair::StartAgent);
}

}  // namespace tercio::cli
