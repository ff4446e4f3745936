// tercio-agent: one per node. Starts, watches and stops trainers; exports their figures.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/daemon/daemon.h"
#include "common/daemon/daemon_flags.h"
#include "common/daemon/daemon_loop.h"
#include "common/daemon/health_server.h"
#include "common/daemon/service_manager.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/host_port.h"
#include "common/log.h"
#include "common/machine.h"
#include "common/security/certificate.h"
#include "common/security/channel.h"
#include "common/security/tls_diagnosis.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "worker/agent/agent_flags.h"
#include "worker/agent/agent_metrics.h"
#include "worker/agent/gpus/gpu_monitor.h"
#include "worker/agent/link/agent_store.h"
#include "worker/agent/link/departure.h"
#include "worker/agent/link/node_link.h"
#include "worker/agent/node_setup.h"
#include "worker/agent/runs/run_manager.h"
#include "worker/agent/runs/runtime_directory.h"
#include "worker/agent/runs/trainer_server.h"
#include "worker/agent/snapshots/snapshot_server.h"
#include "worker/agent/snapshots/snapshot_store.h"

namespace tercio::agent {
namespace {

// For the first look at the GPUs, before they are reported to the coordinator.
constexpr absl::Duration kFirstLookPatience = absl::Seconds(10);
// After a rank has failed: how far back the driver's reports about its GPU count, and how long the
// driver may take to answer.
constexpr absl::Duration kTroubleWindow = absl::Seconds(60);
constexpr absl::Duration kTroublePatience = absl::Seconds(2);
// Ends the agent without its trainers, for the next agent to adopt.
constexpr int kLeaveTrainers = SIGUSR1;

// Addresses at which others reach this agent.
struct Addresses {
  std::string metrics;
  std::string snapshots;  // empty: not served
};

v1::AgentHello MakeHello(const AgentOptions& options, const Addresses& addresses,
                         const std::string& spool_id, const RunManager& runs,
                         const GpuMonitor& gpus) {
  v1::AgentHello hello;
  // The numbers of messages only mean something together with the spool that they are from.
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
  // A run whose end the coordinator may have missed counts as running until it is reported again.
  for (const v1::RunId& run : runs.Running(EndedRuns::kInclude)) *hello.add_running() = run;
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

// gRPC does not say which certificate is refused, nor why.
std::string Explain(const AgentFlags& flags, const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return status.error_message();
  const absl::Status refused = DiagnoseTls(flags.agent.coordinator, flags.tls);
  return refused.ok() ? status.error_message() : std::string(refused.message());
}

// The components that coordinator messages are dispatched to and that heartbeats report on.
struct LinkEnds {
  const AgentStore& store;
  SnapshotStore& snapshots;
  SnapshotServiceImpl& for_nodes;
  RunManager& runs;
  const GpuMonitor& gpus;
  const Departure& departure;
};

void StartLink(NodeLink& link, const AgentFlags& flags, const Addresses& addresses,
               const LinkEnds& ends) {
  const AgentOptions& options = flags.agent;
  NodeLink::Callbacks callbacks;
  callbacks.explain = [&flags](const grpc::Status& status) { return Explain(flags, status); };
  callbacks.hello = [&options, addresses, ends] {
    return MakeHello(options, addresses, ends.store.spool_id(), ends.runs, ends.gpus);
  };
  callbacks.heartbeat = [ends] { return MakeHeartbeat(ends.runs, ends.gpus); };
  callbacks.on_message = [&link, ends](const v1::CoordinatorMessage& message) {
    if (message.has_drop_snapshots()) {
      return ends.snapshots.Drop(message.drop_snapshots().job_id());
    }
    if (message.has_revoked_certificates()) {
      return ends.for_nodes.Revoke(message.revoked_certificates());
    }
    const std::string& fault = message.inject_fault().fault();
    // These two strike the agent itself; the runs carry out drills of trainers.
    if (fault == "kill-agent") {
      raise(SIGKILL);
    } else if (fault == "partition-node") {
      link.StayAway(message.inject_fault().seconds());
    } else {
      ends.runs.Handle(message);
    }
  };
  // The coordinator takes both as facts of the connection, so each new one hears them again.
  callbacks.said_first = [ends] {
    std::vector<v1::AgentMessage> messages(1);
    *messages.front().mutable_snapshots_held() = ends.snapshots.Inventory();
    std::optional<v1::AgentMessage> leaving = ends.departure.Message();
    if (leaving.has_value()) messages.push_back(*std::move(leaving));
    return messages;
  };
  link.Start(std::move(callbacks));
}

// Returns a pending signal that ends an agent, or 0.
int TakeSignal() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, kLeaveTrainers}) sigaddset(&set, signal);
  // Signals are blocked in all threads, so one that has come waits here.
  const timespec now = {};
  return std::max(0, sigtimedwait(&set, nullptr, &now));
}

