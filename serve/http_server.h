// An HTTP/1.1 server for answers that take long: one thread moves the bytes of all connections, and
// none of them can hold up another.
//
//   memory   `Limits::connections` connections; of each at most one request (`requests`) and
//            `output_bytes` of an answer that its client has not read yet. A client that is slower
//            than that is cut off.
//   time     a request has to arrive, and output to be accepted, within `patience`; a connection
//            without a request is closed after `idle`.
//   loss     a client that closes its connection, or half of it, is reported at once (`Gone`), also
//            while nothing is written.
//
// A library would hold a thread for each connection, and notice a client that has gone with the
// next write only; answers without streaming have no such write.
//
// Threads: Run calls the handler, which calls Answer, Begin, Send and End; Wake and Stop may be
// called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "serve/http_request.h"
#include "serve/reloaded.h"
#include "serve/tls_socket.h"

namespace tercio::serve {

using Exchange = uint64_t;  // a request and its answer; never used again

using ReloadedTls = Reloaded<std::shared_ptr<TlsContext>>;

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual void Request(Exchange exchange, HttpRequest request) = 0;
  // The answer is no longer wanted; what is sent for the exchange is dropped. Also called from
  // within Answer, Begin, Send and End.
  virtual void Gone(Exchange exchange) = 0;
  // After Wake.
  virtual void Woken() = 0;
  // The body of an answer to a request that could not be read.
  virtual std::string ErrorBody(const HttpError& error) = 0;
};

struct HttpAnswer {
  int code = 200;
  std::string type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

class HttpServer {
 public:
  struct Limits {
    RequestLimits requests;
    size_t connections = 512;
    size_t output_bytes = size_t{1} << 20;
    absl::Duration patience = absl::Seconds(30);
    absl::Duration idle = absl::Seconds(60);
  };

  // `address` is HOST:PORT; port 0 picks a free one. `tls` may be null; a new connection gets what
  // it is at that moment. INVALID_ARGUMENT (no such
  // address) | FAILED_PRECONDITION (cannot listen there).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const std::string& address,
                                                            std::unique_ptr<ReloadedTls> tls,
                                                            const Limits& limits);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const std::string& address() const { return address_; }

  // Until Stop, and then until the answers that are wanted have been sent, for `grace` at most.
  void Run(HttpHandler& handler);
  void Wake();
  void Stop(absl::Duration grace);

  // ---- from the handler ----

  void Answer(Exchange exchange, const HttpAnswer& answer);
  // An answer whose length is not known: Begin, any number of Send, End.
  void Begin(Exchange exchange, const std::string& type);
  void Send(Exchange exchange, std::string_view bytes);
  void End(Exchange exchange);

  size_t connections() const { return connections_.size(); }

 private:
  enum class Phase { kHandshake, kReading, kAnswering, kFlushing, kDraining };
  struct Connection;
  using Connections = std::list<std::unique_ptr<Connection>>;

  HttpServer(std::unique_ptr<ReloadedTls> tls, const Limits& limits);
  absl::Status Open(const std::string& address);
  void Accept();
  Connections::iterator Silent();
  void PollOnce();
  void Serve(Connection& connection, int16_t events);
  void Read(Connection& connection);
  void Advance(Connection& connection, HttpRequestParser::State state);
  void Refuse(Connection& connection, const HttpError& error);
  void Write(Connection& connection);
  void Queue(Connection& connection, std::string_view bytes);
  void FinishAnswer(Connection& connection);
  void Drain(Connection& connection);
  void Abandon(Connection& connection);
  void CheckTimes();
  void Sweep();
  Connection* Find(Exchange exchange);

  const std::unique_ptr<ReloadedTls> tls_;
  const Limits limits_;
  std::string address_;
  int listener_ = -1;
  int wake_ = -1;  // an eventfd
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> grace_ms_{0};
  // ---- of the thread ----
  HttpHandler* handler_ = nullptr;
  Connections connections_;  // the oldest first
  std::map<Exchange, Connection*> exchanges_;
  Exchange next_ = 1;
};

}  // namespace tercio::serve
