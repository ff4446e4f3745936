// What agents answer when they are asked for a job's data, and how long they keep it.
#include "worker/agent/data_preparer.h"

#include <fstream>

#include "common/file.h"
#include "common/temp_dir.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

class DataPreparerTest : public ::testing::Test {
 protected:
  DataPreparerTest() {
    std::ofstream(directory_.path() + "/corpus.txt") << std::string(1000, 'a') << "bcd";
    request_.mutable_run()->set_job_id("job");
    request_.mutable_run()->set_attempt(1);
    v1::JobSpec& spec = *request_.mutable_spec();
    spec.mutable_data()->set_train(directory_.path() + "/corpus.txt");
    spec.mutable_data()->set_tokenizer("chars");
    spec.mutable_model()->set_architecture("gpt2");
    spec.mutable_model()->set_context(8);
  }

  TempDir directory_;
  const std::string cache_ = directory_.path() + "/cache";
  DataPreparer preparer_{{"node", cache_, /*most_cache_bytes=*/0, AllowedPaths()}};
  v1::PrepareData request_;
};

TEST_F(DataPreparerTest, AnAttemptIsPreparedOnceAtATime) {
  EXPECT_TRUE(preparer_.Begin(request_.run()));
  EXPECT_FALSE(preparer_.Begin(request_.run())) << "a coordinator that has come back asks again";
  v1::RunId next = request_.run();
  next.set_attempt(2);
  EXPECT_TRUE(preparer_.Begin(next));
  const v1::AgentMessage good = preparer_.Prepare(request_);
  EXPECT_EQ(good.data_prepared().error(), "");
  EXPECT_EQ(good.data_prepared().vocab_size(), 4);
  EXPECT_TRUE(preparer_.Begin(request_.run()));
  request_.mutable_spec()->mutable_data()->set_train("/no/such.txt");
  EXPECT_NE(preparer_.Prepare(request_).data_prepared().error(), "");
  EXPECT_TRUE(preparer_.Begin(request_.run()));
}

TEST_F(DataPreparerTest, WhatWasPreparedStaysUntilItsTrainersHaveIt) {
  preparer_.Begin(request_.run());
  preparer_.Prepare(request_);
  const std::vector<std::string> files = ListDirectory(cache_);
  ASSERT_FALSE(files.empty());
  preparer_.Trim(1000);
  preparer_.Trim(1500);
  EXPECT_EQ(ListDirectory(cache_), files);
  preparer_.Trim(1700);
  EXPECT_TRUE(ListDirectory(cache_).empty());
}

}  // namespace
}  // namespace tercio
