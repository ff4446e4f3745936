#include "serve/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/host_port.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio::serve {
namespace {

// What a refused client has still to send is read for so long, so that it reads the answer before
// it notices the closed connection.
constexpr absl::Duration kDrainTime = absl::Seconds(2);
constexpr size_t kReadBytes = size_t{16} << 10;

const char* ReasonOf(int code) {
  static const std::map<int, const char*> kReasons = {
      {200, "OK"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {411, "Length Required"},
      {413, "Content Too Large"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {503, "Service Unavailable"},
      {505, "HTTP Version Not Supported"},
  };
  const auto found = kReasons.find(code);
  return found != kReasons.end() ? found->second : "Status";
}

std::string HeadOf(int code, const std::string& type, bool keep_alive) {
  return absl::StrCat("HTTP/1.1 ", code, " ", ReasonOf(code), "\r\nContent-Type: ", type,
                      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff",
                      "\r\nConnection: ", keep_alive ? "keep-alive" : "close", "\r\n");
}

}  // namespace

struct HttpServer::Connection {
  Connection(int socket, const std::shared_ptr<TlsContext>& tls, const RequestLimits& limits)
      : stream(socket, tls), parser(limits) {}

  TlsSocket stream;
  HttpRequestParser parser;
  Phase phase = Phase::kHandshake;
  absl::Time since;     // when the phase began; while kReading, when the first byte came
  absl::Time progress;  // when output was last accepted
  Exchange exchange = 0;
  bool keep_alive = true;
  bool head_only = false;
  bool chunked = false;
  std::string output;
  size_t sent = 0;
  bool closed = false;

  bool has_output() const { return sent < output.size(); }
};

HttpServer::HttpServer(std::unique_ptr<ReloadedTls> tls, const Limits& limits)
    : tls_(std::move(tls)), limits_(limits) {}

HttpServer::~HttpServer() {
  if (listener_ >= 0) close(listener_);
  if (wake_ >= 0) close(wake_);
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const std::string& address,
                                                               std::unique_ptr<ReloadedTls> tls,
                                                               const Limits& limits) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(tls), limits));
  TERCIO_RETURN_IF_ERROR(server->Open(address));
  return server;
}

absl::Status HttpServer::Open(const std::string& address) {
  const std::optional<HostPort> parts = SplitHostPort(address);
  if (!parts.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(address, " is not HOST:PORT"));
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(parts->host.c_str(), parts->port.c_str(), &hints, &found)) {
    return absl::InvalidArgumentError(absl::StrCat(address, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  listener_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int yes = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (listener_ < 0 || bind(listener_, found->ai_addr, found->ai_addrlen) != 0 ||
      listen(listener_, SOMAXCONN) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", address, ": ", strerror(errno)));
  }
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &length);
  const uint16_t port = bound.ss_family == AF_INET6
                            ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                            : reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
  const bool brackets = parts->host.find(':') != std::string::npos;
  address_ = absl::StrCat(brackets ? "[" : "", parts->host, brackets ? "]" : "", ":", ntohs(port));
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  TERCIO_CHECK_GE(wake_, 0);
  return absl::OkStatus();
}

void HttpServer::Wake() {
  const uint64_t one = 1;
  // A full counter wakes the thread as well.
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
}

void HttpServer::Stop(absl::Duration grace) {
  grace_ms_ = absl::ToInt64Milliseconds(grace);
  stopping_ = true;
  Wake();
}

void HttpServer::Run(HttpHandler& handler) {
  handler_ = &handler;
  absl::Time end = absl::InfiniteFuture();
  while (true) {
    if (stopping_ && end == absl::InfiniteFuture()) {
      end = SteadyNow() + absl::Milliseconds(grace_ms_.load());
      close(std::exchange(listener_, -1));
    }
    if (stopping_) {
      // Connections that wait for nothing do not delay the end.
      for (const auto& connection : connections_) {
        if (connection->phase == Phase::kReading || connection->phase == Phase::kHandshake) {
          connection->closed = true;
        }
      }
      Sweep();
      if (connections_.empty() || SteadyNow() >= end) break;
    }
    PollOnce();
    CheckTimes();
    Sweep();
  }
  for (const auto& connection : connections_) Abandon(*connection);
  Sweep();
}

void HttpServer::PollOnce() {
  std::vector<pollfd> waits = {{wake_, POLLIN, 0}};
  // Without room new connections wait in the kernel.
  const bool may_accept = listener_ >= 0 && (connections_.size() < limits_.connections ||
                                             Silent() != connections_.end());
  waits.push_back({may_accept ? listener_ : -1, POLLIN, 0});
  std::vector<Connection*> served;
  bool pending = false;
  for (const auto& connection : connections_) {
    if (connection->closed) continue;
    int16_t events = POLLRDHUP;
    const bool reads =
        connection->phase == Phase::kReading || connection->phase == Phase::kDraining;
    if (reads) events |= POLLIN;
    if (connection->phase == Phase::kHandshake) {
      events |= connection->stream.wants_write() ? POLLOUT : POLLIN;
    }
    if (connection->has_output()) events |= POLLOUT;
    pending = pending || (reads && connection->stream.has_pending());
    waits.push_back({connection->stream.descriptor(), events, 0});
    served.push_back(connection.get());
  }
  // The slowest deadline is noticed within half a second.
  const int timeout = pending ? 0 : 500;
  poll(waits.data(), waits.size(), timeout);
  if (waits[0].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(wake_, &count, sizeof(count));
    handler_->Woken();
  }
  for (size_t i = 0; i < served.size(); ++i) Serve(*served[i], waits[i + 2].revents);
  if (waits[1].revents != 0) Accept();
}

void HttpServer::Accept() {
  while (true) {
    const bool full = connections_.size() >= limits_.connections;
    const auto silent = Silent();
    if (full && silent == connections_.end()) return;
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) return;
    if (full) connections_.erase(silent);
    const int yes = 1;
    // Tokens are small, and each is wanted at once.
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    const absl::Time now = SteadyNow();
    const std::shared_ptr<TlsContext> tls = tls_ == nullptr ? nullptr : tls_->Current(now);
    connections_.push_back(std::make_unique<Connection>(socket, tls, limits_.requests));
    connections_.back()->since = now;
    connections_.back()->progress = now;
    if (tls_ == nullptr) connections_.back()->phase = Phase::kReading;
  }
}

