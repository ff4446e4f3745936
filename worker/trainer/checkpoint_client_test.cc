// Uploads and reads against a checkpoint service of the test's own.
#include "worker/trainer/checkpoint_client.h"

#include <atomic>
#include <cstring>
#include <numeric>

#include "checkpoint/rank_file.h"
#include "common/channel.h"
#include "common/checksum.h"
#include "gmock/gmock.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "worker/engine/fp8_scaling.h"
#include "worker/trainer/fake_engine.h"

namespace tercio {
namespace {

using ::testing::HasSubstr;

class FakeService : public v1::CheckpointService::Service {
 public:
  FakeService() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~FakeService() override { server_->Shutdown(); }
  const std::string& address() const { return address_; }

  grpc::Status Upload(grpc::ServerContext*, grpc::ServerReader<v1::UploadMessage>* reader,
                      v1::UploadResponse*) override {
    v1::UploadMessage message;
    if (!reader->Read(&message) || !message.has_begin()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no begin");
    }
    begin = message.begin();
    if (refuse) return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the disk is full");
    if (away > 0) {
      --away;
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "away");
    }
    bytes.clear();
    while (reader->Read(&message)) {
      if (message.has_end()) end = message.end();
      if (!message.has_chunk()) continue;
      largest_chunk = std::max(largest_chunk, message.chunk().data().size());
      bytes += message.chunk().data();
    }
    return grpc::Status::OK;
  }

  grpc::Status ReadTensor(grpc::ServerContext*, const v1::ReadTensorRequest* request,
                          grpc::ServerWriter<v1::TensorChunk>* writer) override {
    if (request->slice().tensor() == lacks) {
      return grpc::Status(grpc::StatusCode::NOT_FOUND, "has no tensor " + lacks);
    }
    // Element i of the slice is row_begin + i; in two chunks.
    const int64_t elements = request->slice().row_end() - request->slice().row_begin();
    std::vector<float> values(static_cast<size_t>(elements));
    std::iota(values.begin(), values.end(), static_cast<float>(request->slice().row_begin()));
    const std::string all(reinterpret_cast<const char*>(values.data()),
                          values.size() * sizeof(float) - (truncate ? 4 : 0));
    v1::TensorChunk chunk;
    chunk.set_data(all.substr(0, 5));
    writer->Write(chunk);
    chunk.set_data(all.substr(5));
    writer->Write(chunk);
    return grpc::Status::OK;
  }

