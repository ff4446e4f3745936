#include "worker/agent/agent_flags.h"

#include <unistd.h>

#include "CLI/CLI.hpp"
#include "common/daemon/flag_values.h"
#include "common/machine.h"

namespace tercio {

const std::set<std::string>& LiveAgentFlags() {
  static const auto* const names =
      new std::set<std::string>{"log-level", "snapshot-reserve", "stop-grace"};
  return *names;
}

std::string HostName() {
  char name[256] = "node";
  gethostname(name, sizeof(name) - 1);
  return name;
}

namespace {

void AddGpuOptions(CLI::App& app, AgentFlags* flags) {
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
      ->transform(InSeconds())
      ->check(Between(0.05, 3600.0))
      ->capture_default_str()
      ->take_last();
}

void AddLogOptions(CLI::App& app, AgentOptions* agent) {
  const auto add_size = [&](const char* name, int64_t* bytes, const char* variable,
                            const char* help) {
    app.add_option(name, *bytes, help)
        ->envname(variable)
        ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
        ->check(CLI::Range(int64_t{64} << 10, int64_t{1} << 50))
        ->capture_default_str()
        ->take_last();
  };
  app.add_option("--log-dir", agent->log_dir,
                 "logs of trainers; default: logs in the state directory")
      ->envname("TERCIO_LOG_DIR")
      ->take_last();
  add_size("--log-bytes", &agent->log_bytes, "TERCIO_LOG_BYTES",
           "of a trainer's log, before another one begins; one before it is kept (such as 16MiB)");
  add_size("--log-quota", &agent->log_quota, "TERCIO_LOG_QUOTA",
           "of all logs of a job on this node; the oldest go (such as 1GiB)");
  add_size("--log-total", &agent->log_total, "TERCIO_LOG_TOTAL",
           "of the logs of all jobs on this node; the oldest go (such as 16GiB)");
  add_size("--data-cache-total", &agent->data_cache_total, "TERCIO_DATA_CACHE_TOTAL",
           "of tokenised texts on this node; what was not used for longest goes (such as 64GiB)");
  add_size("--data-memory", &agent->data_memory, "TERCIO_DATA_MEMORY",
           "that reading and tokenising the data of a job may take, without files that are mapped "
           "(such as 64GiB); default: three quarters of this machine's");
  app.add_option(
         "--log-rate", agent->log_rate,
         "lines of a rank that are sent to the coordinator in a second; the others are only "
         "in its log")
      ->envname("TERCIO_LOG_RATE")
      ->check(Between(1, 1e6))
      ->capture_default_str()
      ->take_last();
}

void AddTimeOptions(CLI::App& app, AgentFlags* flags) {
  app.add_option("--metrics-linger", flags->metrics_linger_seconds,
                 "seconds for which counters of a rank that has ended stay on /metrics")
      ->envname("TERCIO_METRICS_LINGER")
      ->transform(InSeconds())
      ->check(Between(0, 86400.0))
      ->capture_default_str()
      ->take_last();
  app.add_option("--agent-grace", flags->agent.agent_grace_seconds,
                 "seconds that trainers go on after the agent has died")
      ->envname("TERCIO_AGENT_GRACE")
      ->transform(InSeconds())
      ->check(Between(0, 86400.0))
      ->capture_default_str()
      ->take_last();
  app.add_option("--stop-grace", flags->stop_grace_seconds,
                 "seconds from SIGTERM until this node's trainers are gone, whatever they do")
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

}  // namespace

int ParseAgentFlags(int argc, char** argv, AgentFlags* flags, bool* done) {
  CLI::App app("Tercio agent: runs this node's part of training jobs.", "tercio-agent");
  const int cores = MachineCores();
  flags->agent.cores = cores;
  flags->agent.data_memory = MachineMemoryBytes() / 4 * 3;
  flags->agent.slots = 0;
  flags->agent.node = HostName();
  const auto add = [&](const char* name, std::string* value, const char* variable,
                       const char* help) {
    app.add_option(name, *value, help)->envname(variable)->capture_default_str()->take_last();
  };
  add("--coordinator", &flags->agent.coordinator, "TERCIO_COORDINATOR",
      "HOST:PORT of the coordinator, or unix:PATH");
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
  AddLogOptions(app, &flags->agent);
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
  app.add_flag("--leave", flags->leave,
               "start no agent: ask the one that runs on --state-dir to leave the cluster as at "
               "SIGTERM, wait until its jobs have saved and gone, and let it live (preStop hook)");
  const int code = ParseDaemonFlags(app, argc, argv, done);
  flags->settings = SettingsOf(app);
  return code;
}

}  // namespace tercio
