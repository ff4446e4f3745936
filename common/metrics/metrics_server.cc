#include "common/metrics/metrics_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/host_port.h"

namespace tercio {
namespace {

// Requests of Prometheus have a few hundred bytes.
constexpr size_t kMostRequestBytes = 8 << 10;
// A nice(1) value. Not the lowest: pages are made from state that others wait for.
constexpr int kPriority = 5;
constexpr int kAgeOverCost = 20;  // age of a page that is still served, over the cost of making it
constexpr double kBurst = 20;     // connections at the same time
constexpr int kBacklog = 128;     // connections that wait in the kernel
// The patience with a slow connection is much longer.
constexpr int kLookMilliseconds = 50;  // between checks for slow connections
constexpr int kPauseMilliseconds = 5;  // until the next connection may be accepted

absl::Status CannotListen(const std::string& address, const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot serve metrics on ", address, ": ", why,
                   "; is the port in use? --metrics-listen HOST:0 picks a free one"));
}

std::string Answer(const char* status, const std::string& type, const std::string& body) {
  // Each connection serves one request, so that none can hold its place.
  return absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", type,
                      "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n\r\n", body);
}

std::shared_ptr<const std::string> Refusal(const char* status) {
  return std::make_shared<const std::string>(
      Answer(status, "text/plain; charset=utf-8", absl::StrCat(status, "\n")));
}

int PortOf(int socket) {
  // The system has chosen the port where 0 was asked for.
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) != 0) return 0;
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own)->sin6_port
                                         : reinterpret_cast<sockaddr_in*>(&own)->sin_port);
}

