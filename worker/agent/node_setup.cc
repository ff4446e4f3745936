#include "worker/agent/node_setup.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/host_port.h"
#include "common/log.h"
#include "common/security/certificate.h"
#include "common/security/channel.h"
#include "common/status_macros.h"
#include "worker/agent/link/departure.h"
#include "worker/agent/runs/device_choice.h"
#include "worker/agent/runs/runtime_directory.h"

namespace tercio::agent {
namespace {

// systemd names a directory that belongs to the service alone; without one there is /tmp.
std::string RuntimeParent() {
  const char* runtime = std::getenv("RUNTIME_DIRECTORY");
  return runtime != nullptr ? runtime : "/tmp";
}

// The address from which this node reaches the coordinator is one that other nodes can reach. Asks
// the routing table: connecting a datagram socket sends no packet.
absl::StatusOr<std::string> AddressTowards(const std::string& coordinator) {
  if (absl::StartsWith(coordinator, "unix:")) return "127.0.0.1";  // there is no other node
  const std::optional<HostPort> parts = SplitHostPort(coordinator);
  if (!parts.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--coordinator ", coordinator, " is not HOST:PORT"));
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(parts->host.c_str(), parts->port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot resolve --coordinator ", coordinator, ": ", gai_strerror(error)));
  }
  const absl::Cleanup free_addresses = [found] { freeaddrinfo(found); };
  // A name may have addresses of a family for which this node has no route.
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const int descriptor = socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) continue;
    const absl::Cleanup close_socket = [descriptor] { close(descriptor); };
    sockaddr_storage own = {};
    socklen_t length = sizeof(own);
    char text[NI_MAXHOST];
    if (connect(descriptor, entry->ai_addr, entry->ai_addrlen) == 0 &&
        getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      return std::string(text);
    }
  }
  return absl::UnavailableError(absl::StrCat("no route to --coordinator ", coordinator,
                                             "; set this node's address with --data-address"));
}

// Names and addresses at which trainers of other nodes find copies of snapshots.
std::vector<std::string> HostsOf(const AgentFlags& flags) {
  std::vector<std::string> hosts = {flags.agent.data_address};
  if (const auto listen = SplitHostPort(flags.snapshot_listen); listen.has_value()) {
    hosts.push_back(listen->host);
  }
  // A name that no certificate can hold would have the whole request refused.
  if (const std::string own = HostName(); AlternativeName(own).ok()) hosts.push_back(own);
  hosts.erase(std::remove(hosts.begin(), hosts.end(), ""), hosts.end());
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  return hosts;
}

Membership::Options MembershipOptions(const AgentFlags& flags) {
  Membership::Options options;
  options.coordinator = flags.agent.coordinator;
  options.enroll = flags.enroll;
  options.state_dir = flags.agent.state_dir;
  options.node = flags.agent.node;
  options.join_token_file = flags.join_token_file;
  options.tls = flags.tls;
  options.hosts = HostsOf(flags);
  options.trainer_user = flags.agent.trainer_user;
  return options;
}

// Trainers stream checkpoints to the coordinator themselves.
void UseIdentity(const Membership& membership, AgentFlags& flags) {
  flags.identity = membership.identity();
  if (flags.identity == nullptr) return;
  flags.tls = flags.identity->files();
  const TlsFiles files = membership.TrainerFiles();
  flags.agent.trainer_environment = {"TERCIO_TLS_CERT=" + files.certificate,
                                     "TERCIO_TLS_KEY=" + files.key,
                                     "TERCIO_TLS_CA=" + files.authority};
}

// Sets what jobs may do on this node. If strangers can reach the coordinator, only named
// directories may be read; `tercio run`, and a coordinator on loopback, belong to their user alone.
absl::Status SetBounds(AgentFlags& flags) {
  const bool open_to_others = Membership::HasMeans(MembershipOptions(flags)) && !flags.parent_death;
  if (open_to_others || !flags.data_roots.empty()) {
    TERCIO_ASSIGN_OR_RETURN(flags.agent.allowed, AllowedPaths::Under(flags.data_roots));
    if (flags.data_roots.empty()) {
      LogWarning("no --data-root is given: jobs cannot read any data on this node");
    }
  }
  if (!open_to_others && flags.trainer_user.empty()) return absl::OkStatus();
  TERCIO_ASSIGN_OR_RETURN(flags.agent.trainer_user, FindTrainerUser(flags.trainer_user));
  if (!flags.agent.trainer_user.has_value()) {
    if (geteuid() == 0) {
      LogWarning("trainers run as root; use --trainer-user NAME to run them as another user");
    }
    return absl::OkStatus();
  }
  // Secret files have a mode of their own.
  umask(022);
  if (RuntimeParent() != "/tmp") TERCIO_RETURN_IF_ERROR(LetPass(RuntimeParent()));
  return LetPass(flags.agent.state_dir);
}

// The processes that read jobs' data fill the cache, as that user. A cache that another user has
// filled is created again: they could neither repair nor remove its content.
absl::Status GiveCache(const TrainerUser& user, const std::string& directory) {
  struct stat info = {};
  if (lstat(directory.c_str(), &info) == 0 && info.st_uid != user.uid) {
    TERCIO_RETURN_IF_ERROR(RemoveTree(directory));
  }
  TERCIO_RETURN_IF_ERROR(MakeDirectories(directory));
  return GiveTo(user, directory);
}

}  // namespace

