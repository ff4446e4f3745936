// Uploads and reads against a checkpoint service of the test's own.
#include "worker/trainer/checkpoint_client.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "checkpoint/rank_file.h"
#include "common/checksum.h"
#include "common/security/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "worker/blocks/fp8_scaling.h"
#include "worker/collective/thread_transport.h"
#include "worker/device/cpu_device.h"
#include "worker/trainer/checkpoint_source.h"
#include "worker/trainer/state_loader.h"
#include "worker/trainer/testing/fake_engine.h"

namespace tercio::trainer {
namespace {

using ::testing::HasSubstr;

SaveLimits Patience(absl::Duration patience) { return {patience, absl::Minutes(10)}; }

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

  grpc::Status Upload(grpc::ServerContext* context, grpc::ServerReader<v1::UploadMessage>* reader,
                      v1::UploadResponse*) override {
    v1::UploadMessage message;
    if (!reader->Read(&message) || !message.has_begin()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no begin");
    }
    begin = message.begin();
    if (refuse) return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the disk is full");
    if (crowded > 0) {
      --crowded;
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                          "Received RST_STREAM with error code 11");
    }
    if (away > 0) {
      --away;
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "away");
    }
    bytes.clear();
    while (reader->Read(&message)) {
      if (message.has_end()) end = message.end();
      if (message.has_failure()) failure = message.failure();
      if (message.has_progress()) last_progress = message.progress().bytes();
      if (!message.has_chunk()) continue;
      largest_chunk = std::max(largest_chunk, message.chunk().data().size());
      bytes += message.chunk().data();
    }
    while (hangs && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::OK;
  }