int ListenOn(const addrinfo& where) {
  // Nothing may block: one thread serves all connections.
  const int listener = socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) return -1;
  const int yes = 1;
  // A daemon that is restarted finds connections of its predecessor.
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(listener, where.ai_addr, where.ai_addrlen) == 0 && listen(listener, kBacklog) == 0) {
    return listener;
  }
  // close may change errno, which the caller reports.
  const int error = errno;
  close(listener);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Listen(const std::string& address,
                                                                     Pages pages,
                                                                     const Limits& limits) {
  std::unique_ptr<MetricsServer> server(new MetricsServer(std::move(pages), limits));
  const absl::Status status = server->Open(address);
  if (!status.ok()) return status;
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

absl::Status MetricsServer::Open(const std::string& address) {
  const std::optional<HostPort> parts = SplitHostPort(address);
  if (!parts.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics-listen ", address, " is not HOST:PORT"));
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(parts->host.c_str(), parts->port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics-listen ", address, ": ", gai_strerror(error)));
  }
  // A name may have several addresses: the first that can be bound is taken.
  for (const addrinfo* entry = found; entry != nullptr && listener_ < 0; entry = entry->ai_next) {
    listener_ = ListenOn(*entry);
  }
  const int failed = errno;
  freeaddrinfo(found);
  if (listener_ < 0) return CannotListen(address, std::strerror(failed));
  // An event descriptor wakes poll, which a condition variable cannot.
  stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_ < 0) return CannotListen(address, std::strerror(errno));
  address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", PortOf(listener_));
  return absl::OkStatus();
}

MetricsServer::~MetricsServer() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    // Only an interrupt is repeated: the counter cannot be full.
    while (write(stop_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  for (const int descriptor : {listener_, stop_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

void MetricsServer::Run() {
  // This sets the priority of this thread only. Training comes first; if lowering the priority is
  // not allowed, the thread keeps its own.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kPriority);
  allowance_at_ = std::chrono::steady_clock::now();
  allowance_ = kBurst;
  while (true) {
    const bool open = MayComeIn(std::chrono::steady_clock::now());
    // While too many connections come, the listener is left alone: they wait in the kernel.
    std::vector<pollfd> watched = {{stop_, POLLIN, 0}, {open ? listener_ : -1, POLLIN, 0}};
    for (const Connection& connection : connections_) {
      const short what = connection.answer == nullptr ? POLLIN : POLLOUT;
      watched.push_back({connection.socket, what, 0});
    }
    // Without connections nothing has to be looked at until something happens.
    const int patience = !open ? kPauseMilliseconds : connections_.empty() ? -1 : kLookMilliseconds;
    if (poll(watched.data(), watched.size(), patience) < 0 && errno != EINTR) {
      // Memory may have run out temporarily. Nothing is ready until it is available.
      std::this_thread::sleep_for(std::chrono::milliseconds(kLookMilliseconds));
    }
    if (watched[0].revents != 0) break;
    const Time now = std::chrono::steady_clock::now();
    // The first two places are the stop event and the listener.
    size_t place = 2;
    for (auto connection = connections_.begin(); connection != connections_.end();) {
      const bool ready = watched[place++].revents != 0;
      const bool over =
          ready && (connection->answer == nullptr ? Read(*connection, now) : Write(*connection));
      connection = over ? Close(connection) : std::next(connection);
    }
    // Slow connections are closed before a new one takes a place.
    CloseSlow(now);
    if (watched[1].revents != 0) Accept(now);
  }
  while (!connections_.empty()) Close(connections_.begin());
}

bool MetricsServer::MayComeIn(Time now) {
  const double passed = std::chrono::duration<double>(now - allowance_at_).count();
  // A token bucket: short bursts pass, and a flood does not take the machine.
  allowance_ = std::min(kBurst, allowance_ + passed * limits_.connections_per_second);
  allowance_at_ = now;
  return allowance_ >= 1;
}

// Accepts one connection, and reads what it has sent before the next is accepted.
void MetricsServer::Accept(Time now) {
  const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  allowance_ -= 1;
  if (socket < 0) {
    // No file descriptors left: the connection that has waited longest is closed.
    if ((errno == EMFILE || errno == ENFILE) && !connections_.empty()) MakeRoom();
    return;
  }
  if (connections_.size() >= limits_.connections) MakeRoom();
  connections_.push_back({socket, now, "", nullptr, 0});
  // Most connections have already sent their request.
  const auto connection = std::prev(connections_.end());
  if (Read(*connection, now)) Close(connection);
}

void MetricsServer::MakeRoom() {
  // A connection that has sent nothing yet loses least.
  const auto silent =
      std::find_if(connections_.begin(), connections_.end(),
                   [](const Connection& connection) { return connection.answer == nullptr; });
  ++figures_.dropped;
  Close(silent != connections_.end() ? silent : connections_.begin());
}

void MetricsServer::CloseSlow(Time now) {
  const auto patience = absl::ToChronoNanoseconds(limits_.patience);
  // Connections are in the order of their arrival, so that the first is the oldest.
  while (!connections_.empty() && now - connections_.front().since > patience) {
    ++figures_.dropped;
    Close(connections_.begin());
  }
}

MetricsServer::Connections::iterator MetricsServer::Close(Connections::iterator connection) {
  close(connection->socket);
  return connections_.erase(connection);
}

bool MetricsServer::Read(Connection& connection, Time now) {
  char buffer[4096];
  while (true) {
    const ssize_t count = recv(connection.socket, buffer, sizeof(buffer), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (count <= 0) return true;
    connection.request.append(buffer, static_cast<size_t>(count));
    // A request ends with an empty line; a body is of no interest.
    const bool complete = connection.request.find("\r\n\r\n") != std::string::npos;
    if (!complete && connection.request.size() <= kMostRequestBytes) continue;
    connection.answer = complete ? AnswerTo(connection.request, now)
                                 : Refusal("431 Request Header Fields Too Large");
    if (!complete) ++figures_.refused;
    connection.request.clear();
    return Write(connection);
  }
}

bool MetricsServer::Write(Connection& connection) {
  const std::string& answer = *connection.answer;
  while (connection.sent < answer.size()) {
    const ssize_t count = send(connection.socket, answer.data() + connection.sent,
                               // A reader that has gone must not end the process.
                               answer.size() - connection.sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno != EAGAIN && errno != EWOULDBLOCK;
    connection.sent += static_cast<size_t>(count);
  }
  // Keeps data in flight from being discarded by the close, should the client have sent more.
  shutdown(connection.socket, SHUT_WR);
  return true;
}

MetricsServer::Text MetricsServer::AnswerTo(const std::string& request, Time now) {
  const size_t method_end = request.find(' ');
  const size_t path_end =
      // Parameters behind a question mark change nothing.
      method_end == std::string::npos ? method_end : request.find_first_of(" ?\r", method_end + 1);
  if (path_end == std::string::npos) {
    ++figures_.refused;
    return Refusal("400 Bad Request");
  }
  if (request.compare(0, method_end, "GET") != 0) {
    ++figures_.refused;
    return Refusal("405 Method Not Allowed");
  }
  const auto page = pages_.find(request.substr(method_end + 1, path_end - method_end - 1));
  if (page == pages_.end()) {
    ++figures_.refused;
    return Refusal("404 Not Found");
  }
  return PageAt(page->first, page->second, now);
}

MetricsServer::Text MetricsServer::PageAt(const std::string& path, const Page& page, Time now) {
  Kept& kept = kept_[path];
  ++figures_.served;
  // A page that was expensive stays valid for longer, so
  // that making pages takes a bounded share of the time.
  if (kept.text != nullptr && now < kept.until) return kept.text;
  figures_.connections = static_cast<int64_t>(connections_.size());
  const Time began = std::chrono::steady_clock::now();
  const std::optional<std::string> made = page.make(figures_);
  // A page that cannot be made now is not kept.
  if (!made.has_value()) return Refusal("503 Service Unavailable");
  kept.text = std::make_shared<const std::string>(Answer("200 OK", page.type, *made));
  const Time ended = std::chrono::steady_clock::now();
  // The cost is measured with each page, since it grows with the cluster.
  kept.until = ended + kAgeOverCost * (ended - began);
  return kept.text;
}

void AddServerMetrics(const MetricsServer::Figures& figures, MetricsPage* page) {
  page->Set("tercio_metrics_requests_total", {"served"}, static_cast<double>(figures.served));
  page->Set("tercio_metrics_requests_total", {"refused"}, static_cast<double>(figures.refused));
  page->Set("tercio_metrics_requests_total", {"dropped"}, static_cast<double>(figures.dropped));
  page->Set("tercio_metrics_connections", static_cast<double>(figures.connections));
}

}  // namespace tercio