absl::Status CheckFlags(const AgentFlags& flags) {
  const bool tls = Membership::HasMeans(MembershipOptions(flags));
  for (const auto& [flag, address] : {std::pair{"--metrics-listen", flags.metrics_listen},
                                      std::pair{"--coordinator", flags.agent.coordinator}}) {
    // Without TLS others on the network could read and change everything that passes.
    if (tls || IsLoopback(address)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", address,
                     " is not loopback: give --join-token-file with a token of `tercio-coordinator "
                     "token`, or --tls-cert, --tls-key and --tls-ca"));
  }
  if (flags.agent.state_dir.empty()) {
    return absl::InvalidArgumentError("--state-dir DIR is required");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FileLock>> LockState(const std::string& directory) {
  TERCIO_RETURN_IF_ERROR(MakeDirectories(directory));
  // Two agents would adopt the same trainers, and number the same spool.
  auto lock = FileLock::Acquire(directory + "/lock", WhenHeld::kFail);
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("another agent uses the state directory ", directory,
                     "; give each agent a --state-dir of its own"));
  }
  return lock;
}

// Trainers may run as another user. Their files there have no names, so that no one else opens
// them.
absl::Status MakeScratchDirectory(AgentOptions* agent) {
  constexpr mode_t kLikeTmp = 01777;
  if (!agent->scratch_dir.empty()) {
    // One that a person has named is not changed.
    if (access(agent->scratch_dir.c_str(), F_OK) == 0) return absl::OkStatus();
  } else {
    agent->scratch_dir = agent->state_dir + "/scratch";
  }
  if (mkdir(agent->scratch_dir.c_str(), kLikeTmp) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(absl::StrCat("cannot make the scratch directory ",
                                                      agent->scratch_dir, ": ", strerror(errno),
                                                      "; name another one with --scratch"));
  }
  chmod(agent->scratch_dir.c_str(), kLikeTmp);
  return absl::OkStatus();
}

absl::Status FillIn(AgentFlags& flags) {
  if (flags.agent.log_dir.empty()) flags.agent.log_dir = flags.agent.state_dir + "/logs";
  TERCIO_RETURN_IF_ERROR(MakeScratchDirectory(&flags.agent));
  // This names the trainer that is looked for next.
  TERCIO_RETURN_IF_ERROR(ChooseDevice(flags.device, &flags.agent));
  if (access(flags.agent.trainer.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("the trainer program ", flags.agent.trainer,
                                            " does not exist; set its path with --trainer"));
  }
  if (flags.agent.data_address.empty()) {
    TERCIO_ASSIGN_OR_RETURN(flags.agent.data_address, AddressTowards(flags.agent.coordinator));
  }
  // The coordinator ends with the same parent: there is nothing left that could move jobs
  // elsewhere.
  if (flags.parent_death) flags.stop_grace_seconds = kKillSeconds;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Membership>> JoinCluster(AgentFlags& flags,
                                                        const std::function<bool()>& stopped) {
  TERCIO_RETURN_IF_ERROR(SetBounds(flags));
  TERCIO_ASSIGN_OR_RETURN(auto membership, Membership::Join(MembershipOptions(flags), stopped));
  UseIdentity(*membership, flags);
  return membership;
}

absl::Status PrepareRuntime(AgentStore& store, AgentOptions* agent) {
  TERCIO_ASSIGN_OR_RETURN(agent->runtime_dir, OpenRuntimeDirectory(store, RuntimeParent()));
  agent->socket = agent->runtime_dir + "/agent.sock";
  if (!agent->trainer_user.has_value()) return absl::OkStatus();
  TERCIO_RETURN_IF_ERROR(GiveCache(*agent->trainer_user, agent->state_dir + "/data-cache"));
  // Trainers make their progress pages in it.
  return GiveTo(*agent->trainer_user, agent->runtime_dir);
}

}  // namespace tercio::agent
