// tercio-agent: one per node. Starts, watches and stops trainers; exports their figures.
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/certificate.h"
#include "common/channel.h"
#include "common/daemon.h"
#include "common/daemon_flags.h"
#include "common/daemon_loop.h"
#include "common/file.h"
#include "common/health_server.h"
#include "common/log.h"
#include "common/machine.h"
#include "common/service_manager.h"
#include "common/status_macros.h"
#include "common/tls_diagnosis.h"
#include "common/version.h"
#include "worker/agent/agent_metrics.h"
#include "worker/agent/agent_store.h"
#include "worker/agent/device_choice.h"
#include "worker/agent/gpu_monitor.h"
#include "worker/agent/membership.h"
#include "worker/agent/node_link.h"
#include "worker/agent/run_manager.h"
#include "worker/agent/runtime_directory.h"
#include "worker/agent/snapshot_server.h"
#include "worker/agent/snapshot_store.h"
#include "worker/agent/trainer_server.h"

namespace tercio {
namespace {

// From SIGTERM to SIGKILL for trainers that are still there when the time to leave is over.
constexpr double kKillSeconds = 5;
// For the first look at the GPUs, before the coordinator hears of them.
constexpr absl::Duration kFirstLookPatience = absl::Seconds(10);
// When a rank has failed: what the driver has said of its GPU lately, and how long it may take to
// say it.
constexpr absl::Duration kTroubleWindow = absl::Seconds(60);
constexpr absl::Duration kTroublePatience = absl::Seconds(2);
// Ends the agent and leaves its trainers, for the agent that is started next.
constexpr int kLeaveTrainers = SIGUSR1;

struct Flags {
  std::string coordinator = "127.0.0.1:7077";
  std::string metrics_listen = "127.0.0.1:9465";
  std::string health_listen;
  std::string snapshot_listen;
  int64_t snapshot_reserve = int64_t{1} << 30;
  AgentOptions agent;
  std::string device = "auto";
  double metrics_linger_seconds = 60;
  int64_t gpu_others = int64_t{1} << 30;
  double gpu_interval_seconds = 5;
  TlsFiles tls = TlsFromEnvironment();
  std::shared_ptr<TlsIdentity> identity;  // null: no TLS
  std::string enroll;
  std::string join_token_file;
  std::string trainer_user;
  std::vector<std::string> data_roots;
  double stop_grace_seconds = 25;
  int64_t spool_bytes = 64 << 20;
  bool parent_death = false;
  DaemonSettings settings;  // all of the above, as given
};

// Flags whose changes count at SIGHUP.
const std::set<std::string>& LiveFlags() {
  static const auto* const names = new std::set<std::string>{"snapshot-reserve", "stop-grace"};
  return *names;
}

std::string HostName() {
  char name[256] = "node";
  gethostname(name, sizeof(name) - 1);
  return name;
}

void AddGpuOptions(CLI::App& app, Flags* flags) {
  app.add_option("--gpu-others", flags->gpu_others,
                 "memory that processes of others may have on a GPU that takes ranks (such as "
                 "1GiB)")
      ->envname("TERCIO_GPU_OTHERS")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str()
      ->take_last();
  app.add_option("--gpu-interval", flags->gpu_interval_seconds,
                 "seconds between two looks at the GPUs")
      ->envname("TERCIO_GPU_INTERVAL")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str()
      ->take_last();
}

void AddTimeOptions(CLI::App& app, Flags* flags) {
  app.add_option("--metrics-linger", flags->metrics_linger_seconds,
                 "seconds for which counters of a rank that has ended stay on /metrics")
      ->envname("TERCIO_METRICS_LINGER")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str()
      ->take_last();
  app.add_option("--agent-grace", flags->agent.agent_grace_seconds,
                 "seconds that trainers go on after the agent has died")
      ->envname("TERCIO_AGENT_GRACE")
      ->capture_default_str()
      ->take_last();
  app.add_option("--stop-grace", flags->stop_grace_seconds,
                 "seconds from SIGTERM until this node's trainers are gone, whatever they do")
      ->envname("TERCIO_STOP_GRACE")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str()
      ->take_last();
}

// Who this node is, and what jobs may do to it.
void AddAccessOptions(CLI::App& app, Flags* flags) {
  const auto add = [&](const char* name, std::string* value, const char* variable,
                       const char* help) {
    app.add_option(name, *value, help)->envname(variable)->capture_default_str()->take_last();
  };
  add("--tls-cert", &flags->tls.certificate, "TERCIO_TLS_CERT", "PEM certificate");
  add("--tls-key", &flags->tls.key, "TERCIO_TLS_KEY", "PEM key");
  add("--tls-ca", &flags->tls.authority, "TERCIO_TLS_CA", "PEM authority of the coordinator");
  add("--join-token-file", &flags->join_token_file, "TERCIO_JOIN_TOKEN_FILE",
      "file with a token, for which this node gets its certificate (also TERCIO_JOIN_TOKEN)");
  add("--enroll", &flags->enroll, "TERCIO_ENROLL",
      "HOST:PORT of the enrolment port; default: the port after the coordinator's");
  add("--trainer-user", &flags->trainer_user, "TERCIO_TRAINER_USER",
      "user under whom trainers run; only where the agent is root (default: tercio-trainer, where "
      "there is TLS and such a user)");
  app.add_option("--data-root", flags->data_roots,
                 "directory in which jobs may read data, tokenizers and models; several may be "
                 "given (default: with TLS none, else any)")
      ->envname("TERCIO_DATA_ROOT")
      ->delimiter(':')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
}

// The exit code; *done when there is nothing more to do (--help).
int ParseFlags(int argc, char** argv, Flags* flags, bool* done) {
  CLI::App app("Tercio agent: runs this node's part of training jobs.", "tercio-agent");
  const int cores = MachineCores();
  flags->agent.cores = cores;
  flags->agent.slots = 0;
  flags->agent.node = HostName();
  const auto add = [&](const char* name, std::string* value, const char* variable,
                       const char* help) {
    app.add_option(name, *value, help)->envname(variable)->capture_default_str()->take_last();
  };
  add("--coordinator", &flags->coordinator, "TERCIO_COORDINATOR", "HOST:PORT of the coordinator");
  add("--state-dir", &flags->agent.state_dir, "TERCIO_AGENT_STATE_DIR",
      "spool, runs, logs, token cache");
  add("--name", &flags->agent.node, "TERCIO_NODE_NAME", "name of this node");
  add("--metrics-listen", &flags->metrics_listen, "TERCIO_METRICS_LISTEN", "HOST:PORT of /metrics");
  add("--health-listen", &flags->health_listen, "TERCIO_HEALTH_LISTEN",
      "HOST:PORT of gRPC's health service alone, in plain text, for probes; default: none");
  add("--data-address", &flags->agent.data_address, "TERCIO_DATA_ADDRESS",
      "IP address for traffic between ranks (not encrypted)");
  add("--snapshot-listen", &flags->snapshot_listen, "TERCIO_SNAPSHOT_LISTEN",
      "HOST:PORT for copies of snapshots; default: the data address, any port");
  add("--trainer", &flags->agent.trainer, "TERCIO_TRAINER", "the trainer program");
  AddAccessOptions(app, flags);
  app.add_option("--device", flags->device,
                 "what ranks compute on; auto: cuda where there is a GPU and a trainer for it")
      ->envname("TERCIO_DEVICE")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str()
      ->take_last();
  app.add_option("--slots", flags->agent.slots,
                 "ranks offered; default: one for each GPU, or for each core (2 at least). More "
                 "than there are GPUs: ranks share them")
      ->envname("TERCIO_SLOTS")
      ->check(CLI::Range(1, 4096))
      ->take_last();
  AddGpuOptions(app, flags);
  AddTimeOptions(app, flags);
  app.add_option("--snapshot-reserve", flags->snapshot_reserve,
                 "memory that copies of snapshots leave free (such as 1GiB)")
      ->envname("TERCIO_SNAPSHOT_RESERVE")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str()
      ->take_last();
  app.add_option("--spool-limit", flags->spool_bytes,
                 "bytes of news kept while the coordinator is away (such as 64MiB)")
      ->envname("TERCIO_SPOOL_LIMIT")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::Range(int64_t{64} << 10, int64_t{1} << 40))
      ->capture_default_str()
      ->take_last();
  app.add_flag("--parent-death", flags->parent_death, "end with the process that started this one");
  const int code = ParseDaemonFlags(app, argc, argv, done);
  flags->settings = SettingsOf(app);
  return code;
}

std::string RuntimeParent() {
  const char* runtime = std::getenv("RUNTIME_DIRECTORY");
  return runtime != nullptr ? runtime : "/tmp";
}

// The address from which this node reaches the coordinator is one that other nodes can reach. Asks
// the routing table: connecting a datagram socket sends nothing.
absl::StatusOr<std::string> AddressTowards(const std::string& coordinator) {
  const size_t colon = coordinator.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("--coordinator ", coordinator, " is not HOST:PORT"));
  }
  std::string host = coordinator.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), coordinator.c_str() + colon + 1, &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot resolve --coordinator ", coordinator, ": ", gai_strerror(error)));
  }
  const absl::Cleanup free_addresses = [found] { freeaddrinfo(found); };
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
                                             "; name this node's address with --data-address"));
}

