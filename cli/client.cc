#include "cli/client.h"

#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/login_files.h"
#include "cli/request_id.h"
#include "cli/text.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/grpc_status.h"
#include "common/security/enrolment.h"
#include "common/security/tls_diagnosis.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/utf8.h"
#include "common/version.h"
#include "grpc/support/log.h"

namespace tercio::cli {
namespace {

// The coordinator's default port on this machine, where no address was ever given.
constexpr char kDefaultAddress[] = "127.0.0.1:7077";

// Deadline for asking the coordinator's version; the call that follows reports what is wrong with
// the connection.
constexpr absl::Duration kVersionPatience = absl::Seconds(2);
// Time that a restart of the coordinator takes.
constexpr absl::Duration kSubmitPatience = absl::Seconds(20);
constexpr absl::Duration kSubmitPause = absl::Milliseconds(200);

// A coordinator whose version does not fit may lack what a verb asks for, or mean something else.
void WarnOfVersion(Client& client) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(kVersionPatience));
  v1::VersionResponse response;
  if (!client.stub().Version(&context, {}, &response).ok()) return;
  const absl::Status fits = CheckVersions("the coordinator", response.version(), "this program");
  if (!fits.ok()) std::fprintf(stderr, "warning: %s\n", std::string(fits.message()).c_str());
}

}  // namespace

std::string DefaultStateDir() {
  // An empty variable counts as none, as the XDG specification says.
  if (const char* base = std::getenv("XDG_STATE_HOME"); base != nullptr && *base != '\0') {
    return absl::StrCat(base, "/tercio");
  }
  const char* home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "/root" : home, "/.local/state/tercio");
}

absl::Status CallStatus(const grpc::Status& status, const Client& client) {
  if (status.ok()) return absl::OkStatus();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    // UNAVAILABLE is all that gRPC says: which of the usual reasons it was is found out here.
    TERCIO_RETURN_IF_ERROR(DiagnoseTls(client.address(), client.tls()));
    TERCIO_RETURN_IF_ERROR(MayUseSocket(client.address()));
    return absl::UnavailableError(absl::StrCat(
        "cannot reach the coordinator at ", client.address(), ": ", status.error_message(),
        "; is it running? give --coordinator HOST:PORT to reach another"));
  }
  // gRPC's own answer to a call that the server does not implement has no message.
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty()) {
    return absl::UnimplementedError(absl::StrCat("the coordinator at ", client.address(),
                                                 " runs a version that does not support this"));
  }
  return FromGrpc(status);
}

int Fail(const absl::Status& status) {
  // Messages may quote texts of jobs, which must not steer the terminal.
  std::fprintf(stderr, "error: %s\n", ForDisplay(std::string(status.message()), "\n\t").c_str());
  return ExitCodeOf(status);
}

absl::StatusOr<std::string> LiveAddress(const std::string& state_dir) {
  TERCIO_ASSIGN_OR_RETURN(std::string address, ReadFile(state_dir + "/coordinator.address"));
  while (!address.empty() && address.back() == '\n') address.pop_back();
  // The file outlives a coordinator that was killed; its lock does not.
  if (!FileLock::IsHeld(state_dir + "/lock")) {
    return absl::NotFoundError("the coordinator is not running");
  }
  return address;
}

bool HoldsNoJobs(const std::string& state_dir) {
  // Any other error means that there may be jobs that cannot be seen.
  struct stat info;
  return stat((state_dir + "/state.sqlite").c_str(), &info) != 0 && errno == ENOENT;
}

absl::StatusOr<std::unique_ptr<Client>> Client::ConnectTo(const std::string& address,
                                                          const TlsFiles& tls) {
  // Silences gRPC's log: CallStatus reports a failed handshake, once.
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
  auto client = std::make_unique<Client>();
  client->address_ = address;
  client->tls_ = tls;
  TERCIO_ASSIGN_OR_RETURN(client->channel_, OpenChannel(address, tls));
  client->stub_ = v1::JobService::NewStub(client->channel_);
  return client;
}

