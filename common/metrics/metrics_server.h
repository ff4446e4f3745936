// A small HTTP server of a few pages, for Prometheus. It is made to be asked by anybody, at any
// rate: what all of them together can take of the daemon is bounded.
//
//   processor   one thread, of a low priority. A page is made again only when the one before is
//               20 times as old as making it took, so pages cost 5 % of a core at most; at most
//               `Limits::connections_per_second` come in, and others wait in the kernel.
//   memory      `Limits::connections` connections of 8 KiB each; those that are sent the same page
//               share it. Where there are more, the one that has asked for nothing for longest is
//               closed, so nobody can keep others out by connecting.
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
    int64_t refused = 0;  // no such page, or no request that can be read
    int64_t dropped = 0;  // too slow, or given up for others
    int64_t connections = 0;
  };
  struct Page {
    std::string type;
    // Is given what the server knows of itself. Absent: the page cannot be made yet (503).
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
  // No page is made after it.
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
    Text answer;  // null until it has asked
    size_t sent = 0;
  };
  using Connections = std::list<Connection>;  // the oldest first

  MetricsServer(Pages pages, const Limits& limits) : pages_(std::move(pages)), limits_(limits) {}
  absl::Status Open(const std::string& address);
  void Run();
  void Accept(Time now);
  void MakeRoom();
  // Whether the connection is over.
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
  double allowance_ = 0;  // connections that may come in now
  Time allowance_at_;
  std::thread thread_;
};

// The figures as metrics.
void AddServerMetrics(const MetricsServer::Figures& figures, MetricsPage* page);

}  // namespace tercio
