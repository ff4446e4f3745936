// The settings of tercio-agent, from its flags, TERCIO_* variables and the file of --config.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/daemon/daemon_flags.h"
#include "common/security/tls_identity.h"
#include "worker/agent/runs/run_manager.h"

namespace tercio::agent {

struct AgentFlags {
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
  bool leave = false;  // do not start an agent: ask the one on the same state directory to leave
  DaemonSettings settings;  // all of the above, as given
};

// Reads the settings into *flags and returns the exit code; sets *done if there is nothing more to
// do (--help).
int ParseAgentFlags(int argc, char** argv, AgentFlags* flags, bool* done);

// Flags whose changes take effect on SIGHUP.
const std::set<std::string>& LiveAgentFlags();

// Name of this machine; "node" if it has none.
std::string HostName();

}  // namespace tercio::agent
