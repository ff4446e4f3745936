// What agents answer when they are asked for a job's data, and how long they keep it: with the
// process that reads it, and with scripts in its place.
#include "worker/agent/runs/data_preparer.h"

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Trainer() {
  return std::string(std::getenv("TEST_SRCDIR")) + "/tercio/worker/trainer/tercio-trainer";
}

class DataPreparerTest : public ::testing::Test {
 protected:
  DataPreparerTest() {
    std::ofstream(Path("corpus.txt")) << std::string(1000, 'a') << "bcd";
    request_.mutable_run()->set_job_id("job");
    request_.mutable_run()->set_attempt(1);
    v1::JobSpec& spec = *request_.mutable_spec();
    spec.mutable_data()->set_train(Path("corpus.txt"));
    spec.mutable_data()->set_tokenizer("chars");
    spec.mutable_model()->set_architecture(v1::ARCHITECTURE_GPT2);
    spec.mutable_model()->set_context(8);
  }

  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }
  DataPreparer::Options Options(const std::string& program) const {
    return {"node", cache_, /*most_cache_bytes=*/0, AllowedPaths(), {program, std::nullopt, 0}};
  }
  // A program that does this instead of answering.
  std::string Script(const std::string& commands) const {
    std::ofstream(Path("script")) << "#!/bin/sh\n" << commands << "\n";
    chmod(Path("script").c_str(), 0755);
    return Path("script");
  }
  // The error that is answered.
  std::string ErrorOf(DataPreparer& preparer) {
    EXPECT_TRUE(preparer.Begin(request_.run()));
    const auto message = preparer.Prepare(request_);
    return message.has_value() ? message->data_prepared().error() : "nothing was answered";
  }

  TempDir directory_;
  const std::string cache_ = Path("cache");
  DataPreparer preparer_{Options(Trainer())};
  v1::PrepareData request_;
};

TEST_F(DataPreparerTest, AnAttemptIsPreparedOnceAtATime) {
  request_.mutable_spec()->mutable_data()->set_test_path(Path("corpus.txt"));
  EXPECT_TRUE(preparer_.Begin(request_.run()));
  EXPECT_FALSE(preparer_.Begin(request_.run())) << "a coordinator that has come back asks again";
  v1::RunId next = request_.run();
  next.set_attempt(2);
  EXPECT_TRUE(preparer_.Begin(next));
  const auto good = preparer_.Prepare(request_);
  ASSERT_TRUE(good.has_value());
  EXPECT_EQ(good->data_prepared().error(), "");
  EXPECT_EQ(good->data_prepared().vocab_size(), 4);
  EXPECT_GT(good->data_prepared().train_tokens(), 900);
  EXPECT_GT(good->data_prepared().train_samples(), 0);
  EXPECT_EQ(good->data_prepared().validation_samples(), 0);
  EXPECT_EQ(good->data_prepared().test_samples(), good->data_prepared().train_samples());
  EXPECT_EQ(good->data_prepared().digest().size(), 64u);
  EXPECT_EQ(good->data_prepared().run().job_id(), "job");
  request_.mutable_spec()->mutable_data()->set_train("/no/such.txt");
  EXPECT_THAT(ErrorOf(preparer_), AllOf(HasSubstr("node node: "), HasSubstr("/no/such.txt")));
  EXPECT_TRUE(preparer_.Begin(request_.run()));
}

TEST_F(DataPreparerTest, WhatWasPreparedStaysUntilItsTrainersHaveIt) {
  preparer_.Begin(request_.run());
  ASSERT_TRUE(preparer_.Prepare(request_).has_value());
  const std::vector<std::string> files = ListDirectory(cache_);
  ASSERT_FALSE(files.empty());
  preparer_.Trim(1000);
  preparer_.Trim(1500);
  EXPECT_EQ(ListDirectory(cache_), files);
  preparer_.Trim(1700);
  EXPECT_TRUE(ListDirectory(cache_).empty());
}

TEST_F(DataPreparerTest, JobsReadWhatIsAllowedOnly) {
  ASSERT_TRUE(MakeDirectories(Path("allowed")).ok());
  DataPreparer::Options options = Options(Trainer());
  options.allowed = *AllowedPaths::Under({Path("allowed")});
  DataPreparer bounded(options);
  EXPECT_THAT(ErrorOf(bounded),
              HasSubstr("is outside the directories that jobs may read on this node"));
  ASSERT_TRUE(RenamePath(Path("corpus.txt"), Path("allowed/corpus.txt")).ok());
  request_.mutable_spec()->mutable_data()->set_train(Path("allowed/corpus.txt"));
  EXPECT_EQ(ErrorOf(bounded), "");
}

TEST_F(DataPreparerTest, AProcessThatCrashesIsAnErrorThatNamesNodeFilesAndCause) {
  DataPreparer crashing(Options(Script("echo 'broken merge' >&2; kill -SEGV $$")));
  EXPECT_THAT(ErrorOf(crashing),
              AllOf(HasSubstr("node node: cannot read data.train " + Path("corpus.txt")),
                    HasSubstr("signal 11"), HasSubstr("broken merge")));
  DataPreparer missing(Options("/no/such/program"));
  EXPECT_THAT(ErrorOf(missing), HasSubstr("cannot start /no/such/program"));
}

TEST_F(DataPreparerTest, WhatIsCancelledIsNotAnswered) {
  DataPreparer preparer(Options(Script("echo up > " + Path("up") + "; sleep 1000")));
  ASSERT_TRUE(preparer.Begin(request_.run()));
  std::optional<v1::AgentMessage> answer = v1::AgentMessage();
  std::thread thread([&] { answer = preparer.Prepare(request_); });
  while (!PathExists(Path("up"))) std::this_thread::yield();
  v1::RunId other = request_.run();
  other.set_attempt(7);
  preparer.Cancel(other);  // nobody's
  preparer.Cancel(request_.run());
  thread.join();
  EXPECT_FALSE(answer.has_value());
  // Also before it has begun, and for good.
  ASSERT_TRUE(preparer.Begin(request_.run()));
  preparer.CancelAll();
  EXPECT_FALSE(preparer.Prepare(request_).has_value());
  EXPECT_FALSE(preparer.Begin(request_.run()));
}

}  // namespace
}  // namespace tercio::agent
