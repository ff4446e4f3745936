// Real streams over loopback, with clients that read, that stop reading, and that are too many.
#include "coordinator/service/stream_hub.h"

#include <atomic>

#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/tercio/v1/job_service.grpc.pb.h"

namespace tercio::coordinator {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// Serves pages of 100 lines of a kilobyte: as many as --tail asks for, then the end, or never.
class Service : public v1::JobService::WithCallbackMethod_Logs<v1::JobService::Service> {
 public:
  explicit Service(StreamHub& hub) : hub_(hub) {}
  grpc::ServerWriteReactor<v1::LogLine>* Logs(grpc::CallbackServerContext* context,
                                              const v1::LogsRequest* request) override {
    auto read = [this, left = request->tail(),
                 follow = request->follow()]() mutable -> absl::StatusOr<Page<v1::LogLine>> {
      ++reads_;
      Page<v1::LogLine> page;
      for (int i = 0; i < 100 && left > 0; ++i, --left) {
        page.messages.emplace_back().set_line(std::string(1024, 'x'));
      }
      page.more = left > 0;
      page.ended = left == 0 && !follow;
      return page;
    };
    return hub_.Open<v1::LogLine>(
        context, request->follow() ? StreamHub::Kind::kFollows : StreamHub::Kind::kEnds,
        std::move(read));
  }
  int reads() const { return reads_; }

 private:
  using v1::JobService::WithCallbackMethod_Logs<v1::JobService::Service>::Logs;
  StreamHub& hub_;
  std::atomic<int> reads_{0};
};

class StreamHubTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  void TearDown() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  struct Call {
    std::unique_ptr<v1::JobService::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::LogLine>> reader;
    int Drain() {
      v1::LogLine line;
      int lines = 0;
      while (reader->Read(&line)) ++lines;
      return lines;
    }
  };
  std::unique_ptr<Call> Ask(int lines, bool follow) {
    auto call = std::make_unique<Call>();
    call->stub =
        v1::JobService::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
    v1::LogsRequest request;
    request.set_tail(lines);
    request.set_follow(follow);
    call->reader = call->stub->Logs(&call->context, request);
    return call;
  }
  template <typename Condition>
  void WaitFor(const Condition& condition) {
    const auto end = Clock::now() + std::chrono::seconds(20);
    while (!condition() && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_TRUE(condition());
  }

  std::atomic<uint64_t> version_{1};
  StreamHub hub_{{4, absl::Seconds(1)}, [this] { return version_.load(); }};
  Service service_{hub_};
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

TEST_F(StreamHubTest, BringsAllPagesToWhoReads) {
  const auto call = Ask(2050, false);
  EXPECT_EQ(call->Drain(), 2050);
  EXPECT_TRUE(call->reader->Finish().ok());
  EXPECT_EQ(service_.reads(), 21);
  WaitFor([&] { return hub_.figures().open == 0; });
  EXPECT_EQ(hub_.figures().cut_off, 0);
}

TEST_F(StreamHubTest, WhoDoesNotReadIsCutOffAndReadsWhy) {
  const auto call = Ask(1'000'000, true);
  WaitFor([&] { return hub_.figures().cut_off == 1; });
  const int reads = service_.reads();
  EXPECT_LT(reads, 1000) << "a gigabyte was not read for nobody";
  // What was on its way is still there, and then the reason.
  EXPECT_LT(call->Drain(), 100 * reads + 1);
  const grpc::Status status = call->reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("read nothing for 1s"));
  WaitFor([&] { return hub_.figures().open == 0; });
}

TEST_F(StreamHubTest, WhoNeverReadsIsDropped) {
  const auto call = Ask(1'000'000, true);
  WaitFor([&] { return hub_.figures().cut_off == 1; });
  WaitFor([&] { return hub_.figures().open == 0; });
  call->context.TryCancel();
}

TEST_F(StreamHubTest, AnIdleClientIsNotCutOffAndHearsOfAChange) {
  const auto call = Ask(1, true);
  v1::LogLine line;
  ASSERT_TRUE(call->reader->Read(&line));
  const int before = service_.reads();
  std::this_thread::sleep_for(std::chrono::milliseconds(2300));
  EXPECT_EQ(hub_.figures().cut_off, 0);
  EXPECT_EQ(hub_.figures().open, 1);
  EXPECT_LT(service_.reads() - before, 8) << "read again and again for nothing";
  ++version_;
  WaitFor([&] { return service_.reads() > before; });
  call->context.TryCancel();
  WaitFor([&] { return hub_.figures().open == 0; });
}

TEST_F(StreamHubTest, OneTooManyIsRefusedAndOthersGoOn) {
  std::vector<std::unique_ptr<Call>> calls;
  v1::LogLine line;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(Ask(1, true));
    ASSERT_TRUE(calls.back()->reader->Read(&line));
  }
  const auto refused = Ask(1, true);
  EXPECT_EQ(refused->Drain(), 0);
  const grpc::Status status = refused->reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--max-streams"));
  EXPECT_EQ(Ask(7, false)->Drain(), 7) << "a question is answered all the same";
  WaitFor([&] { return hub_.figures().open == 4; });
  calls.pop_back();
  WaitFor([&] { return hub_.figures().open == 3; });
  const auto next = Ask(1, true);
  EXPECT_TRUE(next->reader->Read(&line));
  next->context.TryCancel();
  for (const auto& call : calls) call->context.TryCancel();
}

}  // namespace
}  // namespace tercio::coordinator
