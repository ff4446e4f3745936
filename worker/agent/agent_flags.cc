#include "worker/agent/agent_flags.h"

#include <unistd.h>

#include "CLI/CLI.hpp"
#include "common/daemon/flag_values.h"
#include "common/machine.h"

namespace tercio::agent {

const std::set<std::string>& LiveAgentFlags() {
  // It is never destroyed, since threads may still ask for it while the program ends.
  static const auto* const names =
      new std::set<std::string>{"log-level", "snapshot-reserve", "stop-grace"};
  return *names;
}

std::string HostName() {
  char name[256] = "node";
  // A name that is too long may come without a final zero, for which the last byte stays.
  gethostname(name, sizeof(name) - 1);
  return name;
}

namespace {

// When an option is given more than once, the last one counts, so that a script can append
// its own to a command line. Sizes take both kinds of unit: 1 kB is 1000 bytes, 1 KiB 1024.
void AddGpuOptions(CLI::App& app, AgentFlags* flags) {
  app.add_option(
         "--gpu-others", flags->gpu_others,
         "memory that foreign processes may use on a GPU before it stops taking ranks (e.g. 1GiB)")
      ->envname("TERCIO_GPU_OTHERS")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str()
      ->take_last();
  app.add_option("--gpu-interval", flags->gpu_interval_seconds, "seconds between polls of the GPUs")
      ->envname("TERCIO_GPU_INTERVAL")
      ->transform(InSeconds())
      ->check(Between(0.05, 3600.0))
      ->capture_default_str()
      ->take_last();
}

void AddLogOptions(CLI::App& app, AgentOptions* agent) {
  // The lower bound also catches a forgotten unit, such as 16 for 16MiB.
  const auto add_size = [&](const char* name, int64_t* bytes, const char* variable,
                            const char* help) {
    app.add_option(name, *bytes, help)
        ->envname(variable)
        ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
        ->check(CLI::Range(int64_t{64} << 10, int64_t{1} << 50))
        ->capture_default_str()
        ->take_last();
  };
  // The default follows from --state-dir, which is not known yet (FillIn).
  app.add_option("--log-dir", agent->log_dir,
                 "directory for trainer logs (default: logs in the state directory)")
      ->envname("TERCIO_LOG_DIR")
      ->take_last();
  app.add_option("--scratch", agent->scratch_dir,
                 "directory for state that jobs offload to disk (default: scratch in the state "
                 "directory)")
      ->envname("TERCIO_SCRATCH")
      ->take_last();
  app.add_option("--scratch-total", agent->scratch_total,
                 "limit for what the ranks of all jobs on this node offload to disk; ranks beyond "
                 "it are not started (e.g. 500GiB); 0: no limit")
      ->envname("TERCIO_SCRATCH_TOTAL")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str()
      ->take_last();
  add_size("--log-bytes", &agent->log_bytes, "TERCIO_LOG_BYTES",
           "rotate a trainer's log at this size, keeping one old file (e.g. 16MiB)");
  add_size("--log-quota", &agent->log_quota, "TERCIO_LOG_QUOTA",
           "limit for all logs of a job on this node; the oldest are removed (e.g. 1GiB)");
  add_size("--log-total", &agent->log_total, "TERCIO_LOG_TOTAL",
           "limit for the logs of all jobs on this node; the oldest are removed (e.g. 16GiB)");
  add_size(
      "--data-cache-total", &agent->data_cache_total, "TERCIO_DATA_CACHE_TOTAL",
      "limit for tokenised texts on this node; the least recently used are removed (e.g. 64GiB)");
  add_size("--data-memory", &agent->data_memory, "TERCIO_DATA_MEMORY",
           "memory limit for reading and tokenising the data of a job, not counting mapped files "
           "(e.g. 64GiB); default: three quarters of this machine's memory");
  // The coordinator receives the lines of all nodes, hence a limit at their source.
  app.add_option("--log-rate", agent->log_rate,
                 "lines per second of a rank that are sent to the coordinator; the rest are only "
                 "in its log")
      ->envname("TERCIO_LOG_RATE")
      ->check(Between(1, 1e6))
      ->capture_default_str()
      ->take_last();
}

// Zero is a legal time for all of these: then nothing lingers, and nothing is waited for.
void AddTimeOptions(CLI::App& app, AgentFlags* flags) {
  // This must be longer than the interval of scrapes, or final values are missed.
  app.add_option("--metrics-linger", flags->metrics_linger_seconds,
                 "seconds that the counters of an ended rank stay on /metrics")
      ->envname("TERCIO_METRICS_LINGER")
      ->transform(InSeconds())
      ->check(Between(0, 86400.0))
      ->capture_default_str()
      ->take_last();
  // An upgrade of the agent has to take less time than this.
  app.add_option("--agent-grace", flags->agent.agent_grace_seconds,
                 "seconds that trainers keep running after the agent has died")
      ->envname("TERCIO_AGENT_GRACE")
      ->transform(InSeconds())
      ->check(Between(0, 86400.0))
      ->capture_default_str()
      ->take_last();
  app.add_option(
         "--stop-grace", flags->stop_grace_seconds,
         "seconds after SIGTERM by which this node's trainers have ended, killed if necessary")
      ->envname("TERCIO_STOP_GRACE")
      ->transform(InSeconds())
      ->check(Between(0, 86400.0))
      ->capture_default_str()
      ->take_last();
}

// Options for the identity of this node, and for what jobs may do to it.
void AddAccessOptions(CLI::App& app, AgentFlags* flags) {
  const auto add = [&](const char* name, std::string* value, const char* variable,
                       const char* help) {
    app.add_option(name, *value, help)->envname(variable)->capture_default_str()->take_last();
  };
  // Keys and tokens are given as files: a command line is visible to every user of the node.
  add("--tls-cert", &flags->tls.certificate, "TERCIO_TLS_CERT", "PEM certificate");
  add("--tls-key", &flags->tls.key, "TERCIO_TLS_KEY", "PEM key");
  add("--tls-ca", &flags->tls.authority, "TERCIO_TLS_CA",
      "PEM certificate of the coordinator's authority");
  add("--join-token-file", &flags->join_token_file, "TERCIO_JOIN_TOKEN_FILE",
      "file with the join token that this node exchanges for its certificate (also "
      "TERCIO_JOIN_TOKEN)");
  add("--enroll", &flags->enroll, "TERCIO_ENROLL",
      "HOST:PORT of the enrolment port; default: the port after the coordinator's");
  add("--trainer-user", &flags->trainer_user, "TERCIO_TRAINER_USER",
      "user that trainers run as; requires an agent that runs as root (default: tercio-trainer, if "
      "there is TLS and such a user)");
  // Each use takes one value, else the option would also take what follows
  // it. In the variable, colons separate the directories, as in PATH.
  app.add_option("--data-root", flags->data_roots,
                 "directory from which jobs may read data, tokenizers and models; repeatable "
                 "(default: anywhere without TLS, nowhere with it)")
      ->envname("TERCIO_DATA_ROOT")
      ->delimiter(':')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
}

}  // namespace

int ParseAgentFlags(int argc, char** argv, AgentFlags* flags, bool* done) {
  CLI::App app("Tercio agent: runs this node's part of training jobs.", "tercio-agent");
  // Defaults are set before the options exist, which keep them for --help.
  const int cores = MachineCores();
  flags->agent.cores = cores;
  flags->agent.data_memory = MachineMemoryBytes() / 4 * 3;
  // 0 stands for a number that follows from the device (ChooseDevice).
  flags->agent.slots = 0;
  flags->agent.node = HostName();
  const auto add = [&](const char* name, std::string* value, const char* variable,
                       const char* help) {
    app.add_option(name, *value, help)->envname(variable)->capture_default_str()->take_last();
  };
  // Every option has a variable, so that a unit or a pod can set it without a command line.
  add("--coordinator", &flags->agent.coordinator, "TERCIO_COORDINATOR",
      "HOST:PORT of the coordinator, or unix:PATH");
  add("--state-dir", &flags->agent.state_dir, "TERCIO_AGENT_STATE_DIR",
      "directory for the spool, runs, logs and token cache");
  add("--name", &flags->agent.node, "TERCIO_NODE_NAME", "name of this node");
  add("--metrics-listen", &flags->metrics_listen, "TERCIO_METRICS_LISTEN",
      "HOST:PORT to serve /metrics on");
  add("--health-listen", &flags->health_listen, "TERCIO_HEALTH_LISTEN",
      "HOST:PORT of a plain-text gRPC health service for probes (default: none)");
  add("--data-address", &flags->agent.data_address, "TERCIO_DATA_ADDRESS",
      "IP address for traffic between ranks (not encrypted)");
  add("--snapshot-listen", &flags->snapshot_listen, "TERCIO_SNAPSHOT_LISTEN",
      "HOST:PORT to serve copies of snapshots on; default: the data address, any port");
  add("--trainer", &flags->agent.trainer, "TERCIO_TRAINER", "path of the trainer program");
  AddAccessOptions(app, flags);
  app.add_option("--device", flags->device,
                 "device that ranks compute on; auto: cuda if there is a GPU and a trainer for it")
      ->envname("TERCIO_DEVICE")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str()
      ->take_last();
  app.add_option("--slots", flags->agent.slots,
                 "number of ranks offered; default: one per GPU, or one per core (at least 2). "
                 "With more slots than GPUs, ranks share the GPUs")
      ->envname("TERCIO_SLOTS")
      ->check(CLI::Range(1, 4096))
      ->take_last();
  AddGpuOptions(app, flags);
  AddLogOptions(app, &flags->agent);
  AddTimeOptions(app, flags);
  app.add_option("--snapshot-reserve", flags->snapshot_reserve,
                 "memory to leave free when storing copies of snapshots (e.g. 1GiB)")
      ->envname("TERCIO_SNAPSHOT_RESERVE")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50))
      ->capture_default_str()
      ->take_last();
  app.add_option("--spool-limit", flags->spool_bytes,
                 "limit for messages kept while the coordinator is away (e.g. 64MiB)")
      ->envname("TERCIO_SPOOL_LIMIT")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::Range(int64_t{64} << 10, int64_t{1} << 40))
      ->capture_default_str()
      ->take_last();
  app.add_flag("--parent-death", flags->parent_death,
               "exit when the process that started this one exits");
  app.add_flag("--leave", flags->leave,
               "do not start an agent: ask the one that runs on --state-dir to leave the cluster "
               "as on SIGTERM and wait until its jobs have saved and left; that agent keeps "
               "running (preStop hook)");
  const int code = ParseDaemonFlags(app, argc, argv, done);
  // A reload compares these settings with its own, and logs what has changed.
  flags->settings = SettingsOf(app);
  return code;
}

}  // namespace tercio::agent