// Where others reach this agent.
struct Addresses {
  std::string metrics;
  std::string snapshots;  // empty: nowhere
};

v1::AgentHello MakeHello(const AgentOptions& options, const Addresses& addresses,
                         const std::string& spool_id, const RunManager& runs,
                         const GpuMonitor& gpus) {
  v1::AgentHello hello;
  hello.set_spool_id(spool_id);
  hello.set_node(options.node);
  hello.set_version(kVersion);
  hello.set_data_address(options.data_address);
  hello.set_metrics_address(addresses.metrics);
  hello.set_snapshot_address(addresses.snapshots);
  hello.set_device_kind(options.device_kind);
  hello.set_devices(options.slots);
  for (const GpuReading& reading : gpus.Readings()) {
    v1::DeviceFacts* facts = hello.add_device_facts();
    facts->set_model(reading.gpu.model);
    facts->set_uuid(reading.gpu.uuid);
    facts->set_memory_bytes(reading.gpu.memory_bytes);
    facts->set_driver(options.gpus.driver);
    facts->set_nccl(options.nccl);
    if (reading.fault.has_value()) facts->set_fault(reading.fault->text);
  }
  hello.set_cores(options.cores);
  hello.set_memory_bytes(MachineMemoryBytes());
  // A run whose end the coordinator may have missed counts as running until it is told again.
  for (const v1::RunId& run : runs.Running(/*ended=*/true)) *hello.add_running() = run;
  hello.set_highest_attempt_seen(runs.highest_attempt());
  return hello;
}

