// The settings of tercio-coordinator, from its flags, TERCIO_* variables and the file of --config.
#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/daemon/daemon_flags.h"
#include "common/security/tls_identity.h"

namespace tercio::coordinator {

struct Flags {
  std::string state_dir;
  std::string listen = "127.0.0.1:7077";
  std::string metrics_listen = "127.0.0.1:9464";
  std::string health_listen;
  double heartbeat_interval = 5;
  double metrics_linger = 60;
  double first_backoff = 1;
  double checkpoint_patience = 600;
  double scrub_interval = 86400;
  double job_retention = 0;
  std::vector<std::string> checkpoint_roots;
  TlsFiles tls = TlsFromEnvironment();
  std::string enroll_listen;
  std::string default_role = "none";
  double certificate_life = 30 * 86400.0;
  bool allow_drills = false;
  int max_streams = 256;
  double stream_patience = 30;
  bool read_only = false;
  bool parent_death = false;
  DaemonSettings settings;  // all of the above, as given
};

// Reads them into *flags. The exit code; *done when there is nothing more to do (--help).
int ParseFlags(int argc, char** argv, Flags* flags, bool* done);

// INVALID_ARGUMENT: no state directory, or an address off loopback that would be served without
// TLS.
absl::Status CheckFlags(const Flags& flags);

// Flags whose changes count at SIGHUP.
const std::set<std::string>& LiveFlags();

}  // namespace tercio::coordinator