// Connects with the given files, else with those of a login at that address, if there was one.
absl::StatusOr<std::unique_ptr<Client>> Client::ConnectAs(const std::string& address,
                                                          const TlsFiles& given) {
  const std::string directory = LoginDirectory(address);
  const bool login = !given.given() && IsEnrolled(directory);
  bool renew = false;
  if (login) {
    const auto identity = TlsIdentity::Load(EnrolledFiles(directory), TlsIdentity::KeyFile::kOwn);
    if (!identity.ok()) {
      return absl::UnauthenticatedError(absl::StrCat(std::string(identity.status().message()),
                                                     " (`tercio login` creates these files)"));
    }
    // A certificate that is renewed only when it has expired would lock its owner out.
    renew = RenewalIsDue((*identity)->Current()->facts, absl::Now());
  }
  TERCIO_ASSIGN_OR_RETURN(auto client,
                          ConnectTo(address, login ? EnrolledFiles(directory) : given));
  // A renewal that fails now is retried with the next verb; the certificate is still valid.
  if (renew) RenewCertificate(client->channel_, directory, {}).IgnoreError();
  WarnOfVersion(*client);
  return client;
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const GlobalOptions& options) {
  if (options.state_dir.empty()) {
    std::string address = options.coordinator;
    if (address.empty()) address = RememberedCoordinator();
    return ConnectAs(address.empty() ? kDefaultAddress : address, options.tls);
  }
  if (const absl::StatusOr<std::string> live = LiveAddress(options.state_dir); live.ok()) {
    return ConnectAs(*live, options.tls);
  }
  // A mistyped directory is answered here, before a reader is started on it.
  if (!PathExists(options.state_dir + "/state.sqlite")) {
    return absl::NotFoundError(
        absl::StrCat("the state directory ", options.state_dir, " holds no jobs"));
  }
  // A socket in a private directory lets nobody else ask the reader.
  TERCIO_ASSIGN_OR_RETURN(auto socket, PrivateSocket::Make());
  TERCIO_ASSIGN_OR_RETURN(
      auto reader, Child::Start("tercio-coordinator",
                                {"--read-only", "--parent-death", "--state-dir", options.state_dir,
                                 "--listen", socket->address(), "--metrics-listen", "127.0.0.1:0"},
                                options.state_dir + "/reader.log"));
  TERCIO_ASSIGN_OR_RETURN(auto client, ConnectTo(reader->Ready("coordinator"), {}));
  client->reader_socket_ = std::move(socket);
  client->reader_ = std::move(reader);
  return client;
}

absl::StatusOr<std::string> Client::Submit(const v1::JobSpec& spec) {
  v1::SubmitRequest request;
  *request.mutable_spec() = spec;
  // One id for all attempts: the coordinator makes one job of them (Coordinator::Submit).
  request.set_request_id(NewRequestId());
  // Waiting makes sense only for a coordinator that was there before.
  const bool reached = channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
  const absl::Time end = SteadyNow() + kSubmitPatience;
  while (true) {
    grpc::ClientContext context;
    v1::SubmitResponse response;
    const grpc::Status status = stub_->Submit(&context, request, &response);
    if (status.ok()) return response.job_id();
    if (!reached || status.error_code() != grpc::StatusCode::UNAVAILABLE || SteadyNow() >= end) {
      return CallStatus(status, *this);
    }
    absl::SleepFor(kSubmitPause);
  }
}

absl::StatusOr<v1::JobStatus> Client::Get(const std::string& job, Ranks ranks) {
  grpc::ClientContext context;
  v1::GetRequest request;
  request.set_job(job);
  request.set_ranks(ranks == Ranks::kInclude);
  v1::JobStatus status;
  TERCIO_RETURN_IF_ERROR(CallStatus(stub_->Get(&context, request, &status), *this));
  return status;
}

absl::StatusOr<std::vector<v1::CheckpointInfo>> Client::Checkpoints(const std::string& job) {
  grpc::ClientContext context;
  v1::CheckpointsRequest request;
  request.set_job(job);
  v1::CheckpointsResponse response;
  TERCIO_RETURN_IF_ERROR(CallStatus(stub_->Checkpoints(&context, request, &response), *this));
  return std::vector<v1::CheckpointInfo>(response.checkpoints().begin(),
                                         response.checkpoints().end());
}

}  // namespace tercio::cli