v1::AgentHeartbeat MakeHeartbeat(RunManager& runs, const GpuMonitor& gpus) {
  v1::AgentHeartbeat heartbeat = runs.Heartbeat();
  const std::vector<GpuReading> readings = gpus.Readings();
  for (size_t i = 0; i < readings.size(); ++i) {
    if (!readings[i].fault.has_value()) continue;
    v1::DeviceFault* fault = heartbeat.add_device_faults();
    fault->set_device(static_cast<int>(i));
    fault->set_fault(readings[i].fault->text);
    fault->set_ends_runs(readings[i].fault->ends_runs);
  }
  return heartbeat;
}

// When the node will have left, in seconds of the steady clock; 0 while it stays.
using LeavingAt = std::atomic<double>;

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

v1::AgentMessage MakeLeaving(double at) {
  v1::AgentMessage message;
  message.mutable_leaving()->set_grace_seconds(std::max(0.0, at - SteadySeconds()));
  return message;
}

// gRPC does not say which certificate is refused, nor why.
std::string Explain(const Flags& flags, const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return status.error_message();
  const absl::Status refused = DiagnoseTls(flags.coordinator, flags.tls);
  return refused.ok() ? status.error_message() : std::string(refused.message());
}

void StartLink(NodeLink& link, const Flags& flags, const Addresses& addresses,
               const AgentStore& store, SnapshotStore& snapshots, RunManager& runs,
               const GpuMonitor& gpus, const LeavingAt& leaving_at) {
  const AgentOptions& options = flags.agent;
  NodeLink::Callbacks callbacks;
  callbacks.explain = [&flags](const grpc::Status& status) { return Explain(flags, status); };
  callbacks.hello = [&options, addresses, &store, &runs, &gpus] {
    return MakeHello(options, addresses, store.spool_id(), runs, gpus);
  };
  callbacks.heartbeat = [&runs, &gpus] { return MakeHeartbeat(runs, gpus); };
  callbacks.on_message = [&link, &snapshots, &runs](const v1::CoordinatorMessage& message) {
    if (message.has_drop_snapshots()) return snapshots.Drop(message.drop_snapshots().job_id());
    const std::string& fault = message.inject_fault().fault();
    if (fault == "kill-agent") {
      raise(SIGKILL);
    } else if (fault == "partition-node") {
      link.StayAway(message.inject_fault().seconds());
    } else {
      runs.Handle(message);
    }
  };
  callbacks.said_first = [&leaving_at, &snapshots] {
    std::vector<v1::AgentMessage> messages(1);
    *messages.front().mutable_snapshots_held() = snapshots.Held();
    if (leaving_at > 0) messages.push_back(MakeLeaving(leaving_at));
    return messages;
  };
  link.Start(std::move(callbacks));
}

