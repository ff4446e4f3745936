#include "coordinator/flags.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/daemon/flag_values.h"
#include "common/file.h"
#include "common/security/channel.h"
#include "coordinator/access/access.h"

namespace tercio::coordinator {

const std::set<std::string>& LiveFlags() {
  static const auto* const names = new std::set<std::string>{
      "allow-drills", "first-backoff", "log-level", "max-streams", "stream-patience"};
  return *names;
}

namespace {

void AddSeconds(CLI::App& app, const char* name, double* value, const char* variable, double least,
                const char* help) {
  app.add_option(name, *value, help)
      ->envname(variable)
      ->transform(InSeconds())
      ->check(Between(least, 86400.0))
      ->capture_default_str()
      ->take_last();
}

void AddCheckpointFlags(CLI::App& app, Flags* flags) {
  AddSeconds(app, "--checkpoint-patience", &flags->checkpoint_patience,
             "TERCIO_CHECKPOINT_PATIENCE", 0,
             "how long a job waits for checkpoints that cannot be read before it fails");
  AddSeconds(app, "--scrub-interval", &flags->scrub_interval, "TERCIO_SCRUB_INTERVAL", 0,
             "verify every byte of each checkpoint this often; 0: only on request");
  app.add_option(
         "--job-retention", flags->job_retention,
         "forget jobs that ended this long ago (such as 90d), but not their checkpoints; 0: none")
      ->envname("TERCIO_JOB_RETENTION")
      ->transform(InSeconds())
      ->check(Between(0.0, 36500 * 86400.0))
      ->take_last();
  app.add_option(
         "--checkpoint-root", flags->checkpoint_roots,
         "directory below which jobs may have a checkpoint.path; may be given several times "
         "(default: anywhere without TLS, nowhere with it)")
      ->envname("TERCIO_CHECKPOINT_ROOT");
}

}  // namespace

int ParseFlags(int argc, char** argv, Flags* flags, bool* done) {
  CLI::App app("Tercio coordinator: plans, places and watches training jobs.",
               "tercio-coordinator");
  const auto add = [&](const char* name, auto* value, const char* variable, const char* help) {
    app.add_option(name, *value, help)->envname(variable)->capture_default_str()->take_last();
  };
  add("--state-dir", &flags->state_dir, "TERCIO_STATE_DIR", "jobs, history and checkpoints");
  add("--listen", &flags->listen, "TERCIO_LISTEN",
      "HOST:PORT of the gRPC services, or unix:PATH; port 0 picks one");
  add("--metrics-listen", &flags->metrics_listen, "TERCIO_METRICS_LISTEN", "HOST:PORT of /metrics");
  add("--health-listen", &flags->health_listen, "TERCIO_HEALTH_LISTEN",
      "HOST:PORT of gRPC's health service alone, in plain text, for probes; default: none");
  const auto add_seconds = [&](const char* name, double* value, const char* variable, double least,
                               const char* help) {
    AddSeconds(app, name, value, variable, least, help);
  };
  add_seconds("--metrics-linger", &flags->metrics_linger, "TERCIO_METRICS_LINGER", 0,
              "seconds for which a job that has ended stays on /metrics");
  add_seconds("--heartbeat-interval", &flags->heartbeat_interval, "TERCIO_HEARTBEAT_INTERVAL", 0.01,
              "seconds between signs of life of an agent; one is lost after three");
  add_seconds("--first-backoff", &flags->first_backoff, "TERCIO_FIRST_BACKOFF", 0,
              "seconds before the first restart; doubles with each");
  AddCheckpointFlags(app, flags);
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
      ->transform(InSeconds())
      ->check(Between(1.0, 3650 * 86400.0))
      ->take_last();
  app.add_option("--max-streams", flags->max_streams, "clients that may follow jobs at a time")
      ->envname("TERCIO_MAX_STREAMS")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->take_last();
  add_seconds("--stream-patience", &flags->stream_patience, "TERCIO_STREAM_PATIENCE", 0.1,
              "seconds after which a client that does not read what it follows is cut off");
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
  // Whoever reaches it is an admin.
  if (flags.read_only && !IsLoopback(flags.listen)) {
    return absl::InvalidArgumentError(absl::StrCat(
        flags.listen, " is not loopback, and --read-only answers without TLS, on loopback only"));
  }
  for (const std::string& address : {flags.listen, flags.metrics_listen}) {
    if (IsLoopback(address) || flags.tls.given()) continue;
    if (PathExists(Access::DirectoryOf(flags.state_dir))) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        address, " is not loopback: `tercio-coordinator init --state-dir ", flags.state_dir,
        "` makes an authority, or give --tls-cert, --tls-key and --tls-ca"));
  }
  return absl::OkStatus();
}

}  // namespace tercio::coordinator
