// The connection of a verb to a coordinator: by address, or through a state directory (the
// coordinator that runs there, else one started for the length of the call, which is read-only).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/child.h"
#include "cli/global_options.h"
#include "cli/private_socket.h"
#include "grpcpp/client_context.h"
#include "proto/tercio/v1/job_service.grpc.pb.h"

namespace tercio::cli {

class Client {
 public:
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const GlobalOptions& options);
  static absl::StatusOr<std::unique_ptr<Client>> ConnectTo(const std::string& address,
                                                           const TlsFiles& tls);

  v1::JobService::Stub& stub() { return *stub_; }
  const std::string& address() const { return address_; }
  const TlsFiles& tls() const { return tls_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // Returns the id of the new job. If a coordinator that was reached goes away meanwhile, the call
  // is retried for a while with the same request id, so that only one job is created.
  absl::StatusOr<std::string> Submit(const v1::JobSpec& spec);
  // Whether a status has the figures of each rank.
  enum class Ranks { kLeaveOut, kInclude };
  absl::StatusOr<v1::JobStatus> Get(const std::string& job, Ranks ranks = Ranks::kLeaveOut);
  // The oldest first.
  absl::StatusOr<std::vector<v1::CheckpointInfo>> Checkpoints(const std::string& job);

 private:
  static absl::StatusOr<std::unique_ptr<Client>> ConnectAs(const std::string& address,
                                                           const TlsFiles& given);

  std::unique_ptr<PrivateSocket> reader_socket_;
  std::unique_ptr<Child> reader_;
  std::string address_;
  TlsFiles tls_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> stub_;
};

// The address of the coordinator that runs in a state directory; NOT_FOUND if none does.
absl::StatusOr<std::string> LiveAddress(const std::string& state_dir);

// Whether no coordinator has kept a job in a state directory yet, which need not exist. False where
// that cannot be seen: the directory cannot be entered, or is a file.
bool HoldsNoJobs(const std::string& state_dir);

// $XDG_STATE_HOME/tercio, else ~/.local/state/tercio.
std::string DefaultStateDir();

// The outcome of a call. If the coordinator could not be reached, the message has its address and,
// if a certificate is the reason, which one.
absl::Status CallStatus(const grpc::Status& status, const Client& client);

// Prints the error and returns its exit code.
int Fail(const absl::Status& status);

}  // namespace tercio::cli
