// tercio-coordinator: one per cluster. Plans jobs, assigns ranks, takes in checkpoints, restarts
// what breaks.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "common/channel.h"
#include "common/daemon.h"
#include "common/daemon_flags.h"
#include "common/daemon_loop.h"
#include "common/file.h"
#include "common/health_server.h"
#include "common/log.h"
#include "common/service_manager.h"
#include "common/status_macros.h"
#include "coordinator/access/access.h"
#include "coordinator/access_commands.h"
#include "coordinator/planner/elastic.h"
#include "coordinator/planner/planner.h"
#include "coordinator/service/admission.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/coordinator_metrics.h"
#include "coordinator/service/guarded_services.h"
#include "coordinator/service/node_service.h"
#include "coordinator/service/rpc_metrics.h"
#include "coordinator/service/stream_hub.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server_builder.h"

namespace tercio::coordinator {
namespace {

struct Flags {
  std::string state_dir;
  std::string listen = "127.0.0.1:7077";
  std::string metrics_listen = "127.0.0.1:9464";
  std::string health_listen;
  double heartbeat_interval = 5;
  double metrics_linger = 60;
  double first_backoff = 1;
  TlsFiles tls = TlsFromEnvironment();
  std::string enroll_listen;
  std::string default_role = "admin";
  double certificate_life = 30 * 86400.0;
  bool allow_drills = false;
  int max_streams = 256;
  double stream_patience = 30;
  bool read_only = false;
  bool parent_death = false;
  DaemonSettings settings;  // all of the above, as given
};

// Flags whose changes count at SIGHUP.
const std::set<std::string>& LiveFlags() {
  static const auto* const names = new std::set<std::string>{
      "allow-drills", "first-backoff", "log-level", "max-streams", "stream-patience"};
  return *names;
}

// The exit code; *done when there is nothing more to do (--help).
int ParseFlags(int argc, char** argv, Flags* flags, bool* done) {
  CLI::App app("Tercio coordinator: plans, places and watches training jobs.",
               "tercio-coordinator");
  const auto add = [&](const char* name, auto* value, const char* variable, const char* help) {
    app.add_option(name, *value, help)->envname(variable)->capture_default_str()->take_last();
  };
  add("--state-dir", &flags->state_dir, "TERCIO_STATE_DIR", "jobs, history and checkpoints");
  add("--listen", &flags->listen, "TERCIO_LISTEN",
      "HOST:PORT of the gRPC services; port 0 picks one");
  add("--metrics-listen", &flags->metrics_listen, "TERCIO_METRICS_LISTEN", "HOST:PORT of /metrics");
  add("--health-listen", &flags->health_listen, "TERCIO_HEALTH_LISTEN",
      "HOST:PORT of gRPC's health service alone, in plain text, for probes; default: none");
  app.add_option("--metrics-linger", flags->metrics_linger,
                 "seconds for which a job that has ended stays on /metrics")
      ->envname("TERCIO_METRICS_LINGER")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str()
      ->take_last();
  add("--heartbeat-interval", &flags->heartbeat_interval, "TERCIO_HEARTBEAT_INTERVAL",
      "seconds between signs of life of an agent; one is lost after three");
  add("--first-backoff", &flags->first_backoff, "TERCIO_FIRST_BACKOFF",
      "seconds before the first restart; doubles with each");
  add("--tls-cert", &flags->tls.certificate, "TERCIO_TLS_CERT", "PEM certificate");
  add("--tls-key", &flags->tls.key, "TERCIO_TLS_KEY", "PEM key");
  add("--tls-ca", &flags->tls.authority, "TERCIO_TLS_CA", "PEM authority of clients and agents");
  add("--enroll-listen", &flags->enroll_listen, "TERCIO_ENROLL_LISTEN",
      "HOST:PORT where tokens are taken; default: off loopback the host of --listen, port 7078");
  app.add_option("--default-role", flags->default_role,
                 "of certificates of --tls-ca that name no role: admin, user, viewer or none")
      ->envname("TERCIO_DEFAULT_ROLE")
      ->check(CLI::IsMember({"admin", "user", "viewer", "none"}))
      ->capture_default_str()
      ->take_last();
  app.add_option("--certificate-life", flags->certificate_life,
                 "life of the certificates of people and agents (such as 30d)")
      ->envname("TERCIO_CERTIFICATE_LIFE")
      ->transform(CLI::AsNumberWithUnit(
          std::map<std::string, double>{{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}},
          CLI::AsNumberWithUnit::CASE_SENSITIVE))
      ->check(CLI::Range(1.0, 3650 * 86400.0))
      ->take_last();
  app.add_option("--max-streams", flags->max_streams, "clients that may follow jobs at a time")
      ->envname("TERCIO_MAX_STREAMS")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->take_last();
  app.add_option("--stream-patience", flags->stream_patience,
                 "seconds after which a client that does not read what it follows is cut off")
      ->envname("TERCIO_STREAM_PATIENCE")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str()
      ->take_last();
  app.add_flag("--allow-drills", flags->allow_drills, "`tercio drill` may do harm to running jobs")
      ->envname("TERCIO_ALLOW_DRILLS");
  app.add_flag("--read-only", flags->read_only, "only answer questions about the state directory");
  app.add_flag("--parent-death", flags->parent_death, "end with the process that started this one");
  const int code = ParseDaemonFlags(app, argc, argv, done);
  flags->settings = SettingsOf(app);
  return code;
}

absl::Status CheckFlags(const Flags& flags) {
  if (flags.state_dir.empty()) return absl::InvalidArgumentError("--state-dir DIR is required");
  for (const std::string& address : {flags.listen, flags.metrics_listen}) {
    if (IsLoopback(address) || flags.tls.given()) continue;
    if (PathExists(Access::DirectoryOf(flags.state_dir))) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        address, " is not loopback: `tercio-coordinator init --state-dir ", flags.state_dir,
        "` makes an authority, or give --tls-cert, --tls-key and --tls-ca"));
  }
  return absl::OkStatus();
}

