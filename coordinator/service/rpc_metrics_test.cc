// Calls over loopback, by what is counted of them.
#include "coordinator/service/rpc_metrics.h"

#include <chrono>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/tercio/v1/job_service.grpc.pb.h"

namespace tercio::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Service : public v1::JobService::CallbackService {
 public:
  using v1::JobService::CallbackService::Get;
  using v1::JobService::CallbackService::Watch;

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const v1::GetRequest* request,
                                v1::JobStatus*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(request->job().empty()
                        ? grpc::Status(grpc::StatusCode::NOT_FOUND, "no such job")
                        : grpc::Status::OK);
    return reactor;
  }
  // A stream that goes on until its client ends it.
  grpc::ServerWriteReactor<v1::JobStatus>* Watch(grpc::CallbackServerContext*,
                                                 const v1::WatchRequest*) override {
    class Endless : public grpc::ServerWriteReactor<v1::JobStatus> {
     public:
      Endless() { StartWrite(&status_); }
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }

     private:
      v1::JobStatus status_;
    };
    return new Endless;
  }
};

class RpcMetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
    creators.push_back(metrics_.MakeInterceptors());
    builder.experimental().SetInterceptorCreators(std::move(creators));
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    stub_ = v1::JobService::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                        grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  std::string Page() const {
    MetricsPage page(MetricExporter::kCoordinator);
    metrics_.AddTo(&page);
    return page.Text();
  }
  // The end of a call is counted when gRPC has destroyed it, some moments later.
  void WaitFor(const std::string& line) const {
    while (Page().find(line) == std::string::npos) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void Get(const std::string& job) {
    grpc::ClientContext context;
    v1::GetRequest request;
    request.set_job(job);
    v1::JobStatus status;
    stub_->Get(&context, request, &status);
  }

  RpcMetrics metrics_{{"tercio.v1.JobService"}};
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::JobService::Stub> stub_;
};

constexpr char kGet[] = "method=\"Get\",service=\"tercio.v1.JobService\",type=\"unary\"}";
constexpr char kWatch[] =
    "method=\"Watch\",service=\"tercio.v1.JobService\",type=\"server_stream\"}";

TEST_F(RpcMetricsTest, SeriesStartAtZero) {
  const std::string page = Page();
  EXPECT_THAT(page, HasSubstr(std::string("tercio_rpc_started_total{") + kGet + " 0\n"));
  EXPECT_THAT(page,
              HasSubstr(std::string("tercio_rpc_handled_total{code=\"OK\",") + kGet + " 0\n"));
  EXPECT_THAT(page, Not(HasSubstr("NOT_FOUND")));
}

TEST_F(RpcMetricsTest, CountsCallsByCode) {
  for (int i = 0; i < 3; ++i) Get("j");
  Get("");
  WaitFor(std::string("tercio_rpc_handled_total{code=\"OK\",") + kGet + " 3\n");
  WaitFor(std::string("tercio_rpc_handled_total{code=\"NOT_FOUND\",") + kGet + " 1\n");
  WaitFor(std::string("tercio_rpc_started_total{") + kGet + " 4\n");
  WaitFor(std::string("tercio_rpc_open{") + kGet + " 0\n");
  WaitFor(std::string("tercio_rpc_duration_seconds_count{") + kGet + " 4\n");
}

TEST_F(RpcMetricsTest, StreamsAreOpenUntilTheyEnd) {
  grpc::ClientContext context;
  const auto stream = stub_->Watch(&context, v1::WatchRequest());
  v1::JobStatus status;
  ASSERT_TRUE(stream->Read(&status));
  WaitFor(std::string("tercio_rpc_open{") + kWatch + " 1\n");
  context.TryCancel();
  stream->Finish();
  WaitFor(std::string("tercio_rpc_open{") + kWatch + " 0\n");
  WaitFor(std::string("tercio_rpc_handled_total{code=\"CANCELLED\",") + kWatch + " 1\n");
}

TEST(RpcMetrics, OtherServicesAreOne) {
  const RpcMetrics metrics({});
  MetricsPage page(MetricExporter::kCoordinator);
  metrics.AddTo(&page);
  EXPECT_THAT(page.Text(),
              HasSubstr("tercio_rpc_open{method=\"other\",service=\"other\",type=\"other\"} 0\n"));
}

}  // namespace
}  // namespace tercio::coordinator