// Of the signals that end an agent, one that has come, 0 when none has.
int TakeSignal() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, kLeaveTrainers}) sigaddset(&set, signal);
  const timespec now = {};
  return std::max(0, sigtimedwait(&set, nullptr, &now));
}

// Names and addresses at which trainers of other nodes find copies of snapshots.
std::vector<std::string> HostsOf(const Flags& flags) {
  std::vector<std::string> hosts = {flags.agent.data_address};
  const size_t colon = flags.snapshot_listen.rfind(':');
  if (colon != std::string::npos) hosts.push_back(flags.snapshot_listen.substr(0, colon));
  if (const std::string own = HostName(); AlternativeName(own).ok()) hosts.push_back(own);
  hosts.erase(std::remove(hosts.begin(), hosts.end(), ""), hosts.end());
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  return hosts;
}

Membership::Options MembershipOptions(const Flags& flags) {
  Membership::Options options;
  options.coordinator = flags.coordinator;
  options.enroll = flags.enroll;
  options.state_dir = flags.agent.state_dir;
  options.node = flags.agent.node;
  options.join_token_file = flags.join_token_file;
  options.tls = flags.tls;
  options.hosts = HostsOf(flags);
  options.trainer_user = flags.agent.trainer_user;
  return options;
}

absl::Status CheckFlags(const Flags& flags) {
  const bool tls = Membership::HasMeans(MembershipOptions(flags));
  for (const auto& [flag, address] : {std::pair{"--metrics-listen", flags.metrics_listen},
                                      std::pair{"--coordinator", flags.coordinator}}) {
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

// What the flags leave open.
absl::Status FillIn(Flags& flags) {
  TERCIO_RETURN_IF_ERROR(ChooseDevice(flags.device, &flags.agent));
  if (access(flags.agent.trainer.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("the trainer program ", flags.agent.trainer,
                                            " is missing; name it with --trainer"));
  }
  if (flags.agent.data_address.empty()) {
    TERCIO_ASSIGN_OR_RETURN(flags.agent.data_address, AddressTowards(flags.coordinator));
  }
  // With its parent goes the coordinator, too: there is nobody to move jobs elsewhere.
  if (flags.parent_death) flags.stop_grace_seconds = kKillSeconds;
  return absl::OkStatus();
}

// Trainers stream checkpoints to the coordinator themselves.
void UseIdentity(const Membership& membership, Flags& flags) {
  flags.identity = membership.identity();
  if (flags.identity == nullptr) return;
  flags.tls = flags.identity->files();
  const TlsFiles files = membership.TrainerFiles();
  flags.agent.trainer_environment = {"TERCIO_TLS_CERT=" + files.certificate,
                                     "TERCIO_TLS_KEY=" + files.key,
                                     "TERCIO_TLS_CA=" + files.authority};
}

// What jobs may do to this node. Where strangers can reach the coordinator nothing may be read that
// was not named; `tercio run`, and a coordinator on loopback, are their user's own.
absl::Status SetBounds(Flags& flags) {
  const bool open_to_others = Membership::HasMeans(MembershipOptions(flags)) && !flags.parent_death;
  if (open_to_others || !flags.data_roots.empty()) {
    TERCIO_ASSIGN_OR_RETURN(flags.agent.allowed, AllowedPaths::Under(flags.data_roots));
    if (flags.data_roots.empty()) {
      LogWarning("no --data-root is given: jobs can read nothing on this node");
    }
  }
  if (!open_to_others && flags.trainer_user.empty()) return absl::OkStatus();
  TERCIO_ASSIGN_OR_RETURN(flags.agent.trainer_user, FindTrainerUser(flags.trainer_user));
  if (!flags.agent.trainer_user.has_value()) {
    if (geteuid() == 0) LogWarning("trainers run as root; --trainer-user NAME makes them NAME's");
    return absl::OkStatus();
  }
  // What is a secret has a mode of its own.
  umask(022);
  if (RuntimeParent() != "/tmp") TERCIO_RETURN_IF_ERROR(LetPass(RuntimeParent()));
  return LetPass(flags.agent.state_dir);
}

// CANCELLED: asked to stop before somebody has let it in.
absl::StatusOr<std::unique_ptr<Membership>> JoinCluster(Flags& flags) {
  TERCIO_RETURN_IF_ERROR(SetBounds(flags));
  TERCIO_ASSIGN_OR_RETURN(auto membership, Membership::Join(MembershipOptions(flags),
                                                            [] { return TakeSignal() != 0; }));
  UseIdentity(*membership, flags);
  return membership;
}

absl::StatusOr<std::unique_ptr<FileLock>> LockState(const std::string& directory) {
  TERCIO_RETURN_IF_ERROR(MakeDirectories(directory));
  auto lock = FileLock::Acquire(directory + "/lock", /*wait=*/false);
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("another agent uses the state directory ", directory,
                     "; give each agent a --state-dir of its own"));
  }
  return lock;
}

