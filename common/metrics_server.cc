#include "common/metrics_server.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "absl/strings/str_cat.h"

namespace tercio {
namespace {

// Connects and hangs up.
void Knock(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return;
  const int socket_fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
  if (socket_fd >= 0) {
    // Whether anybody answers does not matter.
    (void)connect(socket_fd, found->ai_addr, found->ai_addrlen);
    close(socket_fd);
  }
  freeaddrinfo(found);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Listen(
    const std::string& address, std::shared_ptr<prometheus::Collectable> page) {
  std::unique_ptr<MetricsServer> server(new MetricsServer);
  try {
    server->exposer_ = std::make_unique<prometheus::Exposer>(address, 1);
  } catch (const std::exception& error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot serve metrics on ", address, ": ", error.what(),
                     "; is the port in use? --metrics-listen HOST:0 picks a free one"));
  }
  server->page_ = std::move(page);
  server->exposer_->RegisterCollectable(server->page_);
  server->host_ = address.substr(0, address.rfind(':'));
  server->port_ = server->exposer_->GetListeningPorts().front();
  server->address_ = absl::StrCat(server->host_, ":", server->port_);
  return server;
}

// The exposer's thread notices that it shall stop when it has waited two seconds for a connection,
// or when there is one.
MetricsServer::~MetricsServer() {
  if (exposer_ == nullptr) return;
  std::atomic<bool> stopped = false;
  std::thread waker([&] {
    while (!stopped) {
      Knock(host_, port_);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  exposer_.reset();
  stopped = true;
  waker.join();
}

}  // namespace tercio