  std::atomic<bool> refuse{false};
  std::atomic<int> away{0};  // so many uploads fail
  std::atomic<bool> truncate{false};
  std::string lacks;  // this tensor
  v1::UploadBegin begin;
  v1::UploadEnd end;
  std::string bytes;
  size_t largest_chunk = 0;

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

class CheckpointClientTest : public ::testing::Test {
 protected:
  std::unique_ptr<CheckpointClient> Client() {
    CheckpointIdentity identity;
    identity.run.set_job_id("j1");
    identity.run.set_attempt(2);
    identity.token = "token";
    identity.rank = 1;
    identity.world_size = 4;
    return std::make_unique<CheckpointClient>(*OpenChannel(service_.address(), {}), identity);
  }
  FakeService service_;
};

TEST_F(CheckpointClientTest, UploadsInChunksWithAChecksum) {
  std::vector<float> values(700'000);  // 2.8 MB: three chunks
  std::iota(values.begin(), values.end(), 0.5f);
  absl::Status status = absl::UnknownError("not done");
  const auto client = Client();
  std::vector<v1::StepRecord> steps(3);
  steps[2].set_step(40);
  client->StartUpload(40, {Rows("w", 0, 700'000)}, {values}, {"{\"step\":40}", "{}", steps},
                      absl::ZeroDuration(),
                      [&](const absl::Status& s, int64_t bytes, double seconds) {
                        status = s;
                        EXPECT_EQ(bytes, 2'800'000);
                        EXPECT_GT(seconds, 0);
                      });
  client->WaitForUpload().IgnoreError();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(service_.begin.run().attempt(), 2);
  EXPECT_EQ(service_.begin.token(), "token");
  EXPECT_EQ(service_.begin.rank(), 1);
  EXPECT_EQ(service_.begin.world_size(), 4);
  EXPECT_EQ(service_.begin.step(), 40);
  EXPECT_EQ(service_.begin.training_state(), "{\"step\":40}");
  ASSERT_EQ(service_.begin.steps_size(), 3);
  EXPECT_EQ(service_.begin.steps(2).step(), 40);
  ASSERT_EQ(service_.bytes.size(), values.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(service_.bytes.data(), values.data(), service_.bytes.size()), 0);
  EXPECT_LE(service_.largest_chunk, size_t{1} << 20);
  EXPECT_EQ(service_.end.checksum(),
            ChecksumHex(checkpoint::RankFileOf(service_.begin.slices())->header + service_.bytes));
  EXPECT_EQ(service_.end.bytes(), 2'800'000);
}

TEST_F(CheckpointClientTest, ARefusedUploadIsReportedAndTheNextOneWorks) {
  const std::vector<float> values(1'000'000, 1.0f);
  const auto client = Client();
  std::vector<absl::Status> outcomes;
  const auto done = [&](const absl::Status& s, int64_t, double) { outcomes.push_back(s); };
  service_.refuse = true;
  client->StartUpload(1, {Rows("w", 0, 1'000'000)}, {values}, {}, absl::Seconds(20), done);
  client->WaitForUpload().IgnoreError();
  service_.refuse = false;
  client->StartUpload(2, {Rows("w", 0, 1'000'000)}, {values}, {}, absl::Seconds(20), done);
  client->WaitForUpload().IgnoreError();
  ASSERT_EQ(outcomes.size(), 2u);
  EXPECT_EQ(outcomes[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(outcomes[0].message()), HasSubstr("the disk is full"));
  EXPECT_TRUE(outcomes[1].ok()) << outcomes[1];
}

TEST_F(CheckpointClientTest, OnlyAPatientUploadWaitsForTheServiceToComeBack) {
  const std::vector<float> values(1000, 1.0f);
  const auto client = Client();
  std::vector<absl::Status> outcomes;
  const auto done = [&](const absl::Status& s, int64_t, double) { outcomes.push_back(s); };
  service_.away = 2;
  client->StartUpload(1, {Rows("w", 0, 1000)}, {values}, {}, absl::ZeroDuration(), done);
  client->WaitForUpload().IgnoreError();
  EXPECT_EQ(service_.away, 1);
  client->StartUpload(2, {Rows("w", 0, 1000)}, {values}, {}, absl::Seconds(20), done);
  client->WaitForUpload().IgnoreError();
  ASSERT_EQ(outcomes.size(), 2u);
  EXPECT_EQ(outcomes[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(outcomes[1].ok()) << outcomes[1];
  EXPECT_EQ(service_.bytes.size(), 4000u);
}

TEST_F(CheckpointClientTest, AnUploadThatNobodyAnswersIsGivenUpForTheNext) {
  const std::vector<float> values(1000, 1.0f);
  const auto client = Client();
  const auto done = [](const absl::Status&, int64_t, double) {};
  service_.away = 1'000'000;
  client->StartUpload(1, {Rows("w", 0, 1000)}, {values}, {}, absl::Hours(1), done);
  client->StopRetrying();
  EXPECT_EQ(client->WaitForUpload().code(), absl::StatusCode::kUnavailable);
  service_.away = 1;
  client->StartUpload(2, {Rows("w", 0, 1000)}, {values}, {}, absl::Hours(1), done);
  EXPECT_TRUE(client->WaitForUpload().ok());
}

TEST_F(CheckpointClientTest, LoadsEverySliceTheEngineNeeds) {
  FakeEngine engine;
  engine.slices = {Rows("a", 10, 14), Rows("b", 0, 3)};
  const absl::Status status = Client()->Load(40, engine);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(engine.loaded.size(), 2u);
  EXPECT_EQ(engine.loaded[0].second, (std::vector<float>{10, 11, 12, 13}));
  EXPECT_EQ(engine.loaded[1].second, (std::vector<float>{0, 1, 2}));
}

TEST_F(CheckpointClientTest, OnlyTheStateOfGuardAndScalesMayBeMissing) {
  for (const std::string& missing :
       {std::string(kGuardTensor), std::string(kSpikeTensor), Fp8Tensor(3)}) {
    FakeEngine engine;
    engine.slices = {Rows("a", 10, 14), Rows(missing, 0, 5)};
    service_.lacks = missing;
    absl::Status status = Client()->Load(40, engine);
    EXPECT_TRUE(status.ok()) << status;
    ASSERT_EQ(engine.loaded.size(), 1u);
    service_.lacks = "a";
    status = Client()->Load(40, engine);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(engine.loaded.size(), 1u);
  }
}

TEST_F(CheckpointClientTest, ATensorThatIsTooShortIsDataLoss) {
  FakeEngine engine;
  engine.slices = {Rows("a", 10, 14)};
  service_.truncate = true;
  const absl::Status status = Client()->Load(40, engine);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor a"));
  EXPECT_TRUE(engine.loaded.empty());
}

}  // namespace
}  // namespace tercio