// Says that the node goes, so that its jobs save and leave, and stops what is there in the end. A
// second signal ends the waiting.
void StopRuns(double grace_seconds, RunManager& runs, NodeLink& link, LeavingAt& leaving_at) {
  leaving_at = SteadySeconds() + grace_seconds;
  link.Say(MakeLeaving(leaving_at));
  runs.WaitForEnds(absl::Seconds(grace_seconds - kKillSeconds), [] { return TakeSignal() != 0; });
  runs.StopAll(absl::Seconds(std::min(grace_seconds, kKillSeconds)));
  link.Drain(1);
}

SnapshotStore::Options SnapshotOptions(const Flags& flags, NodeLink& link, AgentMetrics& metrics) {
  SnapshotStore::Options options;
  options.reserve_bytes = flags.snapshot_reserve;
  options.available_bytes = AvailableMemoryBytes;
  options.on_held = [&link](v1::SnapshotsHeld held) {
    v1::AgentMessage message;
    *message.mutable_snapshots_held() = std::move(held);
    link.Say(std::move(message));
  };
  options.on_bytes = [&metrics](int64_t bytes) { metrics.SetSnapshotBytes(bytes); };
  return options;
}

// On the port that the agent before this one had, if it is free: trainers that it has left here and
// elsewhere know no other.
absl::StatusOr<std::unique_ptr<SnapshotServer>> ServeOnTheSamePort(const Flags& flags,
                                                                   const std::string& host,
                                                                   SnapshotServiceImpl& service) {
  const std::string path = flags.agent.state_dir + "/snapshot.port";
  const absl::StatusOr<std::string> last = ReadFile(path);
  int port = 0;
  if (last.ok() && absl::SimpleAtoi(*last, &port) && port > 0 && port < 65536) {
    auto server = SnapshotServer::Listen(absl::StrCat(host, ":", port), flags.identity, service);
    if (server.ok()) return server;
  }
  auto server = SnapshotServer::Listen(absl::StrCat(host, ":0"), flags.identity, service);
  if (!server.ok()) return server;
  const std::string& address = (*server)->address();
  const absl::Status kept = WriteFileDurably(path, address.substr(address.rfind(':') + 1));
  if (!kept.ok()) LogWarning(std::string(kept.message()));
  return server;
}

