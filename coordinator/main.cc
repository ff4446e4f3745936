// tercio-coordinator: one per cluster. Plans jobs, assigns ranks, receives checkpoints, restarts
// failed attempts.
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "checkpoint/store.h"
#include "common/daemon/daemon.h"
#include "common/daemon/daemon_flags.h"
#include "common/daemon/daemon_loop.h"
#include "common/daemon/health_server.h"
#include "common/daemon/service_manager.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "coordinator/access/access.h"
#include "coordinator/access/access_commands.h"
#include "coordinator/flags.h"
#include "coordinator/planning.h"
#include "coordinator/server.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/coordinator_metrics.h"
#include "coordinator/service/rpc_metrics.h"
#include "coordinator/service/stream_hub.h"
#include "coordinator/verify_child.h"

namespace tercio::coordinator {
namespace {

// For each of the waits at the end.
constexpr absl::Duration kStopGrace = absl::Seconds(5);
// Lookers hold the lock for microseconds: one pause is nearly always enough.
constexpr int kLookers = 5;
constexpr absl::Duration kLookersPatience = absl::Milliseconds(10);

// A full, unwritable or taken directory is found before anything starts.
absl::StatusOr<std::unique_ptr<FileLock>> TakeStateDirectory(const Flags& flags) {
  TERCIO_RETURN_IF_ERROR(MakeDirectories(flags.state_dir));
  auto lock = FileLock::Acquire(flags.state_dir + "/lock", WhenHeld::kFail);
  // A process that only checks whether the lock is held holds it for a moment itself.
  for (int i = 0; i < kLookers && absl::IsFailedPrecondition(lock.status()); ++i) {
    absl::SleepFor(kLookersPatience);
    lock = FileLock::Acquire(flags.state_dir + "/lock", WhenHeld::kFail);
  }
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
  settings.checkpoint_patience = flags.checkpoint_patience;
  settings.scrub_interval = flags.scrub_interval;
  settings.job_retention = flags.job_retention;
  UsePlanner(&settings);
  return settings;
}

CoordinatorMetricsOptions MetricsOf(const Flags& flags, const Access& access) {
  const TlsFiles files = access.identity() == nullptr ? TlsFiles() : access.identity()->files();
  return {flags.metrics_linger, flags.state_dir, files.certificate, files.authority,
          access.audit()};
}

StreamLimits LimitsOf(const Flags& flags) {
  return {flags.max_streams, absl::Seconds(flags.stream_patience)};
}

// SIGHUP: applies the settings that can change at run time; a file with errors changes nothing.
void Reload(int argc, char** argv, Flags* flags, Coordinator& coordinator, StreamHub& streams) {
  Flags fresh;
  // A flag that is gone from the file gets its default back, so a fresh set is parsed.
  bool done = false;
  const int code = ParseFlags(argc, argv, &fresh, &done);
  if (done || code != kExitOk) {
    LogError("the configuration has errors (above); the previous one stays in use");
    return;
  }
  coordinator.Change({fresh.first_backoff, fresh.allow_drills});
  streams.SetLimits(LimitsOf(fresh));
  LogReload(flags->settings, fresh.settings, LiveFlags());
  // Only live settings are taken over: the others are still in use as they were.
  for (const std::string& name : LiveFlags()) flags->settings[name] = fresh.settings[name];
}

std::string StatusLine(const Coordinator& coordinator) {
  const Coordinator::Totals totals = coordinator.Count();
  return absl::StrCat(totals.nodes, " nodes, ", totals.running, " jobs running, ", totals.queued,
                      " queued", coordinator.durable() ? "" : "; the disk cannot be written");
}

// Remains of a crash are harmless: failing to remove them stops no coordinator.
void RemoveUnfinishedSaves(checkpoint::Store& checkpoints) {
  const absl::Status removed = checkpoints.RemoveUnfinished();
  if (!removed.ok()) LogWarning(std::string(removed.message()));
}

// Whether the work ends within `patience`; otherwise it stays behind, in a thread of its own.
bool EndsWithin(absl::Duration patience, std::function<void()> work) {
  const auto done = std::make_shared<absl::Notification>();
  std::thread([done, work = std::move(work)] {
    work();
    done->Notify();
  }).detach();
  return done->WaitForNotificationWithTimeout(patience);
}

// The main thread's work besides the service itself.
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
  // No save is under way yet, so whatever is unfinished has been left by a crash.
  if (!flags.read_only) RemoveUnfinishedSaves(checkpoints);
  const OpenFor use = flags.read_only ? OpenFor::kReading : OpenFor::kWriting;
  TERCIO_ASSIGN_OR_RETURN(auto store, Store::Open(flags.state_dir + "/state.sqlite", use));
  TERCIO_ASSIGN_OR_RETURN(const auto coordinator,
                          Coordinator::Create(MakeSettings(flags), std::move(store), &checkpoints,
                                              use, LeaseClock(), VerifyInChild));
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
  // The address is known only now: port 0 lets the system choose.
  TERCIO_RETURN_IF_ERROR(server.Listen(flags, &address));
  TERCIO_RETURN_IF_ERROR(access->ServeEnrolment(
      [&coordinator](const std::string& node) { return coordinator->MayBeHere(node); }));
  const std::string address_file = flags.state_dir + "/coordinator.address";
  if (!flags.read_only) TERCIO_RETURN_IF_ERROR(WriteFileDurably(address_file, address + "\n"));
  const std::string enroll = access->enroll_address();
  std::printf("ready coordinator=%s metrics=%s%s%s state_dir=%s%s%s\n", address.c_str(),
              metrics_address.c_str(), health == nullptr ? "" : " health=",
              health == nullptr ? "" : health->address().c_str(), flags.state_dir.c_str(),
              enroll.empty() ? "" : " enroll=", enroll.c_str());
  // Scripts and tests wait for this line through a pipe, which is buffered.
  std::fflush(stdout);
  DaemonLoop loop;
  // For reading only there is no thread that decides.
  loop.rounds = [&, asked = uint64_t{0}]() mutable {
    return flags.read_only ? ++asked : coordinator->rounds();
  };
  loop.ready = [&] { return coordinator->durable(); };
  loop.status = [&] { return StatusLine(*coordinator); };
  loop.reload = [&] { life.reload(*coordinator, streams); };
  loop.health = [&](bool alive, bool ready) {
    server.ShowHealth({alive, ready});
    if (health != nullptr) health->Set({alive, ready});
  };
  loop.stop_signals = life.stop_signals;
  const int signal = RunDaemonLoop(life.manager, loop);
  LogInfo(absl::StrCat("signal ", signal, ": stopping"));
  // The core stops first: callers that wait for it get their answer before the server ends.
  coordinator->Stop();
  const bool idle = EndsWithin(kStopGrace, [&server] { server.Shutdown(); }) &&
                    coordinator->Drain(kStopGrace) && server.Drain(kStopGrace);
  if (!flags.read_only) unlink(address_file.c_str());
  if (idle) return absl::OkStatus();
  // A normal exit would wait for threads that hang in a file system. All that counts is durable.
  LogError("a file system with checkpoints does not answer: exiting without waiting for it");
  std::fflush(stdout);
  _exit(kExitOk);
}

}  // namespace
}  // namespace tercio::coordinator

int main(int argc, char** argv) {
  using namespace tercio;  // NOLINT: main
  // These commands print for people and have exit codes of their own; no daemon starts.
  if (coordinator::IsAccessCommand(argc, argv)) return coordinator::RunAccessCommand(argc, argv);
  // A daemon may be started without the standard streams; a database must not get their numbers.
  HoldStandardStreams();
  if (argc == 3 && std::string_view(argv[1]) == coordinator::kVerifyFlag) {
    return coordinator::RunVerifyChild(argv[2]);
  }
  coordinator::Lifecycle life;
  life.stop_signals = BlockDaemonSignals();
  // Without this the kernel would clear every page again for each message of an upload.
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
  // Debian's Abseil looks for cycles whenever a lock is taken: with thousands of streams that is a
  // tenth of what gRPC's threads do.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const absl::Status status = coordinator::RunCoordinator(flags, life);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return ExitCodeOf(status) == kExitForbidden ? kExitConflict : ExitCodeOf(status);
}
