// A Prometheus page: a registry and the server that shows it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "prometheus/exposer.h"
#include "prometheus/registry.h"

namespace tercio {

class MetricsServer {
 public:
  // `address` is HOST:PORT; port 0 picks a free one. FAILED_PRECONDITION when it cannot listen
  // there.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Listen(const std::string& address);

  prometheus::Registry& registry() { return *registry_; }
  const std::string& address() const { return address_; }

 private:
  MetricsServer() = default;
  std::shared_ptr<prometheus::Registry> registry_ = std::make_shared<prometheus::Registry>();
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string address_;
};

}  // namespace tercio