// Null when other nodes cannot be served without showing them the weights in plain text: then this
// node keeps only copies of its own ranks.
absl::StatusOr<std::unique_ptr<SnapshotServer>> ServeSnapshots(const Flags& flags,
                                                               SnapshotServiceImpl& service) {
  const bool given = !flags.snapshot_listen.empty();
  const bool six = flags.agent.data_address.find(':') != std::string::npos;
  const std::string host = absl::StrCat(six ? "[" : "", flags.agent.data_address, six ? "]" : "");
  if (IsLoopback(given ? flags.snapshot_listen : host + ":0") || flags.tls.given()) {
    return given ? SnapshotServer::Listen(flags.snapshot_listen, flags.identity, service)
                 : ServeOnTheSamePort(flags, host, service);
  }
  if (given) {
    return absl::InvalidArgumentError(absl::StrCat("--snapshot-listen ", flags.snapshot_listen,
                                                   " is not loopback: TLS files are required"));
  }
  LogWarning("without TLS files no copies of snapshots are exchanged with other nodes");
  return std::unique_ptr<SnapshotServer>();
}

AgentMetricsOptions MetricsOf(const Flags& flags) {
  return {absl::Seconds(flags.metrics_linger_seconds), flags.agent.state_dir, flags.tls.certificate,
          flags.tls.authority};
}

void ShowSources(const Flags& flags, NodeLink& link, AgentStore& store, GpuMonitor& gpus,
                 AgentMetrics& metrics) {
  AgentSources sources;
  sources.connected = [&link] { return link.connected(); };
  sources.spool_bytes = [&store] { return store.SpoolBytes(); };
  if (!flags.agent.gpus.list.empty()) {
    sources.gpus = [&gpus] { return gpus.Readings(); };
    sources.gpu_driver = flags.agent.gpus.driver;
  }
  metrics.Show(std::move(sources));
}

GpuMonitor::Options MonitorOptions(const Flags& flags) {
  GpuMonitor::Options options;
  options.gpus = flags.agent.gpus;
  options.unusable = flags.agent.gpus_unusable;
  options.shared = flags.agent.slots > static_cast<int>(flags.agent.gpus.list.size());
  options.others_bytes = flags.gpu_others;
  options.interval = absl::Seconds(flags.gpu_interval_seconds);
  return options;
}

// What is wrong with GPUs is said at once, so that it is heard before the ends of their ranks.
void StartMonitor(GpuMonitor& gpus, NodeLink& link, RunManager& runs) {
  GpuMonitor::Callbacks callbacks;
  callbacks.in_use = [&runs] { return runs.GpusInUse(); };
  callbacks.on_change = [&gpus, &link, &runs] {
    for (const GpuReading& reading : gpus.Readings()) {
      if (!reading.fault.has_value()) continue;
      LogWarning(absl::StrCat("GPU ", reading.gpu.index, " takes no ranks: ", reading.fault->text));
    }
    v1::AgentMessage message;
    *message.mutable_heartbeat() = MakeHeartbeat(runs, gpus);
    link.Say(std::move(message));
  };
  gpus.Start(std::move(callbacks));
  gpus.Look(kFirstLookPatience);
}

