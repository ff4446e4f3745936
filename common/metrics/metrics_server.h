// A small HTTP server of a few pages, for Prometheus. It may be called by any client at any rate:
// the resources that all clients together can take from the daemon are bounded.
//
//   processor   one thread of low priority. A page is rendered again only when the last one is 20
//               times as old as its rendering took, so pages cost at most 5 % of a core; at most
//               `Limits::connections_per_second` are accepted, others wait in the kernel.
//   memory      `Limits::connections` connections of 8 KiB each; those that are sent the same page
//               share it. If there are more, the one that has been silent longest is closed, so
//               that no client can keep others out by connecting.
//   time        a connection ends with its answer, and after `Limits::patience` at the latest.
//
// Threads: pages are made in the server's own thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics/metrics_page.h"

namespace tercio {

// The type of MetricsPage::Text.
inline constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

class MetricsServer {
 public:
  struct Figures {
    int64_t served = 0;
    int64_t refused = 0;  // no such page, or an unreadable request
    int64_t dropped = 0;  // too slow, or closed to make room for others
    int64_t connections = 0;
  };
  struct Page {
    std::string type;
    // Receives the server's own figures. nullopt: the page cannot be made yet (503).
    std::function<std::optional<std::string>(const Figures&)> make;
  };
  using Pages = std::map<std::string, Page>;  // by path
  struct Limits {
    size_t connections = 64;
    double connections_per_second = 200;
    absl::Duration patience = absl::Seconds(10);
  };

  // `address` is HOST:PORT; port 0 picks a free one. INVALID_ARGUMENT (no such address) |
  // FAILED_PRECONDITION (cannot listen there).
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Listen(const std::string& address,
                                                               Pages pages, const Limits& limits);
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Listen(const std::string& address,
                                                               Pages pages) {
    return Listen(address, std::move(pages), Limits());
  }
  // No page is made after destruction.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  const std::string& address() const { return address_; }

 private:
  using Time = std::chrono::steady_clock::time_point;
  using Text = std::shared_ptr<const std::string>;
  struct Kept {
    Text text;  // an answer, with its head
    Time until;
  };
  struct Connection {
    int socket = -1;
    Time since;
    std::string request;
    Text answer;  // null until the request is complete
    size_t sent = 0;
  };
  using Connections = std::list<Connection>;  // the oldest first

  MetricsServer(Pages pages, const Limits& limits) : pages_(std::move(pages)), limits_(limits) {}
  absl::Status Open(const std::string& address);
  void Run();
  void Accept(Time now);
  void MakeRoom();
  // Whether the connection can be closed.
  bool Read(Connection& connection, Time now);
  bool Write(Connection& connection);
  Text AnswerTo(const std::string& request, Time now);
  Text PageAt(const std::string& path, const Page& page, Time now);
  Connections::iterator Close(Connections::iterator connection);
  void CloseSlow(Time now);
  bool MayComeIn(Time now);

  const Pages pages_;
  const Limits limits_;
  std::string address_;
  int listener_ = -1;
  int stop_ = -1;  // an eventfd
  // ---- of the thread ----
  Connections connections_;
  std::map<std::string, Kept> kept_;  // by path
  Figures figures_;
  double allowance_ = 0;  // connections that may be accepted now
  Time allowance_at_;
  std::thread thread_;
};

// The figures as metrics.
void AddServerMetrics(const MetricsServer::Figures& figures, MetricsPage* page);

}  // namespace tercio
