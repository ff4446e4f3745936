#include "common/metrics_server.h"

#include <exception>

#include "absl/strings/str_cat.h"

namespace tercio {

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Listen(const std::string& address) {
  std::unique_ptr<MetricsServer> server(new MetricsServer);
  try {
    server->exposer_ = std::make_unique<prometheus::Exposer>(address, 1);
  } catch (const std::exception& error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot serve metrics on ", address, ": ", error.what(),
                     "; is the port in use? --metrics-listen HOST:0 picks a free one"));
  }
  server->exposer_->RegisterCollectable(server->registry_);
  const std::string host = address.substr(0, address.rfind(':'));
  server->address_ = absl::StrCat(host, ":", server->exposer_->GetListeningPorts().front());
  return server;
}

}  // namespace tercio