// The connection that gives way to a new one: the oldest of those that wait for nothing.
HttpServer::Connections::iterator HttpServer::Silent() {
  return std::find_if(
      connections_.begin(), connections_.end(), [](const std::unique_ptr<Connection>& connection) {
        return connection->phase == Phase::kReading || connection->phase == Phase::kHandshake ||
               connection->phase == Phase::kDraining;
      });
}

void HttpServer::Serve(Connection& connection, int16_t events) {
  if (connection.closed) return;
  if ((events & (POLLERR | POLLNVAL | POLLHUP)) != 0) return Abandon(connection);
  const bool answering =
      connection.phase == Phase::kAnswering || connection.phase == Phase::kFlushing;
  // Half a close is a whole one while the client has nothing more to send.
  if ((events & POLLRDHUP) != 0 && answering) return Abandon(connection);
  if (connection.phase == Phase::kHandshake && events != 0) {
    const TlsSocket::Result result = connection.stream.Handshake();
    if (result == TlsSocket::Result::kGone) return Abandon(connection);
    if (result == TlsSocket::Result::kWouldBlock) return;
    connection.phase = Phase::kReading;
    connection.since = SteadyNow();
  }
  if ((events & POLLOUT) != 0) Write(connection);
  if (connection.closed) return;
  if (connection.phase == Phase::kReading &&
      ((events & (POLLIN | POLLRDHUP)) != 0 || connection.stream.has_pending())) {
    Read(connection);
  } else if (connection.phase == Phase::kDraining && (events & (POLLIN | POLLRDHUP)) != 0) {
    Drain(connection);
  }
}

void HttpServer::Read(Connection& connection) {
  char buffer[kReadBytes];
  size_t count = 0;
  const TlsSocket::Result result = connection.stream.Read(buffer, sizeof(buffer), &count);
  if (result == TlsSocket::Result::kGone) return Abandon(connection);
  if (result == TlsSocket::Result::kWouldBlock) return;
  if (!connection.parser.begun()) connection.since = SteadyNow();
  Advance(connection, connection.parser.Consume(std::string_view(buffer, count)));
}

void HttpServer::Advance(Connection& connection, HttpRequestParser::State state) {
  switch (state) {
    case HttpRequestParser::State::kFailed:
      return Refuse(connection, connection.parser.error());
    case HttpRequestParser::State::kNeedsMore:
      if (connection.parser.TakeWaitsForContinue()) {
        Queue(connection, "HTTP/1.1 100 Continue\r\n\r\n");
      }
      return;
    case HttpRequestParser::State::kComplete:
      break;
  }
  HttpRequest request = connection.parser.Take();
  connection.phase = Phase::kAnswering;
  connection.since = SteadyNow();
  connection.exchange = next_++;
  connection.keep_alive = request.keep_alive && !stopping_;
  connection.head_only = request.method == "HEAD";
  connection.chunked = false;
  exchanges_[connection.exchange] = &connection;
  handler_->Request(connection.exchange, std::move(request));
}

void HttpServer::Refuse(Connection& connection, const HttpError& error) {
  connection.keep_alive = false;
  const std::string body = handler_->ErrorBody(error);
  Queue(connection, absl::StrCat(HeadOf(error.code, "application/json", false),
                                 "Content-Length: ", body.size(), "\r\n\r\n", body));
  FinishAnswer(connection);
}

