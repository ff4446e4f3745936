// Uploads over gRPC, as protobuf sends them, into a store on disk.
#include "coordinator/service/checkpoint_service.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "checkpoint/part_writer.h"
#include "checkpoint/rank_file.h"
#include "checkpoint/reader.h"
#include "common/checksum.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "coordinator/service/saves.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 64;
constexpr int64_t kColumns = 40'000;  // a rank's half: 5 MB

class FakeHost : public CheckpointHost {
 public:
  explicit FakeHost(const std::string& root) : store_(root) {}

  checkpoint::Store& StoreOf(const std::string&) override {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !stands_still_; });
    return store_;
  }
  checkpoint::Store& store() { return store_; }
  bool IsPresent(const v1::RunId& run, const std::string& token) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return run.attempt() == attempt_ && token == "token";
  }
  bool IsGivenUp(const v1::RunId&, int64_t step) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return step == given_up_;
  }
  void GiveUp(int64_t step) {
    std::lock_guard<std::mutex> lock(mutex_);
    given_up_ = step;
  }
  absl::StatusOr<SaveTerms> TermsOf(const v1::RunId&) const override {
    std::lock_guard<std::mutex> lock(mutex_);
    SaveTerms terms;
    terms.ranks = ranks_;
    terms.model_json = "{}";
    terms.timeout = timeout_;
    terms.own_files = own_files_;
    return terms;
  }
  absl::Status CheckWhole(const std::string&,
                          const std::vector<checkpoint::Manifest>& parts) const override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (hangs_) changed_.wait(lock, [this] { return released_; });
    }
    std::set<std::string> tensors;
    for (const checkpoint::Manifest& part : parts) {
      for (const auto& [name, tensor] : part.tensors) tensors.insert(name);
    }
    return tensors.contains("w") ? absl::OkStatus() : absl::DataLossError("lack tensor w");
  }
  bool HasCommitted(const v1::RunId& run, int64_t step) const override {
    const auto there = store_.Find(run.job_id(), step);
    return there.ok() && there->attempt == run.attempt() && recorded_.ok();
  }
  absl::Status Record(StepsDone steps) override {
    std::lock_guard<std::mutex> lock(mutex_);
    said_.push_back(absl::StrCat(steps.steps.size(), " steps"));
    return absl::OkStatus();
  }
  absl::Status Record(CheckpointCommitted committed) override {
    Say(absl::StrCat("committed ", committed.step));
    return recorded_;
  }
  void Notify(CheckpointCommitted committed) override {
    Say(absl::StrCat("knows ", committed.step));
  }
  void Notify(CheckpointFailed failed) override {
    const std::string whose = failed.rank < 0 ? "" : absl::StrCat(" by rank ", failed.rank);
    Say(absl::StrCat("failed ", failed.step, whose, ": ", failed.error));
  }

  void Say(std::string what) {
    std::lock_guard<std::mutex> lock(mutex_);
    said_.push_back(std::move(what));
    changed_.notify_all();
  }
  void SetTimeout(absl::Duration timeout) {
    std::lock_guard<std::mutex> lock(mutex_);
    timeout_ = timeout;
  }
  // From now on commits stand still, as in a file system that hangs; until Release.
  void Hang() {
    std::lock_guard<std::mutex> lock(mutex_);
    hangs_ = true;
  }
  void HangNoMore() {
    std::lock_guard<std::mutex> lock(mutex_);
    hangs_ = false;
  }
  void Release() {
    std::lock_guard<std::mutex> lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  // Whether nothing is begun.
  void StandStill(bool stands_still) {
    std::lock_guard<std::mutex> lock(mutex_);
    stands_still_ = stands_still;
    changed_.notify_all();
  }
  void SetRanks(int ranks) { ranks_ = ranks; }
  void SetOwnFiles() { own_files_ = true; }
  // What becomes of commits.
  void SetRecorded(absl::Status status) { recorded_ = std::move(status); }
  void BeginAttempt(int attempt) {
    std::lock_guard<std::mutex> lock(mutex_);
    attempt_ = attempt;
  }
  // What it was told, once it is told something with `word` in it.
  std::vector<std::string> WaitFor(const std::string& word) {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      return !said_.empty() && said_.back().find(word) != std::string::npos;
    })) << word;
    return said_;
  }

 private:
  checkpoint::Store store_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool hangs_ = false;
  bool released_ = false;
  bool stands_still_ = false;
  std::atomic<int> ranks_ = 2;
  int attempt_ = 1;
  absl::Duration timeout_ = absl::Minutes(5);
  int64_t given_up_ = 0;  // a save's step
  std::atomic<bool> own_files_ = false;
  absl::Status recorded_;
  std::vector<std::string> said_;
};

