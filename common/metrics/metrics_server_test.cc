// The server with well-behaved clients, and with others.
#include "common/metrics/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class MetricsServerTest : public ::testing::Test {
 protected:
  // Serves "page 1", "page 2", ... followed by `padding` bytes.
  void Serve(const MetricsServer::Limits& limits, size_t padding = 0,
             std::chrono::milliseconds cost = std::chrono::milliseconds(0)) {
    MetricsServer::Pages pages;
    pages["/metrics"] = {kMetricsType, [this, padding, cost](const MetricsServer::Figures& seen) {
                           figures_served_ = seen.served;
                           figures_refused_ = seen.refused;
                           figures_dropped_ = seen.dropped;
                           std::this_thread::sleep_for(cost);
                           return "page " + std::to_string(++made_) + std::string(padding, '.');
                         }};
    auto server = MetricsServer::Listen("127.0.0.1:0", std::move(pages), limits);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  int Connect() const {
    sockaddr_in where = {};
    where.sin_family = AF_INET;
    const std::string& address = server_->address();
    where.sin_port =
        htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    inet_pton(AF_INET, "127.0.0.1", &where.sin_addr);
    const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(descriptor, reinterpret_cast<sockaddr*>(&where), sizeof(where)), 0);
    return descriptor;
  }

  static void Say(int descriptor, const std::string& text) {
    EXPECT_EQ(send(descriptor, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }

  // Reads until the server closes the connection.
  static std::string ReadAll(int descriptor) {
    std::string all;
    char buffer[4096];
    for (ssize_t count; (count = recv(descriptor, buffer, sizeof(buffer), 0)) > 0;) {
      all.append(buffer, static_cast<size_t>(count));
    }
    close(descriptor);
    return all;
  }

  std::string Ask(const std::string& request) const {
    const int descriptor = Connect();
    Say(descriptor, request);
    return ReadAll(descriptor);
  }
  std::string Scrape() const { return Ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); }

  std::atomic<int> made_{0};
  std::atomic<int64_t> figures_served_{0};
  std::atomic<int64_t> figures_refused_{0};
  std::atomic<int64_t> figures_dropped_{0};
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, AnswersWithThePage) {
  Serve({});
  EXPECT_EQ(Scrape(),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            "Content-Length: 6\r\nConnection: close\r\n\r\npage 1");
  EXPECT_THAT(Ask("GET /metrics?name[]=up HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200 OK"));
}