void HttpServer::Queue(Connection& connection, std::string_view bytes) {
  if (connection.closed) return;
  if (!connection.has_output()) connection.progress = SteadyNow();
  connection.output.erase(0, std::exchange(connection.sent, 0));
  connection.output.append(bytes);
  Write(connection);
  // A whole answer may be longer; pieces of one that has begun wait no longer than this.
  if (connection.chunked && connection.output.size() - connection.sent > limits_.output_bytes) {
    Abandon(connection);
  }
}

void HttpServer::Write(Connection& connection) {
  while (connection.has_output()) {
    size_t count = 0;
    const auto rest = std::string_view(connection.output).substr(connection.sent);
    const TlsSocket::Result result = connection.stream.Write(rest, &count);
    if (result == TlsSocket::Result::kGone) return Abandon(connection);
    if (result == TlsSocket::Result::kWouldBlock) return;
    connection.sent += count;
    connection.progress = SteadyNow();
  }
  connection.output.clear();
  connection.sent = 0;
  if (connection.phase == Phase::kFlushing) FinishAnswer(connection);
}

// The answer is complete; what is left of it is written before the next request is read.
void HttpServer::FinishAnswer(Connection& connection) {
  if (connection.closed) return;
  exchanges_.erase(std::exchange(connection.exchange, 0));
  connection.phase = Phase::kFlushing;
  if (connection.has_output()) return;
  connection.since = SteadyNow();
  if (!connection.keep_alive) {
    connection.stream.ShutDownWriting();
    connection.phase = Phase::kDraining;
    return;
  }
  connection.phase = Phase::kReading;
  // The next request may have come with the last one.
  if (connection.parser.begun()) Advance(connection, connection.parser.Consume(""));
}

void HttpServer::Drain(Connection& connection) {
  char buffer[kReadBytes];
  size_t count = 0;
  const TlsSocket::Result result = connection.stream.Read(buffer, sizeof(buffer), &count);
  if (result == TlsSocket::Result::kGone) connection.closed = true;
}

void HttpServer::Abandon(Connection& connection) {
  if (std::exchange(connection.closed, true)) return;
  const Exchange exchange = std::exchange(connection.exchange, 0);
  if (exchange == 0) return;
  exchanges_.erase(exchange);
  handler_->Gone(exchange);
}

void HttpServer::CheckTimes() {
  const absl::Time now = SteadyNow();
  for (const auto& connection : connections_) {
    if (connection->closed) continue;
    if (connection->has_output() && now - connection->progress > limits_.patience) {
      Abandon(*connection);
      continue;
    }
    const absl::Duration age = now - connection->since;
    switch (connection->phase) {
      case Phase::kHandshake:
        if (age > limits_.patience) connection->closed = true;
        break;
      case Phase::kReading:
        if (connection->parser.begun() && age > limits_.patience) {
          Refuse(*connection, {408, "the request did not arrive in time"});
        } else if (age > limits_.idle) {
          connection->closed = true;
        }
        break;
      case Phase::kDraining:
        if (age > kDrainTime) connection->closed = true;
        break;
      case Phase::kAnswering:
      case Phase::kFlushing:
        break;
    }
  }
}

void HttpServer::Sweep() {
  connections_.remove_if(
      [](const std::unique_ptr<Connection>& connection) { return connection->closed; });
}

HttpServer::Connection* HttpServer::Find(Exchange exchange) {
  const auto found = exchanges_.find(exchange);
  return found == exchanges_.end() ? nullptr : found->second;
}

void HttpServer::Answer(Exchange exchange, const HttpAnswer& answer) {
  Connection* const connection = Find(exchange);
  if (connection == nullptr) return;
  std::string head = HeadOf(answer.code, answer.type, connection->keep_alive);
  for (const auto& [name, value] : answer.headers)
    absl::StrAppend(&head, name, ": ", value, "\r\n");
  absl::StrAppend(&head, "Content-Length: ", answer.body.size(), "\r\n\r\n");
  if (!connection->head_only) head += answer.body;
  Queue(*connection, head);
  FinishAnswer(*connection);
}

void HttpServer::Begin(Exchange exchange, const std::string& type) {
  Connection* const connection = Find(exchange);
  if (connection == nullptr) return;
  connection->chunked = true;
  Queue(*connection,
        HeadOf(200, type, connection->keep_alive) + "Transfer-Encoding: chunked\r\n\r\n");
}

void HttpServer::Send(Exchange exchange, std::string_view bytes) {
  Connection* const connection = Find(exchange);
  // An empty chunk would be the last one.
  if (connection == nullptr || bytes.empty()) return;
  Queue(*connection, absl::StrCat(absl::Hex(bytes.size()), "\r\n",
                                  absl::string_view(bytes.data(), bytes.size()), "\r\n"));
}

void HttpServer::End(Exchange exchange) {
  Connection* const connection = Find(exchange);
  if (connection == nullptr) return;
  Queue(*connection, "0\r\n\r\n");
  FinishAnswer(*connection);
}

}  // namespace tercio::serve