class CheckpointServiceTest : public ::testing::Test {
 protected:
  CheckpointServiceTest() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::CheckpointService::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  }
  ~CheckpointServiceTest() override { server_->Shutdown(); }

  // One of two ranks on its way; each has half of the rows.
  struct Sender {
    grpc::ClientContext context;
    v1::UploadResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::UploadMessage>> writer;
    v1::UploadMessage begin;
    std::string bytes;

    bool SendChunks() {
      v1::UploadMessage message;
      for (size_t at = 0; at < bytes.size(); at += 1 << 20) {
        message.mutable_chunk()->set_data(bytes.substr(at, 1 << 20));
        if (!writer->Write(message)) return false;
      }
      return true;
    }
    void SendEnd(const std::string& checksum) {
      v1::UploadMessage message;
      message.mutable_end()->set_bytes(static_cast<int64_t>(bytes.size()));
      message.mutable_end()->set_checksum(checksum);
      writer->Write(message);
    }
    std::string Checksum() const {
      return ChecksumHex(checkpoint::RankFileOf(begin.begin().slices())->header + bytes);
    }
    grpc::Status Finish() {
      writer->WritesDone();
      return writer->Finish();
    }
    grpc::Status SendAll() {
      if (SendChunks()) SendEnd(Checksum());
      return Finish();
    }
  };

  std::unique_ptr<Sender> Start(
      int rank, int64_t step, int attempt = 1, const std::string& job = "job",
      const std::function<void(v1::UploadBegin*)>& change = [](v1::UploadBegin*) {}) {
    auto sender = std::make_unique<Sender>();
    v1::UploadBegin* begin = sender->begin.mutable_begin();
    begin->mutable_run()->set_job_id(job);
    begin->mutable_run()->set_attempt(attempt);
    begin->set_token("token");
    begin->set_rank(rank);
    begin->set_world_size(2);
    begin->set_step(step);
    begin->set_training_state("{}");
    if (rank == 0) begin->add_steps()->set_step(step);
    v1::TensorSlice* slice = begin->add_slices();
    slice->set_tensor("w");
    slice->set_dtype("F32");
    slice->add_shape(kRows);
    slice->add_shape(kColumns);
    slice->set_row_begin(rank * kRows / 2);
    slice->set_row_end((rank + 1) * kRows / 2);
    slice->set_column_end(kColumns);
    sender->bytes.resize(kRows / 2 * kColumns * sizeof(float));
    for (size_t i = 0; i < sender->bytes.size(); ++i) {
      sender->bytes[i] = static_cast<char>(i * 31 + static_cast<size_t>(rank + 7 * attempt));
    }
    change(begin);
    sender->writer = stub_->Upload(&sender->context, &sender->response);
    sender->writer->Write(sender->begin);
    return sender;
  }

  void SaveAll(int64_t step, int attempt) {
    host_.BeginAttempt(attempt);
    const auto zero = Start(0, step, attempt);
    const auto one = Start(1, step, attempt);
    auto answer = std::async(std::launch::async, [&] { return zero->SendAll(); });
    EXPECT_TRUE(one->SendAll().ok());
    EXPECT_TRUE(answer.get().ok());
  }
  static v1::ReadTensorRequest RequestOf(int64_t step, int attempt, int64_t rows) {
    v1::ReadTensorRequest request;
    request.mutable_run()->set_job_id("job");
    request.mutable_run()->set_attempt(attempt);
    request.set_token("token");
    request.set_job_id("job");
    request.set_step(step);
    v1::TensorSlice* slice = request.mutable_slice();
    slice->set_tensor("w");
    slice->add_shape(kRows);
    slice->add_shape(kColumns);
    slice->set_row_end(rows);
    slice->set_column_end(kColumns);
    return request;
  }
  // The first row of the tensor.
  std::string ReadRow(int64_t step, int attempt) {
    grpc::ClientContext context;
    const auto reader = stub_->ReadTensor(&context, RequestOf(step, attempt, 1));
    std::string bytes;
    for (v1::TensorChunk chunk; reader->Read(&chunk);) bytes += chunk.data();
    EXPECT_TRUE(reader->Finish().ok());
    return bytes;
  }
  // Whether this process holds files of the checkpoint.
  static bool IsHeld(const std::string& checkpoint) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const auto target = std::filesystem::read_symlink(entry.path(), error);
      if (target.string().find(checkpoint) != std::string::npos) return true;
    }
    return false;
  }
  // The newest one whose every byte is right; 0: there is none.
  int64_t NewestGood() {
    const auto all = host_.store().List("job");
    if (!all.ok()) return 0;
    for (auto at = all->rbegin(); at != all->rend(); ++at) {
      if (checkpoint::Reader::Open(at->path, checkpoint::DigestCheck::kEveryByte).ok())
        return at->step;
    }
    return 0;
  }
  // What a save has left goes after it was answered.
  void AwaitNothingLeft() {
    for (int i = 0; i < 20'000 && !Directories().empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(Directories().empty());
  }

  std::vector<std::string> Directories() const { return ListDirectory(dir_.path() + "/job"); }

  TempDir dir_;
  FakeHost host_{dir_.path()};
  CheckpointServiceImpl service_{host_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::CheckpointService::Stub> stub_;
};

// A node sees the weights of the jobs that it works for: the attempt's token opens no other's.
TEST_F(CheckpointServiceTest, AnAttemptReadsItsOwnJobOnly) {
  const auto read = [this](const std::string& job, const std::string& token) {
    grpc::ClientContext context;
    v1::ReadTensorRequest request;
    request.mutable_run()->set_job_id("job");
    request.mutable_run()->set_attempt(1);
    request.set_token(token);
    request.set_job_id(job);
    request.set_step(5);
    const auto reader = stub_->ReadTensor(&context, request);
    v1::TensorChunk chunk;
    while (reader->Read(&chunk)) {
    }
    return reader->Finish().error_code();
  };
  EXPECT_EQ(read("job", "token"), grpc::StatusCode::NOT_FOUND);  // it has no checkpoint yet
  for (const char* job : {"other", "../other", "../../..", ""}) {
    EXPECT_EQ(read(job, "token"), grpc::StatusCode::PERMISSION_DENIED) << job;
  }
  EXPECT_EQ(read("other", "wrong"), grpc::StatusCode::ABORTED);
}

TEST_F(CheckpointServiceTest, AllRanksAreAnsweredWhenAllIsVisible) {
  const auto zero = Start(0, 10);
  const auto one = Start(1, 10);
  auto answer = std::async(std::launch::async, [&] { return zero->SendAll(); });
  EXPECT_EQ(answer.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  EXPECT_TRUE(one->SendAll().ok());
  EXPECT_TRUE(answer.get().ok());
  EXPECT_EQ(Directories(), std::vector<std::string>{"step-00000010"});
  EXPECT_EQ(NewestGood(), 10);
  EXPECT_EQ(host_.WaitFor("committed"), (std::vector<std::string>{"1 steps", "committed 10"}));

  // A rank that has not heard of the commit sends again, and learns of it at once.
  EXPECT_TRUE(Start(0, 10)->Finish().ok());
}

TEST_F(CheckpointServiceTest, AStepThatIsSavedAgainIsReadAgain) {
  SaveAll(10, 1);
  const std::string first = ReadRow(10, 1);
  ASSERT_EQ(first.size(), kColumns * sizeof(float));
  SaveAll(10, 2);
  const std::string second = ReadRow(10, 2);
  ASSERT_EQ(second.size(), first.size());
  EXPECT_EQ(second[0], static_cast<char>(first[0] + 7));
}

// Files that are open keep their place on the disk after they are removed.
TEST_F(CheckpointServiceTest, WhatAJobHasLoadedIsLetGoWhenItSaves) {
  SaveAll(10, 1);
  host_.BeginAttempt(2);
  ReadRow(10, 2);
  EXPECT_TRUE(IsHeld("step-00000010")) << "other ranks load it, too";
  SaveAll(20, 2);
  EXPECT_FALSE(IsHeld("step-00000010"));
}

// Else the record of the job would not know of it, and no rank would say it again.
TEST_F(CheckpointServiceTest, ACommitThatIsNotRecordedIsSentAgain) {
  host_.SetRecorded(absl::UnavailableError("the coordinator is stopping"));
  const auto zero = Start(0, 10);
  const auto one = Start(1, 10);
  auto answer = std::async(std::launch::async, [&] { return zero->SendAll(); });
  EXPECT_EQ(one->SendAll().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(answer.get().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(NewestGood(), 10);
  // As they do at the next coordinator.
  host_.SetRecorded(absl::OkStatus());
  Saves saves(host_);
  const auto known = saves.Join(zero->begin.begin());
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_TRUE(known->save == nullptr);
}

// The connection of a rank breaks when its part is complete: it begins again before anybody has
// noticed, and must not write over what is there.
TEST_F(CheckpointServiceTest, ARankThatBeginsAgainAfterItsPartWaitsWithTheOthers) {
  const auto zero = Start(0, 10);
  auto answer = std::async(std::launch::async, [&] { return zero->SendAll(); });
  EXPECT_EQ(answer.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  const auto again = Start(0, 10);
  auto second = std::async(std::launch::async, [&] {
    again->SendChunks();
    return again->Finish();
  });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  const auto one = Start(1, 10);
  EXPECT_TRUE(one->SendAll().ok());
  EXPECT_TRUE(answer.get().ok());
  EXPECT_TRUE(second.get().ok());
  EXPECT_EQ(NewestGood(), 10);
}

TEST_F(CheckpointServiceTest, AHalfOpenStreamDoesNotHarmThePartThatCameAfterIt) {
  const auto lost = Start(0, 10);  // its end never comes
  ASSERT_TRUE(lost->SendChunks());
  const auto zero = Start(0, 10);
  const auto one = Start(1, 10);
  auto answer = std::async(std::launch::async, [&] { return zero->SendAll(); });
  EXPECT_TRUE(one->SendAll().ok());
  EXPECT_TRUE(answer.get().ok());
  EXPECT_EQ(NewestGood(), 10);
}

TEST_F(CheckpointServiceTest, ASenderDoesNotDecideHowManyRanksThereAre) {
  auto alone = Start(0, 10, 1, "job", [](v1::UploadBegin* begin) { begin->set_world_size(1); });
  const grpc::Status refused = alone->SendAll();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("the plan has 2 ranks"));
  EXPECT_EQ(NewestGood(), 0);
}

TEST_F(CheckpointServiceTest, ACheckpointThatLacksATensorIsNone) {
  const auto rename = [](v1::UploadBegin* begin) {
    begin->mutable_slices(0)->set_tensor("another");
  };
  const auto zero = Start(0, 10, 1, "job", rename);
  const auto one = Start(1, 10, 1, "job", rename);
  auto answer = std::async(std::launch::async, [&] { return zero->SendAll(); });
  EXPECT_EQ(one->SendAll().error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(answer.get().error_code(), grpc::StatusCode::DATA_LOSS);
  AwaitNothingLeft();
}

// Where the coordinator was away, some ranks may have given up before it was back, and others not:
// these are answered at once, and the next save finds nobody waiting.
TEST_F(CheckpointServiceTest, ARankThatHasGivenUpIsNotWaitedFor) {
  const auto one = Start(1, 10);
  ASSERT_TRUE(one->SendChunks());
  one->SendEnd(one->Checksum());
  host_.GiveUp(10);
  const grpc::Status answer = one->Finish();
  EXPECT_EQ(answer.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(answer.error_message(), HasSubstr("a rank has given up its part"));
  SaveAll(20, 1);
  EXPECT_EQ(NewestGood(), 20);
}

// It ended the process when it was written into the manifest.
TEST_F(CheckpointServiceTest, ATrainingStateThatIsNoJsonIsRefused) {
  for (const std::string& state :
       {std::string("{"), std::string("x"), "{\"a\":" + std::string(100'000, '[')}) {
    auto sender =
        Start(0, 10, 1, "job", [&](v1::UploadBegin* begin) { begin->set_training_state(state); });
    EXPECT_EQ(sender->SendAll().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  SaveAll(10, 1);
}

TEST_F(CheckpointServiceTest, ACommitThatHangsEndsTheSaveAndKeepsNoOther) {
  host_.SetTimeout(absl::Seconds(2));
  const auto zero = Start(0, 10);
  const auto one = Start(1, 10);
  ASSERT_TRUE(zero->SendChunks());
  ASSERT_TRUE(one->SendChunks());
  host_.Hang();
  auto answer = std::async(std::launch::async, [&] {
    zero->SendEnd(zero->Checksum());
    return zero->Finish();
  });
  one->SendEnd(one->Checksum());
  const grpc::Status given_up = one->Finish();
  EXPECT_EQ(given_up.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(given_up.error_message(), HasSubstr("checkpoint.timeout"));
  EXPECT_EQ(answer.get().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(host_.WaitFor("failed").back(), HasSubstr("does not answer"));
  EXPECT_FALSE(service_.Drain(absl::Milliseconds(10)));
  // Others are not kept waiting, and the job's own next save is not queued behind it.
  host_.HangNoMore();
  SaveAll(20, 1);
  EXPECT_EQ(NewestGood(), 20);
  host_.Release();
  EXPECT_TRUE(service_.Drain(absl::Seconds(20)));
  EXPECT_EQ(host_.store().Find("job", 10).status().code(), absl::StatusCode::kNotFound)
      << "what was given up does not become visible later";
}

TEST_F(CheckpointServiceTest, RanksThatWriteThemselvesOnlySayWhatTheyHaveWritten) {
  host_.SetOwnFiles();
  std::vector<std::unique_ptr<Sender>> senders;
  std::vector<v1::UploadEnd> ends;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string name = absl::StrCat("attempt-1/rank-0000", rank, "-0a.safetensors");
    senders.push_back(
        Start(rank, 10, 1, "job", [&](v1::UploadBegin* begin) { begin->set_file(name); }));
    auto writer = checkpoint::PartWriter::Create(host_.store().PathOf("job", 10) + "/" + name,
                                                 senders.back()->begin.begin().slices());
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(senders.back()->bytes).ok());
    ends.push_back(*(*writer)->Close());
    v1::UploadMessage message;
    message.mutable_progress()->set_bytes(ends.back().bytes());
    senders.back()->writer->Write(message);
    *message.mutable_end() = ends.back();
    senders.back()->writer->Write(message);
  }
  EXPECT_TRUE(senders[0]->Finish().ok());
  EXPECT_TRUE(senders[1]->Finish().ok());
  EXPECT_EQ(NewestGood(), 10);
  EXPECT_EQ(ReadRow(10, 1).size(), kColumns * sizeof(float));
  // Nobody's bytes pass here any more.
  EXPECT_EQ(Start(0, 20)->SendAll().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(CheckpointServiceTest, ARankThatCannotWriteItsPartSaysWhy) {
  host_.SetOwnFiles();
  const auto zero = Start(0, 10, 1, "job", [](v1::UploadBegin* begin) {
    begin->set_file("attempt-1/rank-00000-0a.safetensors");
  });
  v1::UploadMessage message;
  message.mutable_failure()->set_problem(v1::SAVE_PROBLEM_DISK_FULL);
  message.mutable_failure()->set_error("cannot write /shared/x: No space left on device");
  zero->writer->Write(message);
  EXPECT_EQ(zero->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(host_.WaitFor("failed").back(),
            "failed 10 by rank 0: cannot write /shared/x: No space left on device");
  AwaitNothingLeft();
}

TEST_F(CheckpointServiceTest, APartSentTwiceIsAnsweredTwice) {
  const auto again = Start(0, 10);
  const auto zero = Start(0, 10);
  const auto one = Start(1, 10);
  // Both are known to have begun.
  auto answer = std::async(std::launch::async, [&] { return zero->SendAll(); });
  EXPECT_EQ(answer.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  EXPECT_TRUE(one->SendAll().ok());
  EXPECT_TRUE(answer.get().ok());
  EXPECT_TRUE(again->SendAll().ok());
  EXPECT_EQ(NewestGood(), 10);
}

TEST_F(CheckpointServiceTest, OneFailureEndsTheSaveOfAllAndLeavesNothing) {
  const auto zero = Start(0, 10);
  const auto one = Start(1, 10);
  auto answer = std::async(std::launch::async, [&] { return zero->SendAll(); });
  ASSERT_TRUE(one->SendChunks());
  one->SendEnd("0123");
  EXPECT_EQ(one->Finish().error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(answer.get().error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(host_.WaitFor("failed").back(), HasSubstr("checksum"));
  AwaitNothingLeft();
}

TEST_F(CheckpointServiceTest, AStreamThatEndsEarlyGivesTheSaveUp) {
  const auto zero = Start(0, 10);
  ASSERT_TRUE(zero->SendChunks());
  EXPECT_EQ(zero->Finish().error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(host_.WaitFor("failed").back(), HasSubstr("ended early"));
  AwaitNothingLeft();
}

TEST_F(CheckpointServiceTest, ARankThatGoesAwayWhileItWaitsGivesTheSaveUp) {
  auto zero = Start(0, 10);
  ASSERT_TRUE(zero->SendChunks());
  zero->SendEnd(zero->Checksum());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  zero->context.TryCancel();
  EXPECT_FALSE(zero->Finish().ok());
  host_.WaitFor("failed 10");
  const auto one = Start(1, 10);
  EXPECT_EQ(one->SendAll().error_code(), grpc::StatusCode::ABORTED);
  // By whichever of the two leaves last.
  AwaitNothingLeft();
}

TEST_F(CheckpointServiceTest, ALaterSaveAndALaterAttemptTakeItsPlace) {
  const auto old = Start(0, 10);
  auto answer = std::async(std::launch::async, [&] { return old->SendAll(); });
  EXPECT_EQ(answer.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  const auto next = Start(0, 20);
  EXPECT_EQ(answer.get().error_code(), grpc::StatusCode::ABORTED);
  auto second = std::async(std::launch::async, [&] { return next->SendAll(); });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  host_.BeginAttempt(2);
  EXPECT_EQ(second.get().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(Start(0, 20)->Finish().error_code(), grpc::StatusCode::ABORTED);
  const auto zero = Start(0, 20, 2);
  const auto one = Start(1, 20, 2);
  auto third = std::async(std::launch::async, [&] { return zero->SendAll(); });
  EXPECT_TRUE(one->SendAll().ok());
  EXPECT_TRUE(third.get().ok());
  EXPECT_EQ(Directories(), std::vector<std::string>{"step-00000020"});
}

TEST_F(CheckpointServiceTest, WhatIsNoUploadIsRefused) {
  grpc::ClientContext context;
  v1::UploadResponse response;
  const auto writer = stub_->Upload(&context, &response);
  v1::UploadMessage message;
  message.mutable_chunk()->set_data("x");
  writer->Write(message);
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  EXPECT_EQ(Start(2, 10)->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  const auto longer = Start(0, 10);
  longer->bytes += "more";
  EXPECT_EQ(longer->SendAll().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(CheckpointServiceTest, ManyReadersHaveNoThreadEach) {
  // On a busy machine gRPC itself starts some 30 threads.
  constexpr size_t kReaders = 240;
  const auto threads = [] { return ListDirectory("/proc/self/task").size(); };
  SaveAll(10, 1);
  const size_t before = threads();
  const v1::ReadTensorRequest all = RequestOf(10, 1, kRows);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::TensorChunk>>> readers;
  for (size_t i = 0; i < kReaders; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub_->ReadTensor(contexts.back().get(), all));
  }
  v1::TensorChunk chunk;
  for (const auto& reader : readers) ASSERT_TRUE(reader->Read(&chunk));
  EXPECT_LT(threads(), before + kReaders / 2);
  for (size_t i = 1; i < kReaders; ++i) {  // those that go away are in nobody's way
    contexts[i]->TryCancel();
    EXPECT_FALSE(readers[i]->Finish().ok());
  }
  size_t bytes = 0;
  do {
    bytes += chunk.data().size();
  } while (readers[0]->Read(&chunk));
  EXPECT_TRUE(readers[0]->Finish().ok());
  EXPECT_EQ(bytes, kRows * kColumns * sizeof(float));
}

// Uploads from any number of ranks, each with one row of the tensor, in messages of kMessage bytes.
class ManyRanksTest : public CheckpointServiceTest {
 protected:
  static constexpr size_t kMessage = size_t{256} << 10;
  static constexpr int64_t kWidth = 1 << 17;  // columns of a row: two messages

  static std::unique_ptr<v1::CheckpointService::Stub> Connect(const std::string& address) {
    grpc::ChannelArguments own;
    own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return v1::CheckpointService::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), own));
  }

  static grpc::Status UploadRow(v1::CheckpointService::Stub& stub, int rank, int ranks) {
    Sender sender;
    v1::UploadBegin* begin = sender.begin.mutable_begin();
    begin->mutable_run()->set_job_id("job");
    begin->mutable_run()->set_attempt(1);
    begin->set_token("token");
    begin->set_rank(rank);
    begin->set_world_size(ranks);
    begin->set_step(10);
    begin->set_training_state("{}");
    v1::TensorSlice* slice = begin->add_slices();
    slice->set_tensor("w");
    slice->set_dtype("F32");
    slice->add_shape(ranks);
    slice->add_shape(kWidth);
    slice->set_row_begin(rank);
    slice->set_row_end(rank + 1);
    slice->set_column_end(kWidth);
    sender.bytes.assign(kWidth * sizeof(float), static_cast<char>(rank));
    sender.writer = stub.Upload(&sender.context, &sender.response);
    sender.writer->Write(sender.begin);
    v1::UploadMessage message;
    for (size_t at = 0; at < sender.bytes.size(); at += kMessage) {
      message.mutable_chunk()->set_data(sender.bytes.substr(at, kMessage));
      if (!sender.writer->Write(message)) break;
    }
    sender.SendEnd(sender.Checksum());
    return sender.Finish();
  }
};

// What all uploads hold in memory stays far below what gRPC allows, at which it would break them
// off: more ranks are slower, and none fails.
TEST_F(ManyRanksTest, HundredsOfUploadsAtOnceAllEndWell) {
  constexpr int kRanks = 150;
  constexpr size_t kQuota = size_t{32} << 20;  // what ranks send at once is more than twice that
  constexpr int64_t kBudget = kQuota / 8;
  host_.SetRanks(kRanks);
  CheckpointServiceImpl service(host_, {kBudget, kMessage, absl::Seconds(10)});
  grpc::ServerBuilder builder;
  CheckpointServiceImpl::Configure(builder);
  builder.SetResourceQuota(grpc::ResourceQuota("small").Resize(kQuota));
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  std::vector<std::unique_ptr<v1::CheckpointService::Stub>> stubs;
  for (int i = 0; i < 5; ++i) stubs.push_back(Connect(absl::StrCat("127.0.0.1:", port)));
  host_.StandStill(true);
  std::vector<std::future<grpc::Status>> answers;
  for (int rank = 0; rank < kRanks; ++rank) {
    v1::CheckpointService::Stub& stub = *stubs[static_cast<size_t>(rank) % stubs.size()];
    answers.push_back(
        std::async(std::launch::async, [&stub, rank] { return UploadRow(stub, rank, kRanks); }));
  }
  // All are there, and have sent what they may.
  const absl::Time late = absl::Now() + absl::Seconds(20);
  while (service.upload_figures().waiting < kRanks - 20 && absl::Now() < late) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  host_.StandStill(false);
  for (int rank = 0; rank < kRanks; ++rank) {
    const grpc::Status status = answers[static_cast<size_t>(rank)].get();
    EXPECT_TRUE(status.ok()) << rank << ": " << status.error_message();
  }
  server->Shutdown();
  EXPECT_GE(service.upload_figures().most_held, static_cast<int64_t>(kMessage));
  EXPECT_LE(service.upload_figures().most_held, kBudget);
  EXPECT_EQ(service.upload_figures().held, 0);
  EXPECT_EQ(NewestGood(), 10);
}

TEST_F(CheckpointServiceTest, ARankThatGoesAwayWhileItWaitsForRoomEndsItsUpload) {
  CheckpointServiceImpl service(host_, {kColumns, kColumns, absl::Hours(1)});
  // Within a process a message is sent when it is read, which is what these wait for.
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  stub_ = v1::CheckpointService::NewStub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  // One message is all that there is room for: that of a rank that stands still.
  const auto idle = Start(0, 10);
  while (service.upload_figures().held < kColumns) absl::SleepFor(absl::Milliseconds(1));
  const auto gone = Start(1, 10);
  while (service.upload_figures().waiting == 0) absl::SleepFor(absl::Milliseconds(1));
  gone->context.TryCancel();
  EXPECT_FALSE(gone->writer->Finish().ok());
  while (service.upload_figures().waiting > 0) absl::SleepFor(absl::Milliseconds(1));
  idle->context.TryCancel();
  EXPECT_FALSE(idle->writer->Finish().ok());
  AwaitNothingLeft();
  while (service.upload_figures().held > 0) absl::SleepFor(absl::Milliseconds(1));
  server->Shutdown();
}

TEST_F(CheckpointServiceTest, ManyUploadsWaitWithoutAThreadEach) {
  // More than the pool has threads, each with its own job, whose rank 1 never comes.
  std::vector<std::unique_ptr<Sender>> senders;
  for (int i = 0; i < 24; ++i) {
    auto sender = Start(0, 10, 1, absl::StrCat("job", i));
    ASSERT_TRUE(sender->SendChunks());
    sender->SendEnd(sender->Checksum());
    senders.push_back(std::move(sender));
  }
  host_.BeginAttempt(2);
  for (const auto& sender : senders) {
    EXPECT_EQ(sender->Finish().error_code(), grpc::StatusCode::ABORTED);
  }
}

}  // namespace
}  // namespace tercio::coordinator