// What the first thread does beside the agent itself.
struct Lifecycle {
  std::vector<int> stop_signals;
  ServiceManager manager;
  // Reads the settings again. The exit code, and *done, as ParseFlags has them.
  std::function<int(Flags* fresh, bool* done)> read_flags;
};

// SIGHUP: what can change while the agent runs, does; a file with faults changes nothing.
void Reload(const Lifecycle& life, Flags* flags, SnapshotStore& snapshots) {
  Flags fresh;
  bool done = false;
  if (life.read_flags(&fresh, &done) != kExitOk || done) {
    LogError("the configuration has faults (above): the one before stays in use");
    return;
  }
  flags->stop_grace_seconds = fresh.stop_grace_seconds;
  snapshots.SetReserve(fresh.snapshot_reserve);
  LogReload(flags->settings, fresh.settings, LiveFlags());
  for (const std::string& name : LiveFlags()) flags->settings[name] = fresh.settings[name];
}

// Until a signal ends the agent, which it returns.
int Live(const Lifecycle& life, Flags* flags, NodeLink& link, RunManager& runs,
         SnapshotStore& snapshots, HealthServer* health) {
  DaemonLoop loop;
  loop.rounds = [&] { return runs.rounds(); };
  loop.ready = [&] { return link.connected(); };
  loop.status = [&] {
    return absl::StrCat("node ", flags->agent.node, ", ", runs.Running(/*ended=*/false).size(),
                        " runs, coordinator ", flags->coordinator,
                        link.connected() ? "" : " is away");
  };
  loop.reload = [&] { Reload(life, flags, snapshots); };
  if (health != nullptr) {
    loop.health = [&](bool alive, bool ready) { health->Set(alive, ready); };
  }
  loop.stop_signals = life.stop_signals;
  return RunDaemonLoop(life.manager, loop);
}

// What runs want to know of the GPUs. The monitor outlives the options.
void AskGpus(GpuMonitor& gpus, AgentOptions* options) {
  options->gpu_utilization = [&gpus] {
    std::vector<std::optional<double>> all;
    for (const GpuReading& reading : gpus.Readings()) {
      all.push_back(reading.sample.has_value() ? reading.sample->utilization_ratio : std::nullopt);
    }
    return all;
  };
  options->gpu_trouble = [&gpus](int gpu) {
    return gpus.TroubleOf(gpu, kTroubleWindow, kTroublePatience);
  };
}

// Where trainers find the agent, and leave their progress.
absl::Status PrepareRuntime(AgentStore& store, AgentOptions* agent) {
  TERCIO_ASSIGN_OR_RETURN(agent->runtime_dir, OpenRuntimeDirectory(store, RuntimeParent()));
  agent->socket = agent->runtime_dir + "/agent.sock";
  if (!agent->trainer_user.has_value()) return absl::OkStatus();
  return GiveTo(*agent->trainer_user, agent->runtime_dir);
}