// A full, unwritable or taken directory is found before anything starts.
absl::StatusOr<std::unique_ptr<FileLock>> TakeStateDirectory(const Flags& flags) {
  TERCIO_RETURN_IF_ERROR(MakeDirectories(flags.state_dir));
  auto lock = FileLock::Acquire(flags.state_dir + "/lock", /*wait=*/false);
  if (!lock.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("cannot use the state directory ",
                                                      flags.state_dir, ": ",
                                                      std::string(lock.status().message())));
  }
  return lock;
}

Settings MakeSettings(const Flags& flags) {
  Settings settings;
  settings.heartbeat_interval = flags.heartbeat_interval;
  // Two heartbeats missed and the third late: lost before three intervals are over.
  settings.node_lease = 2.75 * flags.heartbeat_interval;
  settings.first_backoff = flags.first_backoff;
  settings.allow_drills = flags.allow_drills;
  settings.make_plan = [](const v1::JobSpec& spec, const std::vector<plan::DeviceSlot>& slots,
                          const RankShare& share) {
    Cluster cluster;
    cluster.threads_per_rank = share.threads;
    cluster.memory_bytes = share.memory_bytes;
    if (!share.gpu.empty()) UseGpus(share.gpu, spec.training(), &cluster);
    return MakePlan(spec, slots, cluster);
  };
  settings.smaller_layout = [](const v1::JobSpec& spec, int least, int most, const RankShare& share,
                               int* ranks) {
    return SmallerLayout(spec, least, most, share.memory_bytes, ranks);
  };
  return settings;
}

CoordinatorMetricsOptions MetricsOf(const Flags& flags, const Access& access) {
  const TlsFiles files = access.identity() == nullptr ? TlsFiles() : access.identity()->files();
  return {flags.metrics_linger, flags.state_dir, files.certificate, files.authority};
}

// Every agent has a socket. And Debian's Abseil looks for cycles whenever a lock is taken: with
// thousands of streams that is a tenth of what gRPC's threads do.
void PrepareForManyStreams() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

