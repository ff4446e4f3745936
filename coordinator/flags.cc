#include "coordinator/flags.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/daemon/flag_values.h"
#include "common/file.h"
#include "common/security/channel.h"
#include "coordinator/access/access.h"

namespace tercio::coordinator {

const std::set<std::string>& LiveFlags() {
  // These are the flags that Reload applies; all others need a restart.
  static const auto* const names = new std::set<std::string>{
      "allow-drills", "first-backoff", "log-level", "max-streams", "stream-patience"};
  return *names;
}

namespace {

// One function for all durations, so that each has units, a range and an environment variable.
void AddSeconds(CLI::App& app, const char* name, double* value, const char* variable, double least,
                const char* help) {
  app.add_option(name, *value, help)
      ->envname(variable)
      ->transform(InSeconds())
      // A day is longer than any of these waits should be: more is a mistake in the unit.
      ->check(Between(least, 86400.0))
      ->capture_default_str()
      // The last one wins, so that a script can append to a given command line.
      ->take_last();
}

void AddCheckpointFlags(CLI::App& app, Flags* flags) {
  AddSeconds(app, "--checkpoint-patience", &flags->checkpoint_patience,
             "TERCIO_CHECKPOINT_PATIENCE", 0,
             "how long a job waits for unreadable checkpoints before it fails");
  AddSeconds(app, "--scrub-interval", &flags->scrub_interval, "TERCIO_SCRUB_INTERVAL", 0,
             "verify every byte of each checkpoint this often; 0: only on request");
  // The range is longer than a day, so AddSeconds does not fit.
  app.add_option(
         "--job-retention", flags->job_retention,
         "forget jobs that ended this long ago (e.g. 90d), but keep their checkpoints; 0: never")
      ->envname("TERCIO_JOB_RETENTION")
      ->transform(InSeconds())
      ->check(Between(0.0, 36500 * 86400.0))
      ->take_last();
  // This flag may be repeated, so it does not take the last.
  app.add_option("--checkpoint-root", flags->checkpoint_roots,
                 "directory below which jobs may have a checkpoint.path; repeatable "
                 "(default: anywhere without TLS, nowhere with it)")
      ->envname("TERCIO_CHECKPOINT_ROOT");
}

}  // namespace

int ParseFlags(int argc, char** argv, Flags* flags, bool* done) {
  CLI::App app("Tercio coordinator: plans, places and watches training jobs.",
               "tercio-coordinator");
  // All text flags are alike: an environment variable, the default in the help, the last wins.
  const auto add = [&](const char* name, auto* value, const char* variable, const char* help) {
    app.add_option(name, *value, help)->envname(variable)->capture_default_str()->take_last();
  };
  add("--state-dir", &flags->state_dir, "TERCIO_STATE_DIR",
      "directory of jobs, history and checkpoints");
  add("--listen", &flags->listen, "TERCIO_LISTEN",
      "HOST:PORT of the gRPC services, or unix:PATH; port 0 picks a free one");
  add("--metrics-listen", &flags->metrics_listen, "TERCIO_METRICS_LISTEN", "HOST:PORT of /metrics");
  add("--health-listen", &flags->health_listen, "TERCIO_HEALTH_LISTEN",
      "HOST:PORT of a plain-text gRPC health service for probes (default: none)");
  // The least value differs: some waits may be nothing, a heartbeat may not.
  const auto add_seconds = [&](const char* name, double* value, const char* variable, double least,
                               const char* help) {
    AddSeconds(app, name, value, variable, least, help);
  };
  add_seconds("--metrics-linger", &flags->metrics_linger, "TERCIO_METRICS_LINGER", 0,
              "seconds that a finished job stays on /metrics");
  add_seconds("--heartbeat-interval", &flags->heartbeat_interval, "TERCIO_HEARTBEAT_INTERVAL", 0.01,
              "seconds between an agent's heartbeats; a node that misses three is lost");
  add_seconds("--first-backoff", &flags->first_backoff, "TERCIO_FIRST_BACKOFF", 0,
              "seconds before the first restart of a job; doubled at each further one");
  AddCheckpointFlags(app, flags);
  add("--tls-cert", &flags->tls.certificate, "TERCIO_TLS_CERT", "PEM certificate");
  add("--tls-key", &flags->tls.key, "TERCIO_TLS_KEY", "PEM key");
  add("--tls-ca", &flags->tls.authority, "TERCIO_TLS_CA",
      "PEM authority that signed the certificates of clients and agents");
  add("--enroll-listen", &flags->enroll_listen, "TERCIO_ENROLL_LISTEN",
      "HOST:PORT that exchanges tokens for certificates (default: off loopback, the host of "
      "--listen with port 7078)");
  app.add_option("--default-role", flags->default_role,
                 "role of certificates from --tls-ca that name none: admin, user, viewer or none")
      ->envname("TERCIO_DEFAULT_ROLE")
      ->check(CLI::IsMember({"admin", "user", "viewer", "none"}))
      ->capture_default_str()
      ->take_last();
  app.add_option("--certificate-life", flags->certificate_life,
                 "lifetime of the certificates of people and agents (e.g. 30d)")
      ->envname("TERCIO_CERTIFICATE_LIFE")
      ->transform(InSeconds())
      ->check(Between(1.0, 3650 * 86400.0))
      ->take_last();
  app.add_option("--max-streams", flags->max_streams,
                 "maximum number of clients that follow jobs at the same time")
      ->envname("TERCIO_MAX_STREAMS")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->take_last();
  add_seconds("--stream-patience", &flags->stream_patience, "TERCIO_STREAM_PATIENCE", 0.1,
              "seconds after which a client that follows a job but reads nothing is disconnected");
  app.add_flag("--allow-drills", flags->allow_drills,
               "allow `tercio drill` to inject faults into running jobs")
      ->envname("TERCIO_ALLOW_DRILLS");
  app.add_flag("--read-only", flags->read_only,
               "answer queries about the state directory only; run no jobs");
  app.add_flag("--parent-death", flags->parent_death,
               "exit when the process that started this one exits");
  // The configuration file and what all daemons share are read there.
  const int code = ParseDaemonFlags(app, argc, argv, done);
  flags->settings = SettingsOf(app);
  return code;
}

absl::Status CheckFlags(const Flags& flags) {
  if (flags.state_dir.empty()) return absl::InvalidArgumentError("--state-dir DIR is required");
  // Every client that reaches it is an admin.
  if (flags.read_only && !IsLoopback(flags.listen)) {
    return absl::InvalidArgumentError(absl::StrCat(
        flags.listen, " is not loopback: --read-only serves without TLS, on loopback only"));
  }
  // Both ports would be open to other machines without certificates.
  for (const std::string& address : {flags.listen, flags.metrics_listen}) {
    if (IsLoopback(address) || flags.tls.given()) continue;
    // The access directory of `init` is TLS as well.
    if (PathExists(Access::DirectoryOf(flags.state_dir))) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        address, " is not loopback: create an authority with `tercio-coordinator init --state-dir ",
        flags.state_dir, "`, or give --tls-cert, --tls-key and --tls-ca"));
  }
  return absl::OkStatus();
}

}  // namespace tercio::coordinator