SnapshotStore::Options SnapshotOptions(const AgentFlags& flags, NodeLink& link,
                                       AgentMetrics& metrics) {
  SnapshotStore::Options options;
  options.reserve_bytes = flags.snapshot_reserve;
  options.available_bytes = AvailableMemoryBytes;
  // What is lost here with a connection is part of the inventory that begins the next one.
  options.on_held = [&link](v1::SnapshotsHeld held) {
    v1::AgentMessage message;
    *message.mutable_snapshots_held() = std::move(held);
    link.Send(std::move(message));
  };
  options.on_bytes = [&metrics](int64_t bytes) { metrics.SetSnapshotBytes(bytes); };
  return options;
}

// Uses the port of the previous agent if it is free: trainers that it left here and elsewhere know
// no other.
absl::StatusOr<std::unique_ptr<SnapshotServer>> ServeOnTheSamePort(const AgentFlags& flags,
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
  // Without the file the next agent gets another port, and some trainers send their copies in vain.
  const absl::Status kept = WriteFileDurably(path, address.substr(address.rfind(':') + 1));
  if (!kept.ok()) LogWarning(std::string(kept.message()));
  return server;
}

// Null when other nodes cannot be served without showing them the weights in plain text: then this
// node keeps only copies of its own ranks.
absl::StatusOr<std::unique_ptr<SnapshotServer>> ServeSnapshots(const AgentFlags& flags,
                                                               SnapshotServiceImpl& service) {
  const bool given = !flags.snapshot_listen.empty();
  // Only an IPv6 address has a colon, and needs brackets in front of a port.
  const bool six = flags.agent.data_address.find(':') != std::string::npos;
  const std::string host = absl::StrCat(six ? "[" : "", flags.agent.data_address, six ? "]" : "");
  if (IsLoopback(given ? flags.snapshot_listen : host + ":0") || flags.tls.given()) {
    return given ? SnapshotServer::Listen(flags.snapshot_listen, flags.identity, service)
                 : ServeOnTheSamePort(flags, host, service);
  }
  // What was asked for in so many words fails; the default only does without.
  if (given) {
    return absl::InvalidArgumentError(absl::StrCat("--snapshot-listen ", flags.snapshot_listen,
                                                   " is not loopback: TLS files are required"));
  }
  LogWarning(
      "copies of snapshots are not exchanged with other nodes, since there are no TLS files");
  return std::unique_ptr<SnapshotServer>();
}

AgentMetricsOptions MetricsOf(const AgentFlags& flags) {
  return {absl::Seconds(flags.metrics_linger_seconds), flags.agent.state_dir, flags.tls.certificate,
          flags.tls.authority};
}