TEST_F(MetricsServerTest, TakesARequestInPieces) {
  Serve({});
  const int descriptor = Connect();
  for (const char* part : {"GET /met", "rics HTTP/1.1\r\n", "Host: x\r", "\n\r", "\n"}) {
    Say(descriptor, part);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_THAT(ReadAll(descriptor), HasSubstr("page 1"));
}

TEST_F(MetricsServerTest, RefusesEverythingElse) {
  Serve({});
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask("GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask("POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Ask("\x16\x03\x01\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask("GET /" + std::string(9000, 'x')), StartsWith("HTTP/1.1 431"));
  EXPECT_EQ(made_, 0);
  Scrape();
  EXPECT_EQ(figures_refused_, 5);
}

TEST_F(MetricsServerTest, APageThatCannotBeMadeYetIsAskedForAgain) {
  std::atomic<bool> ready = false;
  MetricsServer::Pages pages;
  pages["/metrics"] = {kMetricsType,
                       [&ready](const MetricsServer::Figures&) -> std::optional<std::string> {
                         if (!ready) return std::nullopt;
                         return "now";
                       }};
  auto server = MetricsServer::Listen("127.0.0.1:0", std::move(pages));
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  EXPECT_THAT(Scrape(), StartsWith("HTTP/1.1 503"));
  ready = true;
  EXPECT_THAT(Scrape(), HasSubstr("now"));
}

TEST_F(MetricsServerTest, SaysThatAnAddressIsInUseOrNone) {
  Serve({});
  const auto second = MetricsServer::Listen(server_->address(), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server_->address()));
  for (const char* address : {"", ":80", "nowhere", "no such host:1", "127.0.0.1:http-not"}) {
    const auto server = MetricsServer::Listen(address, {});
    EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

TEST_F(MetricsServerTest, ServesIpv6) {
  std::stringstream addresses;
  addresses << std::ifstream("/proc/net/if_inet6").rdbuf();
  if (addresses.str().find("00000000000000000000000000000001 ") == std::string::npos) {
    GTEST_SKIP() << "this machine has no address ::1";
  }
  const auto server = MetricsServer::Listen("[::1]:0", {});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT((*server)->address(), StartsWith("[::1]:"));
}

// A page that takes 5 ms is made once in 100 ms, however many clients request it.
TEST_F(MetricsServerTest, MakesAPageAtMostForATwentiethOfTheTime) {
  MetricsServer::Limits limits;
  limits.connections_per_second = 1e6;
  Serve(limits, 0, std::chrono::milliseconds(5));
  const auto began = std::chrono::steady_clock::now();
  int asked = 0;
  while (std::chrono::steady_clock::now() - began < std::chrono::milliseconds(500)) {
    EXPECT_THAT(Scrape(), HasSubstr("page "));
    ++asked;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  EXPECT_LE(made_, 1 + static_cast<int>(seconds / 0.1));
  EXPECT_GT(asked, made_);
}

TEST_F(MetricsServerTest, LetsInSoManyASecond) {
  MetricsServer::Limits limits;
  limits.connections_per_second = 100;
  Serve(limits);
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 60; ++i) Scrape();
  const auto took = std::chrono::steady_clock::now() - began;
  EXPECT_GE(took, std::chrono::milliseconds(300));  // 20 at once, 40 at 100 a second
}

TEST_F(MetricsServerTest, AnswersBesideThousandsThatOnlyConnect) {
  MetricsServer::Limits limits;
  limits.connections = 8;
  limits.connections_per_second = 1e5;
  Serve(limits);
  std::vector<int> silent;
  for (int i = 0; i < 2000; ++i) {
    silent.push_back(Connect());
    if (i % 5 == 0) Say(silent.back(), "GET /metr");
    if (i % 100 == 0) {
      EXPECT_THAT(Scrape(), HasSubstr("page "));
    }
    if (silent.size() > 200) {
      close(silent.front());
      silent.erase(silent.begin());
    }
  }
  EXPECT_THAT(Scrape(), HasSubstr("page "));
  EXPECT_GE(figures_dropped_, 1000);
  for (const int descriptor : silent) close(descriptor);
}

TEST_F(MetricsServerTest, SlowReadersShareAPageAndGoInTheEnd) {
  MetricsServer::Limits limits;
  limits.patience = absl::Milliseconds(300);
  constexpr size_t kPage = 8 << 20;  // far more than sockets take
  Serve(limits, kPage, std::chrono::milliseconds(20));
  rusage before = {};
  getrusage(RUSAGE_SELF, &before);
  std::vector<int> slow;
  for (int i = 0; i < 50; ++i) {
    slow.push_back(Connect());
    Say(slow.back(), "GET /metrics HTTP/1.1\r\n\r\n");
  }
  // A client that reads is served among them.
  EXPECT_GT(Scrape().size(), kPage);
  rusage after = {};
  getrusage(RUSAGE_SELF, &after);
  // The reader's own copy, a page or two, and the temporary memory for building and reading them:
  // far less than a page per client.
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, static_cast<int64_t>(20 * (kPage >> 10)));
  while (figures_dropped_ < 50) Scrape();
  for (const int descriptor : slow) EXPECT_LT(ReadAll(descriptor).size(), kPage);
}

TEST_F(MetricsServerTest, EndsWithOpenConnections) {
  Serve({}, 8 << 20);
  const int silent = Connect();
  const int slow = Connect();
  Say(slow, "GET /metrics HTTP/1.1\r\n\r\n");
  while (made_ == 0) std::this_thread::yield();
  const auto began = std::chrono::steady_clock::now();
  server_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  close(silent);
  close(slow);
}

}  // namespace
}  // namespace tercio
