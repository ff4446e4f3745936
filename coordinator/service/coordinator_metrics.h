// What the coordinator exports to Prometheus: jobs, checkpoints, nodes, streams. Read from the
// state at every scrape.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/metrics_server.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/stream_hub.h"

namespace tercio::coordinator {

class CoordinatorMetrics {
 public:
  // `coordinator` and `streams` must outlive the object.
  static absl::StatusOr<std::unique_ptr<CoordinatorMetrics>> Serve(const std::string& address,
                                                                   const Coordinator& coordinator,
                                                                   const StreamHub& streams);
  const std::string& address() const { return server_->address(); }

 private:
  explicit CoordinatorMetrics(std::unique_ptr<MetricsServer> server) : server_(std::move(server)) {}

  std::unique_ptr<MetricsServer> server_;
};

}  // namespace tercio::coordinator