class Server {
 public:
  Server(Access& access, Coordinator& coordinator, StreamHub& streams, RpcMetrics& calls,
         const Flags& flags, std::string metrics_address)
      : access_(access),
        calls_(calls),
        jobs_(
            access.gate(), coordinator, streams,
            [&coordinator, directory = flags.state_dir](v1::JobSpec* spec) {
              return Admit(spec, coordinator.Nodes(), directory);
            },
            flags.state_dir, std::move(metrics_address)),
        nodes_(access.gate(), coordinator, flags.heartbeat_interval),
        checkpoint_host_(HostOf(coordinator)),
        checkpoints_(access.gate(), *checkpoint_host_) {}

  absl::Status Listen(const Flags& flags, std::string* address) {
    const auto credentials = MakeServerCredentials(access_.identity());
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    ConfigureServer(builder);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
    creators.push_back(calls_.MakeInterceptors());
    creators.push_back(access_.gate().MakeStreamWatches());
    builder.experimental().SetInterceptorCreators(std::move(creators));
    int port = 0;
    builder.AddListeningPort(flags.listen, credentials, &port);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&access_.service());
    if (!flags.read_only) {
      builder.RegisterService(&nodes_);
      builder.RegisterService(&checkpoints_);
    }
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot listen on ", flags.listen,
                       "; is the port in use? --listen HOST:0 picks a free one"));
    }
    *address = absl::StrCat(flags.listen.substr(0, flags.listen.rfind(':')), ":", port);
    return absl::OkStatus();
  }

  void ShowHealth(bool alive, bool ready) { SetHealth(*server_, alive, ready); }

  void Shutdown() {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  }

 private:
  Access& access_;
  RpcMetrics& calls_;
  GuardedJobService jobs_;
  NodeServiceImpl nodes_;
  std::unique_ptr<CheckpointHost> checkpoint_host_;
  GuardedCheckpointService checkpoints_;
  std::unique_ptr<grpc::Server> server_;
};

StreamLimits LimitsOf(const Flags& flags) {
  return {flags.max_streams, absl::Seconds(flags.stream_patience)};
}

// SIGHUP: what can change while the coordinator runs, does; a file with faults changes nothing.
void Reload(int argc, char** argv, Flags* flags, Coordinator& coordinator, StreamHub& streams) {
  Flags fresh;
  bool done = false;
  const int code = ParseFlags(argc, argv, &fresh, &done);
  if (done || code != kExitOk) {
    LogError("the configuration has faults (above): the one before stays in use");
    return;
  }
  coordinator.Change({fresh.first_backoff, fresh.allow_drills});
  streams.SetLimits(LimitsOf(fresh));
  LogReload(flags->settings, fresh.settings, LiveFlags());
  for (const std::string& name : LiveFlags()) flags->settings[name] = fresh.settings[name];
}

std::string StatusLine(const Coordinator& coordinator) {
  const Coordinator::Totals totals = coordinator.Count();
  return absl::StrCat(totals.nodes, " nodes, ", totals.running, " jobs running, ", totals.queued,
                      " queued", coordinator.durable() ? "" : "; the disk takes nothing");
}

// What the first thread does beside the service itself.
struct Lifecycle {
  std::vector<int> stop_signals;
  ServiceManager manager;
  std::function<void(Coordinator&, StreamHub&)> reload;
};

Access::Settings AccessSettings(const Flags& flags) {
  Access::Settings settings;
  settings.state_dir = flags.state_dir;
  settings.tls = flags.tls;
  settings.listen = flags.listen;
  settings.enroll_listen = flags.enroll_listen;
  settings.default_role = flags.default_role;
  settings.certificate_life_seconds = flags.certificate_life;
  settings.read_only = flags.read_only;
  return settings;
}