void ShowSources(const AgentFlags& flags, NodeLink& link, AgentStore& store, GpuMonitor& gpus,
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

GpuMonitor::Options MonitorOptions(const AgentFlags& flags) {
  GpuMonitor::Options options;
  options.gpus = flags.agent.gpus;
  options.unusable = flags.agent.gpus_unusable;
  options.shared = flags.agent.slots > static_cast<int>(flags.agent.gpus.list.size());
  options.others_bytes = flags.gpu_others;
  options.interval = absl::Seconds(flags.gpu_interval_seconds);
  return options;
}

// Reports GPU faults immediately, so that they arrive before the ends of their ranks.
void StartMonitor(GpuMonitor& gpus, NodeLink& link, RunManager& runs) {
  GpuMonitor::Callbacks callbacks;
  callbacks.in_use = [&runs] { return runs.GpusInUse(); };
  callbacks.on_change = [&gpus, &link, &runs] {
    for (const GpuReading& reading : gpus.Readings()) {
      if (!reading.fault.has_value()) continue;
      LogWarning(absl::StrCat("GPU ", reading.gpu.index, " takes no ranks: ", reading.fault->text));
    }
    v1::AgentMessage message;
    // Heartbeats carry faults, so this is one out of turn.
    *message.mutable_heartbeat() = MakeHeartbeat(runs, gpus);
    link.Send(std::move(message));
  };
  gpus.Start(std::move(callbacks));
  // The first hello reports the GPUs, so their faults should be known by then.
  gpus.Look(kFirstLookPatience);
}

// The duties of the main thread beside the agent itself.
struct Lifecycle {
  std::vector<int> stop_signals;
  ServiceManager manager;
  // Reads the settings again. Returns the exit code and sets *done as ParseAgentFlags does.
  std::function<int(AgentFlags* fresh, bool* done)> read_flags;
};

// On SIGHUP: applies the settings that can change while the agent runs; a file with errors changes
// nothing.
void Reload(const Lifecycle& life, AgentFlags* flags, SnapshotStore& snapshots) {
  AgentFlags fresh;
  bool done = false;
  if (life.read_flags(&fresh, &done) != kExitOk || done) {
    LogError("the configuration has errors (above); the previous one stays in use");
    return;
  }
  flags->stop_grace_seconds = fresh.stop_grace_seconds;
  snapshots.SetReserve(fresh.snapshot_reserve);
  LogReload(flags->settings, fresh.settings, LiveAgentFlags());
  for (const std::string& name : LiveAgentFlags()) flags->settings[name] = fresh.settings[name];
}

// Runs until a signal ends the agent, and returns that signal.
int Live(const Lifecycle& life, AgentFlags* flags, NodeLink& link, RunManager& runs,
         SnapshotStore& snapshots, Departure& departure, HealthServer* health) {
  DaemonLoop loop;
  // A housekeeper that makes no rounds stops the watchdog's beats, and systemd restarts the agent.
  loop.rounds = [&] { return runs.rounds(); };
  loop.ready = [&] { return link.connected() && !departure.begun(); };
  loop.status = [&] {
    return absl::StrCat("node ", flags->agent.node, ", ", runs.Running(EndedRuns::kLeaveOut).size(),
                        " runs, coordinator ", flags->agent.coordinator,
                        link.connected() ? "" : " is away", departure.begun() ? ", leaving" : "");
  };
  loop.each_beat = [&] { departure.Look(); };
  loop.other_signals[Departure::kSignal] = [&] {
    LogInfo("asked to leave: this node's jobs save and move to other nodes");
    departure.Begin(flags->stop_grace_seconds);
  };
  loop.reload = [&] { Reload(life, flags, snapshots); };
  if (health != nullptr) {
    loop.health = [&](bool alive, bool ready) { health->Set({alive, ready}); };
  }
  loop.stop_signals = life.stop_signals;
  return RunDaemonLoop(life.manager, loop);
}

// Gives the runs access to the GPUs' readings. The monitor outlives the options.
void AskGpus(GpuMonitor& gpus, AgentOptions* options) {
  options->gpu_utilization = [&gpus] {
    std::vector<std::optional<double>> all;
    for (const GpuReading& reading : gpus.Readings()) {
      // Every GPU has an entry, since places in this list are those of the options' list.
      all.push_back(reading.sample.has_value() ? reading.sample->utilization_ratio : std::nullopt);
    }
    return all;
  };
  options->gpu_trouble = [&gpus](int gpu) {
    return gpus.TroubleOf(gpu, kTroubleWindow, kTroublePatience);
  };
}

absl::Status Leave(const AgentFlags& flags) {
  if (flags.agent.state_dir.empty()) {
    return absl::InvalidArgumentError(
        "--leave requires the --state-dir of the agent that is to leave");
  }
  return AskToLeave(flags.agent.state_dir, [] { return TakeSignal() != 0; });
}

absl::Status RunAgent(AgentFlags flags, const Lifecycle& life) {
  TERCIO_RETURN_IF_ERROR(CheckFlags(flags));
  TERCIO_ASSIGN_OR_RETURN(const auto lock, LockState(flags.agent.state_dir));
  TERCIO_RETURN_IF_ERROR(FillIn(flags));
  const auto membership = JoinCluster(flags, [] { return TakeSignal() != 0; });
  if (absl::IsCancelled(membership.status())) return absl::OkStatus();
  TERCIO_RETURN_IF_ERROR(membership.status());
  GpuMonitor gpus(MonitorOptions(flags));  // outlives its users
  TERCIO_ASSIGN_OR_RETURN(const auto metrics,
                          AgentMetrics::Serve(flags.metrics_listen, MetricsOf(flags)));
  TERCIO_ASSIGN_OR_RETURN(const auto health, HealthServer::Listen(flags.health_listen));
  TERCIO_ASSIGN_OR_RETURN(const auto channel, OpenChannel(flags.agent.coordinator, flags.tls));
  (*membership)->KeepUp(channel);
  TERCIO_ASSIGN_OR_RETURN(const auto store,
                          AgentStore::Open(flags.agent.state_dir + "/agent.db", flags.spool_bytes));
  TERCIO_RETURN_IF_ERROR(PrepareRuntime(*store, &flags.agent));

  if (!flags.agent.gpus.list.empty()) AskGpus(gpus, &flags.agent);
  // The link's callbacks use the runs, so the link ends before them.
  NodeLink link(channel, *store);
  ShowSources(flags, link, *store, gpus, *metrics);
  const absl::Cleanup hide_sources = [&metrics] { metrics->Show({}); };
  SnapshotStore snapshots(SnapshotOptions(flags, link, *metrics));
  RunManager runs(flags.agent, *metrics, *store,
                  [&link](v1::AgentMessage message) { link.Send(std::move(message)); });
  Departure departure(link, runs, flags.agent.state_dir);
  const auto takes_part = [&runs](const v1::RunId& run, const std::string& token) {
    return runs.TakesPart(run, token);
  };
  SnapshotServiceImpl for_trainers(snapshots, takes_part);
  SnapshotServiceImpl for_nodes(snapshots, takes_part);
  const absl::Cleanup stop_link = [&link] { link.Stop(); };
  // Trainers of the previous agent connect as soon as the socket is there: they must be known.
  runs.Restore();
  const auto server = TrainerServer::Listen(flags.agent.socket, runs, link.stub(), for_trainers);
  const absl::Status given = server.ok() && flags.agent.trainer_user.has_value()
                                 ? GiveTo(*flags.agent.trainer_user, flags.agent.socket)
                                 : absl::OkStatus();
  const auto snapshot_server = ServeSnapshots(flags, for_nodes);
  for (const absl::Status& status : {server.status(), given, snapshot_server.status()}) {
    if (status.ok()) continue;
    runs.Leave();
    return status;
  }
  const std::string& host = flags.agent.data_address;
  const Addresses addresses = {
      ReachableAt(metrics->address(), host),
      *snapshot_server == nullptr ? "" : ReachableAt((*snapshot_server)->address(), host)};
  const absl::Cleanup stop_monitor = [&gpus] { gpus.Stop(); };
  if (!flags.agent.gpus.list.empty()) StartMonitor(gpus, link, runs);
  const absl::Status announced = departure.Announce();
  if (!announced.ok()) LogWarning(std::string(announced.message()));
  StartLink(link, flags, addresses, {*store, snapshots, for_nodes, runs, gpus, departure});
  std::printf(
      "ready agent=%s coordinator=%s metrics=%s%s%s\n", flags.agent.node.c_str(),
      flags.agent.coordinator.c_str(), metrics->address().c_str(),
      health == nullptr ? "" : " health=", health == nullptr ? "" : health->address().c_str());
  std::fflush(stdout);
  const int signal = Live(life, &flags, link, runs, snapshots, departure, health.get());
  if (signal == kLeaveTrainers) {
    LogInfo("leaving the trainers running for the next agent");
    runs.Leave();
    return absl::OkStatus();
  }
  LogInfo(absl::StrCat("signal ", signal, ": stopping"));
  // A second signal ends the waiting.
  departure.Finish(flags.stop_grace_seconds, [] { return TakeSignal() != 0; });
  RemoveRuntimeDirectory(*store, flags.agent.runtime_dir);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tercio::agent

int main(int argc, char** argv) {
  tercio::HoldStandardStreams();
  tercio::agent::Lifecycle life;
  // This comes before the first thread: threads inherit
  // the mask, and none must be killed by a signal.
  life.stop_signals = tercio::BlockDaemonSignals({tercio::agent::kLeaveTrainers},
                                                 {tercio::agent::Departure::kSignal});
  tercio::KeepFreedMemory();
  tercio::RaiseFileLimit();
  tercio::agent::AgentFlags flags;
  bool done = false;
  const int code = tercio::agent::ParseAgentFlags(argc, argv, &flags, &done);
  if (done || code != tercio::kExitOk) return code;
  if (flags.parent_death) tercio::DieWithParent();
  tercio::InitLogging("agent");
  tercio::SetLogContext({{"node", flags.agent.node}});
  life.manager = tercio::ServiceManager::FromEnvironment();
  life.read_flags = [argc, argv](tercio::agent::AgentFlags* fresh, bool* ended) {
    return tercio::agent::ParseAgentFlags(argc, argv, fresh, ended);
  };
  const absl::Status status =
      flags.leave ? tercio::agent::Leave(flags) : tercio::agent::RunAgent(std::move(flags), life);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  if (absl::IsCancelled(status)) return tercio::kExitInterrupted;
  return tercio::ExitCodeOf(status);
}