  grpc::Status ReadTensor(grpc::ServerContext*, const v1::ReadTensorRequest* request,
                          grpc::ServerWriter<v1::TensorChunk>* writer) override {
    if (away > 0) {
      --away;
      v1::TensorChunk some;
      some.set_data("something");
      writer->Write(some);
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "away");
    }
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
  std::atomic<int> away{0};        // so many calls fail
  std::atomic<int> crowded{0};     // so many uploads find no memory for calls
  std::atomic<bool> hangs{false};  // takes every byte, and does not answer
  std::atomic<bool> truncate{false};
  std::string lacks;  // this tensor
  v1::UploadBegin begin;
  v1::UploadEnd end;
  v1::UploadFailure failure;
  std::string bytes;
  size_t largest_chunk = 0;
  std::atomic<int64_t> last_progress{0};

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

class CheckpointClientTest : public ::testing::Test {
 protected:
  static CheckpointIdentity Identity() {
    CheckpointIdentity identity;
    identity.run.set_job_id("j1");
    identity.run.set_attempt(2);
    identity.token = "token";
    identity.rank = 1;
    identity.world_size = 4;
    return identity;
  }
  std::unique_ptr<CheckpointClient> Client() {
    return std::make_unique<CheckpointClient>(*OpenChannel(service_.address(), {}), Identity());
  }
  std::shared_ptr<StateSource> Source() {
    return CheckpointAtCoordinator(*OpenChannel(service_.address(), {}), Identity(), 40);
  }
  static absl::Status LoadFrom(std::shared_ptr<StateSource> source, FakeEngine& engine) {
    const auto device = device::CreateCpuDevice(1);
    const auto stream = *device->CreateStream(device::Device::StreamKind::kCompute);
    const auto data = collective::CreateCommunicator(
        {"data", absl::Seconds(20)}, std::move(collective::CreateThreadTransports(1)[0]));
    return LoadState(
        std::move(source), {*data, *device, *stream}, [](int64_t, int64_t) {}, engine);
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
                      Patience(absl::ZeroDuration()),
                      [&](const SaveOutcome& outcome, int64_t bytes, double seconds) {
                        status = outcome.status;
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

// Copies go to the memory of agents first, however that ends.
TEST_F(CheckpointClientTest, TheCheckpointFollowsTheCopies) {
  const auto client = Client();
  const std::vector<float> values(1000, 1.0f);
  int64_t sent_before = -1;
  absl::Status status = absl::UnknownError("not done");
  client->StartUpload(
      40, {Rows("w", 0, 1000)}, {values}, {}, Patience(absl::ZeroDuration()),
      [&](const SaveOutcome& o, int64_t, double) { status = o.status; },
      [&] {
        absl::SleepFor(absl::Milliseconds(50));
        sent_before = service_.begin.step();
      });
  EXPECT_TRUE(client->WaitForUpload().ok());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(sent_before, 0);
  EXPECT_EQ(service_.begin.step(), 40);
}

TEST_F(CheckpointClientTest, ARefusedUploadIsReportedAndTheNextOneWorks) {
  const std::vector<float> values(1'000'000, 1.0f);
  const auto client = Client();
  std::vector<SaveOutcome> outcomes;
  const auto done = [&](const SaveOutcome& o, int64_t, double) { outcomes.push_back(o); };
  service_.refuse = true;
  client->StartUpload(1, {Rows("w", 0, 1'000'000)}, {values}, {}, Patience(absl::Seconds(20)),
                      done);
  client->WaitForUpload().IgnoreError();
  service_.refuse = false;
  client->StartUpload(2, {Rows("w", 0, 1'000'000)}, {values}, {}, Patience(absl::Seconds(20)),
                      done);
  client->WaitForUpload().IgnoreError();
  ASSERT_EQ(outcomes.size(), 2u);
  EXPECT_EQ(outcomes[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(outcomes[0].status.message()), HasSubstr("the disk is full"));
  EXPECT_EQ(outcomes[0].problem, v1::SAVE_PROBLEM_UNSPECIFIED) << "the coordinator knows";
  EXPECT_TRUE(outcomes[1].status.ok()) << outcomes[1].status;
}

TEST_F(CheckpointClientTest, OnlyAPatientUploadWaitsForTheServiceToComeBack) {
  const std::vector<float> values(1000, 1.0f);
  const auto client = Client();
  std::vector<SaveOutcome> outcomes;
  const auto done = [&](const SaveOutcome& o, int64_t, double) { outcomes.push_back(o); };
  service_.away = 2;
  client->StartUpload(1, {Rows("w", 0, 1000)}, {values}, {}, Patience(absl::ZeroDuration()), done);
  client->WaitForUpload().IgnoreError();
  EXPECT_EQ(service_.away, 1);
  client->StartUpload(2, {Rows("w", 0, 1000)}, {values}, {}, Patience(absl::Seconds(20)), done);
  client->WaitForUpload().IgnoreError();
  ASSERT_EQ(outcomes.size(), 2u);
  EXPECT_EQ(outcomes[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(outcomes[0].problem, v1::SAVE_PROBLEM_UNREACHABLE);
  EXPECT_TRUE(outcomes[1].status.ok()) << outcomes[1].status;
  EXPECT_EQ(service_.bytes.size(), 4000u);
}

TEST_F(CheckpointClientTest, AnUploadThatNobodyAnswersIsGivenUpForTheNext) {
  const std::vector<float> values(1000, 1.0f);
  const auto client = Client();
  const auto done = [](const SaveOutcome&, int64_t, double) {};
  service_.away = 1'000'000;
  client->StartUpload(1, {Rows("w", 0, 1000)}, {values}, {}, Patience(absl::Hours(1)), done);
  client->StopRetrying();
  EXPECT_EQ(client->WaitForUpload().code(), absl::StatusCode::kUnavailable);
  service_.away = 1;
  client->StartUpload(2, {Rows("w", 0, 1000)}, {values}, {}, Patience(absl::Hours(1)), done);
  EXPECT_TRUE(client->WaitForUpload().ok());
}

TEST_F(CheckpointClientTest, AnUploadThatIsNotStoredInTimeIsGivenUp) {
  const std::vector<float> values(1000, 1.0f);
  const auto client = Client();
  std::vector<SaveOutcome> outcomes;
  const auto done = [&](const SaveOutcome& o, int64_t, double) { outcomes.push_back(o); };
  service_.hangs = true;
  client->StartUpload(1, {Rows("w", 0, 1000)}, {values}, {},
                      {absl::Seconds(20), absl::Milliseconds(100)}, done);
  int waited = 0;
  EXPECT_FALSE(client->EndsBefore(absl::Milliseconds(10), [&] { ++waited; }));
  EXPECT_GE(waited, 1);
  EXPECT_EQ(client->WaitForUpload().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(client->EndsBefore(absl::ZeroDuration(), [] {}));
  service_.hangs = false;
  client->StartUpload(2, {Rows("w", 0, 1000)}, {values}, {}, Patience(absl::Seconds(20)), done);
  EXPECT_TRUE(client->WaitForUpload().ok());
  ASSERT_EQ(outcomes.size(), 2u);
  EXPECT_EQ(std::string(outcomes[0].status.message()), "not stored within 100ms");
  EXPECT_EQ(outcomes[0].problem, v1::SAVE_PROBLEM_TIMEOUT);
}

TEST_F(CheckpointClientTest, AServerWithoutMemoryForTheCallIsTriedAgain) {
  const std::vector<float> values(1000, 1.0f);
  const auto client = Client();
  const auto done = [](const SaveOutcome&, int64_t, double) {};
  service_.crowded = 1;
  client->StartUpload(1, {Rows("w", 0, 1000)}, {values}, {}, Patience(absl::Seconds(20)), done);
  EXPECT_TRUE(client->WaitForUpload().ok());
  EXPECT_EQ(service_.bytes.size(), 4000u);
}

using Wrote = std::function<bool(int64_t bytes)>;

class OwnPartsTest : public CheckpointClientTest {
 protected:
  std::unique_ptr<CheckpointClient> Client(WritePart write) {
    return std::make_unique<CheckpointClient>(*OpenChannel(service_.address(), {}), Identity(),
                                              OwnParts{"/shared/j1", std::move(write)});
  }
  absl::Status Upload(CheckpointClient& client, absl::Duration timeout = absl::Minutes(1)) {
    client.StartUpload(40, {Rows("w", 0, 1000)}, {values_}, {}, {absl::Seconds(20), timeout},
                       [this](const SaveOutcome& o, int64_t, double) { problem_ = o.problem; });
    return client.WaitForUpload();
  }
  const std::vector<float> values_ = std::vector<float>(1000, 1.0f);
  v1::SaveProblem problem_ = v1::SAVE_PROBLEM_UNSPECIFIED;
};

TEST_F(OwnPartsTest, TheCoordinatorIsToldWhatWasWritten) {
  std::string path;
  const int nice = getpriority(PRIO_PROCESS, 0);
  const auto client = Client([&](const std::string& p, const auto& slices, const ValueParts& values,
                                 const Wrote& wrote) -> absl::StatusOr<v1::UploadEnd> {
    path = p;
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), std::min(19, nice + 10)) << "training comes first";
    EXPECT_EQ(slices.size(), 1u);
    EXPECT_TRUE(wrote(123));
    // Until that was told.
    for (int i = 0; i < 2000 && service_.last_progress != 123; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    v1::UploadEnd end;
    end.set_checksum("c");
    end.set_bytes(BytesOf(values));
    end.set_block_digests("digests");
    return end;
  });
  const absl::Status status = Upload(*client);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(service_.begin.file(),
              ::testing::MatchesRegex("attempt-2/rank-00001-[0-9a-f]{8}.safetensors"));
  EXPECT_EQ(path, "/shared/j1/step-00000040/" + service_.begin.file());
  EXPECT_EQ(service_.begin.slices_size(), 1);
  EXPECT_EQ(service_.last_progress, 123);
  EXPECT_EQ(service_.end.checksum(), "c");
  EXPECT_EQ(service_.end.bytes(), 4000);
  EXPECT_EQ(service_.end.block_digests(), "digests");
  EXPECT_TRUE(service_.bytes.empty());
}

TEST_F(OwnPartsTest, APartThatCannotBeWrittenEndsTheUploadWithItsWords) {
  const auto client = Client([](const std::string& path, const auto&, const auto&, const auto&) {
    return absl::ResourceExhaustedError("cannot write " + path + ": No space left on device");
  });
  const absl::Status status = Upload(*client);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot write /shared/j1/"));
  EXPECT_EQ(problem_, v1::SAVE_PROBLEM_DISK_FULL);
  EXPECT_TRUE(service_.end.checksum().empty());
  EXPECT_EQ(service_.failure.problem(), v1::SAVE_PROBLEM_DISK_FULL);
  EXPECT_EQ(service_.failure.error(), status.message());
}

// As on a file system that hangs; what the thread uses outlives the test, which leaves it behind.
TEST_F(OwnPartsTest, AWriteThatHangsKeepsItsValuesAndNobodyWaitsForIt) {
  static absl::Notification over;
  const auto client = Client(
      [](const auto&, const auto&, const auto&, const auto&) -> absl::StatusOr<v1::UploadEnd> {
        over.WaitForNotification();
        return absl::CancelledError("too late");
      });
  const absl::Status status = Upload(*client, absl::Milliseconds(100));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(status.message()), "not stored within 100ms");
  EXPECT_TRUE(client->WriteHangs());
  EXPECT_FALSE(client->EndsBefore(absl::ZeroDuration(), [] {}));
  over.Notify();
  EXPECT_TRUE(client->EndsBefore(absl::Minutes(1), [] {}));
  EXPECT_FALSE(client->WriteHangs());
}

TEST_F(CheckpointClientTest, LoadsEverySliceTheEngineNeeds) {
  FakeEngine engine;
  engine.slices = {Rows("a", 10, 14), Rows("b", 0, 3)};
  const absl::Status status = LoadFrom(Source(), engine);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(engine.loaded.size(), 2u);
  EXPECT_EQ(engine.loaded[0].second, (std::vector<float>{10, 11, 12, 13}));
  EXPECT_EQ(engine.loaded[1].second, (std::vector<float>{0, 1, 2}));
}

TEST_F(CheckpointClientTest, OnlyTheStateOfGuardAndScalesMayBeMissing) {
  for (const std::string& missing : {std::string(engine::kGuardTensor),
                                     std::string(engine::kSpikeTensor), blocks::Fp8Tensor(3)}) {
    FakeEngine engine;
    engine.slices = {Rows("a", 10, 14), Rows(missing, 0, 5)};
    service_.lacks = missing;
    absl::Status status = LoadFrom(Source(), engine);
    EXPECT_TRUE(status.ok()) << status;
    ASSERT_EQ(engine.loaded.size(), 1u);
    service_.lacks = "a";
    status = LoadFrom(Source(), engine);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(engine.loaded.size(), 1u);
  }
}

TEST_F(CheckpointClientTest, ACoordinatorThatComesBackIsAskedAgain) {
  FakeEngine engine;
  engine.slices = {Rows("a", 10, 14)};
  service_.away = 2;
  const auto source = Source();
  std::vector<int64_t> arrived;
  std::vector<float> values(4);
  StateSource::Check check;
  const absl::Status status = source->Read(
      engine.slices[0], absl::MakeSpan(values), [&](int64_t bytes) { arrived.push_back(bytes); },
      &check);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(values, (std::vector<float>{10, 11, 12, 13}));
  EXPECT_EQ(std::accumulate(arrived.begin(), arrived.end(), int64_t{0}), 16) << "each byte once";
  EXPECT_EQ(source->bytes_read(), 2 * 9 + 16);
  service_.away = 1'000'000;
  std::thread cancels([&] {
    absl::SleepFor(absl::Milliseconds(50));
    source->Cancel();
  });
  EXPECT_FALSE(source
                   ->Read(
                       engine.slices[0], absl::MakeSpan(values), [](int64_t) {}, &check)
                   .ok());
  cancels.join();
}

TEST_F(CheckpointClientTest, ATensorThatIsTooShortIsDataLoss) {
  FakeEngine engine;
  engine.slices = {Rows("a", 10, 14)};
  service_.truncate = true;
  const absl::Status status = LoadFrom(Source(), engine);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor a"));
  EXPECT_TRUE(engine.loaded.empty());
}

}  // namespace
}  // namespace tercio::trainer
