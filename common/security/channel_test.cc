#include "common/security/channel.h"

#include <arpa/inet.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

TEST(IsLoopbackTest, OnlyWhatCannotBeReachedFromOutside) {
  for (const char* address :
       {"127.0.0.1:7077", "127.8.9.1:1", "localhost:7077", "[::1]:7077", "unix:/run/socket"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  // A host name may start like an address.
  for (const char* address :
       {"0.0.0.0:7077", "127.example.com:7077", "127.0.0.1.example.com:7077", "::1:7077", "[::]:1",
        "localhost.example:1", "10.0.0.1:7077", "127.0.0.1", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

// Relays one connection to a port of this machine until it is told to stop relaying: both ends then
// stay open, as when a cable is pulled.
class Relay {
 public:
  explicit Relay(int to) : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = Loopback(0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, to] { Run(to); });
  }
  ~Relay() {
    ended_ = true;
    thread_.join();
    close(listener_);
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int port() const { return port_; }
  void Cut() { cut_ = true; }

 private:
  static sockaddr_in Loopback(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    return address;
  }
  void Run(int to) const {
    pollfd waiting = {listener_, POLLIN, 0};
    while (poll(&waiting, 1, 10) == 0) {
      if (ended_) return;
    }
    const int ends[2] = {accept(listener_, nullptr, nullptr), socket(AF_INET, SOCK_STREAM, 0)};
    const sockaddr_in address = Loopback(to);
    EXPECT_EQ(connect(ends[1], reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    while (!ended_) {
      pollfd both[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}};
      poll(both, cut_ ? 0 : 2, 10);
      for (int i = 0; i < 2 && !cut_; ++i) {
        if (both[i].revents == 0) continue;
        char bytes[4096];
        const ssize_t count = read(ends[i], bytes, sizeof(bytes));
        if (count <= 0) continue;
        EXPECT_EQ(write(ends[1 - i], bytes, static_cast<size_t>(count)), count);
      }
    }
    close(ends[0]);
    close(ends[1]);
  }

  const int listener_;
  int port_ = 0;
  std::atomic<bool> cut_{false};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// Calls that never end by themselves.
class Waiting : public grpc::CallbackGenericService {
 public:
  std::promise<void> began;
  std::promise<void> broke;

 private:
  class Call : public grpc::ServerGenericBidiReactor {
   public:
    explicit Call(Waiting& service) : service_(service) {
      StartSendInitialMetadata();
      service_.began.set_value();
    }
    void OnCancel() override {
      service_.broke.set_value();
      Finish(grpc::Status::CANCELLED);
    }
    void OnDone() override { delete this; }

   private:
    Waiting& service_;
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Call(*this);
  }
};

constexpr std::chrono::seconds kLongest(20);
constexpr Pings kSoon = {absl::Milliseconds(200), absl::Milliseconds(200)};
constexpr Pings kNever = {absl::Hours(1), absl::Hours(1)};

// A call over a connection that is cut without a message from either end.
class HalfOpenTest : public ::testing::Test {
 protected:
  void Open(const Pings& of_client, const Pings& of_server) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    ConfigureServer(builder, std::numeric_limits<int>::max(), of_server);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    relay_ = std::make_unique<Relay>(port);
    const auto channel =
        OpenChannel(absl::StrCat("127.0.0.1:", relay_->port()), {}, kCoordinatorRole, of_client);
    ASSERT_TRUE(channel.ok()) << channel.status();
    stub_ = std::make_unique<grpc::GenericStub>(*channel);
    call_ = stub_->PrepareCall(&context_, "/test/Wait", &queue_);
    call_->StartCall(this);
    ASSERT_TRUE(Next());
    ASSERT_EQ(service_.began.get_future().wait_for(kLongest), std::future_status::ready);
    call_->Read(&message_, this);
    relay_->Cut();
  }
  void TearDown() override {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
    call_.reset();
    relay_.reset();
    server_->Shutdown(std::chrono::system_clock::now());
  }
  // Whether any event has occurred.
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kLongest) ==
           grpc::CompletionQueue::GOT_EVENT;
  }

  Waiting service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Relay> relay_;
  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::ByteBuffer message_;
};

TEST_F(HalfOpenTest, IsFoundByTheClient) {
  Open(kSoon, kNever);
  ASSERT_TRUE(Next()) << "it waits for ever";
  grpc::Status status;
  call_->Finish(&status, this);
  ASSERT_TRUE(Next());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
}

TEST_F(HalfOpenTest, IsFoundByTheServer) {
  Open(kNever, kSoon);
  EXPECT_EQ(service_.broke.get_future().wait_for(kLongest), std::future_status::ready)
      << "the call is held for ever";
}

// The settings of the programs detect it before users do.
TEST(PingsTest, AreSoonEnough) { EXPECT_LE(Pings().interval + Pings().timeout, absl::Minutes(1)); }

}  // namespace
}  // namespace tercio