absl::Status RunAgent(Flags flags, const Lifecycle& life) {
  TERCIO_RETURN_IF_ERROR(CheckFlags(flags));
  TERCIO_ASSIGN_OR_RETURN(const auto lock, LockState(flags.agent.state_dir));
  TERCIO_RETURN_IF_ERROR(FillIn(flags));
  const auto membership = JoinCluster(flags);
  if (absl::IsCancelled(membership.status())) return absl::OkStatus();
  TERCIO_RETURN_IF_ERROR(membership.status());
  GpuMonitor gpus(MonitorOptions(flags));  // before whoever asks it
  TERCIO_ASSIGN_OR_RETURN(const auto metrics,
                          AgentMetrics::Serve(flags.metrics_listen, MetricsOf(flags)));
  TERCIO_ASSIGN_OR_RETURN(const auto health, HealthServer::Listen(flags.health_listen));
  TERCIO_ASSIGN_OR_RETURN(const auto channel, OpenChannel(flags.coordinator, flags.tls));
  (*membership)->KeepUp(channel);
  TERCIO_ASSIGN_OR_RETURN(const auto store,
                          AgentStore::Open(flags.agent.state_dir + "/agent.db", flags.spool_bytes));
  TERCIO_RETURN_IF_ERROR(PrepareRuntime(*store, &flags.agent));

  LeavingAt leaving_at = 0;
  if (!flags.agent.gpus.list.empty()) AskGpus(gpus, &flags.agent);
  // The link's callbacks, which use the runs, end before those.
  NodeLink link(channel, *store);
  ShowSources(flags, link, *store, gpus, *metrics);
  const absl::Cleanup hide_sources = [&metrics] { metrics->Show({}); };
  SnapshotStore snapshots(SnapshotOptions(flags, link, *metrics));
  RunManager runs(flags.agent, *metrics, *store,
                  [&link](v1::AgentMessage message) { link.Say(std::move(message)); });
  const auto takes_part = [&runs](const v1::RunId& run, const std::string& token) {
    return runs.TakesPart(run, token);
  };
  SnapshotServiceImpl for_trainers(snapshots, takes_part);
  SnapshotServiceImpl for_nodes(snapshots, takes_part);
  const absl::Cleanup stop_link = [&link] { link.Stop(); };
  runs.Restore();
  const auto server = TrainerServer::Listen(flags.agent.socket, runs, link.stub(), for_trainers);
  if (server.ok() && flags.agent.trainer_user.has_value()) {
    TERCIO_RETURN_IF_ERROR(GiveTo(*flags.agent.trainer_user, flags.agent.socket));
  }
  const auto snapshot_server = ServeSnapshots(flags, for_nodes);
  for (const absl::Status& status : {server.status(), snapshot_server.status()}) {
    if (status.ok()) continue;
    runs.Leave();
    return status;
  }
  const Addresses addresses = {metrics->address(),
                               *snapshot_server == nullptr ? "" : (*snapshot_server)->address()};
  const absl::Cleanup stop_monitor = [&gpus] { gpus.Stop(); };
  if (!flags.agent.gpus.list.empty()) StartMonitor(gpus, link, runs);
  StartLink(link, flags, addresses, *store, snapshots, runs, gpus, leaving_at);
  std::printf(
      "ready agent=%s coordinator=%s metrics=%s%s%s\n", flags.agent.node.c_str(),
      flags.coordinator.c_str(), metrics->address().c_str(),
      health == nullptr ? "" : " health=", health == nullptr ? "" : health->address().c_str());
  std::fflush(stdout);
  const int signal = Live(life, &flags, link, runs, snapshots, health.get());
  if (signal == kLeaveTrainers) {
    LogInfo("leaving the trainers to the agent that is started next");
    runs.Leave();
    return absl::OkStatus();
  }
  LogInfo(absl::StrCat("signal ", signal, ": stopping"));
  StopRuns(flags.stop_grace_seconds, runs, link, leaving_at);
  RemoveRuntimeDirectory(*store, flags.agent.runtime_dir);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tercio

int main(int argc, char** argv) {
  tercio::Lifecycle life;
  life.stop_signals = tercio::BlockDaemonSignals({tercio::kLeaveTrainers});
  tercio::KeepFreedMemory();
  tercio::RaiseFileLimit();
  tercio::Flags flags;
  bool done = false;
  const int code = tercio::ParseFlags(argc, argv, &flags, &done);
  if (done || code != tercio::kExitOk) return code;
  if (flags.parent_death) tercio::DieWithParent();
  tercio::InitLogging("agent");
  life.manager = tercio::ServiceManager::FromEnvironment();
  life.read_flags = [argc, argv](tercio::Flags* fresh, bool* ended) {
    return tercio::ParseFlags(argc, argv, fresh, ended);
  };
  const absl::Status status = tercio::RunAgent(std::move(flags), life);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return tercio::ExitCodeOf(status);
}
