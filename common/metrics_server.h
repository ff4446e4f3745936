// A server of one Prometheus page.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"

namespace tercio {

class MetricsServer {
 public:
  // `address` is HOST:PORT; port 0 picks a free one. `page` is read at every scrape, in one thread.
  // FAILED_PRECONDITION when it cannot listen there.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Listen(
      const std::string& address, std::shared_ptr<prometheus::Collectable> page);
  // Ends the server's threads.
  ~MetricsServer();

  const std::string& address() const { return address_; }

 private:
  MetricsServer() = default;
  std::shared_ptr<prometheus::Collectable> page_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string host_;
  int port_ = 0;
  std::string address_;
};

}  // namespace tercio