absl::Status RunCoordinator(const Flags& flags, const Lifecycle& life) {
  TERCIO_RETURN_IF_ERROR(CheckFlags(flags));
  std::unique_ptr<FileLock> lock;
  if (!flags.read_only) {
    TERCIO_ASSIGN_OR_RETURN(lock, TakeStateDirectory(flags));
  }
  TERCIO_ASSIGN_OR_RETURN(const auto health, HealthServer::Listen(flags.health_listen));
  TERCIO_ASSIGN_OR_RETURN(const auto access, Access::Open(AccessSettings(flags)));
  checkpoint::Store checkpoints(flags.state_dir + "/checkpoints");
  if (!flags.read_only) TERCIO_RETURN_IF_ERROR(checkpoints.RemovePartials());
  TERCIO_ASSIGN_OR_RETURN(auto store,
                          Store::Open(flags.state_dir + "/state.sqlite", flags.read_only));
  TERCIO_ASSIGN_OR_RETURN(
      const auto coordinator,
      Coordinator::Create(MakeSettings(flags), std::move(store), &checkpoints, flags.read_only));
  StreamHub streams(LimitsOf(flags), [&coordinator] { return coordinator->version(); });
  RpcMetrics calls({"tercio.v1.JobService", "tercio.v1.NodeService", "tercio.v1.CheckpointService",
                    "tercio.v1.AccessService"});
  std::unique_ptr<MetricsServer> metrics;
  if (!flags.read_only) {
    TERCIO_ASSIGN_OR_RETURN(
        metrics, ServeCoordinatorMetrics(flags.metrics_listen, *coordinator, streams, calls,
                                         MetricsOf(flags, *access)));
  }
  const std::string metrics_address = metrics == nullptr ? "" : metrics->address();
  Server server(*access, *coordinator, streams, calls, flags, metrics_address);
  std::string address;
  TERCIO_RETURN_IF_ERROR(server.Listen(flags, &address));
  TERCIO_RETURN_IF_ERROR(access->ServeEnrolment());
  const std::string address_file = flags.state_dir + "/coordinator.address";
  if (!flags.read_only) TERCIO_RETURN_IF_ERROR(WriteFileDurably(address_file, address + "\n"));
  const std::string enroll = access->enroll_address();
  std::printf("ready coordinator=%s metrics=%s%s%s state_dir=%s%s%s\n", address.c_str(),
              metrics_address.c_str(), health == nullptr ? "" : " health=",
              health == nullptr ? "" : health->address().c_str(), flags.state_dir.c_str(),
              enroll.empty() ? "" : " enroll=", enroll.c_str());
  std::fflush(stdout);
  DaemonLoop loop;
  // A checkpoint is verified on the thread that decides, and large ones take minutes. For reading
  // only there is no such thread.
  loop.rounds = [&, asked = uint64_t{0}]() mutable {
    return flags.read_only ? ++asked : coordinator->rounds() + checkpoint::VerifiedBytes();
  };
  loop.ready = [&] { return coordinator->durable(); };
  loop.status = [&] { return StatusLine(*coordinator); };
  loop.reload = [&] { life.reload(*coordinator, streams); };
  loop.health = [&](bool alive, bool ready) {
    server.ShowHealth(alive, ready);
    if (health != nullptr) health->Set(alive, ready);
  };
  loop.stop_signals = life.stop_signals;
  const int signal = RunDaemonLoop(life.manager, loop);
  LogInfo(absl::StrCat("signal ", signal, ": stopping"));
  server.Shutdown();
  if (!flags.read_only) unlink(address_file.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace tercio::coordinator

int main(int argc, char** argv) {
  using namespace tercio;  // NOLINT: main
  if (coordinator::IsAccessCommand(argc, argv)) return coordinator::RunAccessCommand(argc, argv);
  coordinator::Lifecycle life;
  life.stop_signals = BlockDaemonSignals();
  KeepFreedMemory();
  RaiseFileLimit();
  coordinator::Flags flags;
  bool done = false;
  const int code = coordinator::ParseFlags(argc, argv, &flags, &done);
  if (done || code != kExitOk) return code;
  if (flags.parent_death) DieWithParent();
  InitLogging("coordinator");
  life.manager = ServiceManager::FromEnvironment();
  life.reload = [&](coordinator::Coordinator& running, coordinator::StreamHub& streams) {
    coordinator::Reload(argc, argv, &flags, running, streams);
  };
  coordinator::PrepareForManyStreams();
  const absl::Status status = coordinator::RunCoordinator(flags, life);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return ExitCodeOf(status) == kExitForbidden ? kExitConflict : ExitCodeOf(status);
}
