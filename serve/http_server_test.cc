#include "serve/http_server.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/host_port.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::serve {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Answers /echo with the body at once, /wait when the test says so, /flood without an end.
class TestHandler : public HttpHandler {
 public:
  explicit TestHandler(std::unique_ptr<HttpServer>& server) : server_(server) {}

  void Request(Exchange exchange, HttpRequest request) override {
    if (request.path == "/echo") return server_->Answer(exchange, {.body = request.body});
    MutexLock lock(mutex_);
    open_.insert(exchange);
    if (request.path != "/flood") return;
    server_->Begin(exchange, "text/plain");
    flooding_ = true;
  }
  void Gone(Exchange) override {
    gone_.fetch_add(1);
    flooding_ = false;
  }
  void Woken() override {
    std::set<Exchange> open;
    {
      MutexLock lock(mutex_);
      open = open_;
    }
    if (flooding_) {
      for (const Exchange exchange : open) server_->Send(exchange, std::string(10'000, 'x'));
    }
    if (!answering_) return;
    for (const Exchange exchange : open) server_->Answer(exchange, {.body = "late"});
  }
  std::string ErrorBody(const HttpError& error) override { return error.message; }

  size_t open() {
    MutexLock lock(mutex_);
    return open_.size();
  }
  int gone() const { return gone_.load(); }
  void AnswerAll() { answering_ = true; }

 private:
  std::unique_ptr<HttpServer>& server_;
  Mutex mutex_;
  std::set<Exchange> open_ TERCIO_GUARDED_BY(mutex_);
  std::atomic<int> gone_{0};
  std::atomic<bool> answering_{false};
  std::atomic<bool> flooding_{false};
};

class Client {
 public:
  explicit Client(const std::string& address) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in peer = {};
    peer.sin_family = AF_INET;
    peer.sin_port = htons(static_cast<uint16_t>(std::stoi(SplitHostPort(address)->port)));
    inet_pton(AF_INET, "127.0.0.1", &peer.sin_addr);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&peer), sizeof(peer)), 0);
    const timeval patience{20, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~Client() { Close(); }

  void Send(const std::string& bytes) {
    EXPECT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Until the text contains `end`, or the server has closed.
  std::string ReadUntil(const std::string& end) {
    std::string text;
    char buffer[4096];
    while (end.empty() || text.find(end) == std::string::npos) {
      const ssize_t count = recv(socket_, buffer, sizeof(buffer), 0);
      if (count <= 0) break;
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }
  std::string ReadAll() { return ReadUntil(""); }
  void Close() {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }

 private:
  int socket_;
};

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(const HttpServer::Limits& limits) {
    std::signal(SIGPIPE, SIG_IGN);
    auto server = HttpServer::Listen("127.0.0.1:0", nullptr, limits);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    thread_ = std::thread([this] { server_->Run(handler_); });
  }
  void TearDown() override {
    server_->Stop(absl::ZeroDuration());
    if (thread_.joinable()) thread_.join();
  }
  // Whether it becomes true within ten seconds; wakes the handler meanwhile.
  template <typename Condition>
  bool Soon(Condition condition) {
    for (int i = 0; i < 1000; ++i) {
      if (condition()) return true;
      server_->Wake();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  static std::string Post(const std::string& path, const std::string& body) {
    return absl::StrCat("POST ", path, " HTTP/1.1\r\nContent-Length: ", body.size(), "\r\n\r\n",
                        body);
  }

  std::unique_ptr<HttpServer> server_;
  TestHandler handler_{server_};
  std::thread thread_;
};

TEST_F(HttpServerTest, AConnectionCarriesSeveralRequests) {
  Start({});
  Client client(server_->address());
  client.Send(Post("/echo", "one") + Post("/echo", "two"));
  EXPECT_THAT(client.ReadUntil("two"), HasSubstr("\r\n\r\none"));
  client.Send("POST /echo HTTP/1.1\r\nContent-Length: 5\r\nConnection: close\r\n\r\nthree");
  EXPECT_THAT(client.ReadAll(), EndsWith("three"));
}

TEST_F(HttpServerTest, ABodyThatIsTooLargeIsAnsweredBeforeTheConnectionCloses) {
  Start({.requests = {.body_bytes = 1000}});
  Client client(server_->address());
  client.Send(Post("/echo", std::string(500'000, 'x')));
  const std::string answer = client.ReadAll();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(answer, HasSubstr("500000 bytes"));
}

TEST_F(HttpServerTest, AClientThatLeavesIsNoticedWithoutAWrite) {
  Start({});
  Client client(server_->address());
  client.Send(Post("/wait", ""));
  ASSERT_TRUE(Soon([&] { return handler_.open() == 1; }));
  EXPECT_EQ(handler_.gone(), 0);
  client.Close();
  EXPECT_TRUE(Soon([&] { return handler_.gone() == 1; }));
}

TEST_F(HttpServerTest, AReaderThatIsTooSlowIsCutOffAndHoldsUpNobody) {
  Start({.output_bytes = 50'000});
  Client slow(server_->address());
  slow.Send(Post("/flood", ""));
  EXPECT_TRUE(Soon([&] { return handler_.gone() == 1; }));
  Client other(server_->address());
  other.Send(Post("/echo", "hello"));
  EXPECT_THAT(other.ReadUntil("hello"), EndsWith("hello"));
}

TEST_F(HttpServerTest, ARequestHasToArriveInTime) {
  Start({.patience = absl::Milliseconds(200)});
  Client client(server_->address());
  client.Send("POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nhe");
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 408 "));
}

TEST_F(HttpServerTest, ANewClientTakesThePlaceOfASilentOne) {
  Start({.connections = 2});
  Client silent(server_->address());
  Client waiting(server_->address());
  waiting.Send(Post("/wait", ""));
  ASSERT_TRUE(Soon([&] { return handler_.open() == 1; }));
  Client third(server_->address());
  third.Send(Post("/echo", "hello"));
  EXPECT_THAT(third.ReadUntil("hello"), EndsWith("hello"));
  EXPECT_EQ(silent.ReadAll(), "");
  EXPECT_EQ(handler_.gone(), 0);
}

TEST_F(HttpServerTest, AStopWaitsForAnswers) {
  Start({});
  Client idle(server_->address());
  Client client(server_->address());
  client.Send(Post("/wait", ""));
  ASSERT_TRUE(Soon([&] { return handler_.open() == 1; }));
  server_->Stop(absl::Minutes(1));
  EXPECT_EQ(idle.ReadAll(), "");
  handler_.AnswerAll();
  server_->Wake();
  EXPECT_THAT(client.ReadUntil("late"), EndsWith("late"));
  client.Close();
  thread_.join();
}

TEST_F(HttpServerTest, AStopWithoutGraceEndsWhatRuns) {
  Start({});
  Client client(server_->address());
  client.Send(Post("/wait", ""));
  ASSERT_TRUE(Soon([&] { return handler_.open() == 1; }));
  server_->Stop(absl::ZeroDuration());
  thread_.join();
  EXPECT_EQ(handler_.gone(), 1);
}

TEST(HttpServerAddress, SaysWhyItCannotListen) {
  EXPECT_THAT(std::string(HttpServer::Listen("nowhere", nullptr, {}).status().message()),
              HasSubstr("HOST:PORT"));
  const auto first = HttpServer::Listen("127.0.0.1:0", nullptr, {});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(std::string(HttpServer::Listen((*first)->address(), nullptr, {}).status().message()),
              HasSubstr("cannot listen on " + (*first)->address()));
}

}  // namespace
}  // namespace tercio::serve
