// The coordinator's metrics for Prometheus, read from its state at every scrape, and the addresses
// of the agents: /metrics and /sd (for http_sd_configs).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics/metrics_server.h"
#include "coordinator/access/audit_log.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/rpc_metrics.h"
#include "coordinator/service/stream_hub.h"

namespace tercio::coordinator {

struct CoordinatorMetricsOptions {
  double linger_seconds = 60;  // for which a job that has ended stays on the page
  std::string state_dir;
  // PEM files, for their dates; empty without TLS.
  std::string certificate;
  std::string authority;
  const AuditLog* audit = nullptr;  // null without TLS; else it must outlive the pages
};

// The pages. All but the options must outlive them.
std::string CoordinatorPage(const Coordinator& coordinator, const StreamHub& streams,
                            const RpcMetrics& calls, const CoordinatorMetricsOptions& options,
                            const MetricsServer::Figures& server);
// A JSON list of targets, each with the label `node`. Addresses of agents are known once they
// have connected: absent while nodes known from before the coordinator's start are missing and it
// has not been `up` for long, since Prometheus keeps the previous list when it gets none. Nodes
// that are gone after they were drained or announced that they leave are not targets.
std::optional<std::string> TargetsPage(const Coordinator& coordinator, absl::Duration up);

// Serves both.
absl::StatusOr<std::unique_ptr<MetricsServer>> ServeCoordinatorMetrics(
    const std::string& address, const Coordinator& coordinator, const StreamHub& streams,
    const RpcMetrics& calls, CoordinatorMetricsOptions options);

}  // namespace tercio::coordinator
