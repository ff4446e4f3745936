// The disk's side of the search for a checkpoint, on real directories.
#include "coordinator/service/checkpoint_search.h"

#include <filesystem>
#include <string>

#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::HasSubstr;

class SearchTest : public ::testing::Test {
 protected:
  SearchTest() {
    for (const int64_t step : {10, 20}) Save(step);
    wanted_.run.set_job_id("job");
    wanted_.run.set_attempt(2);
    wanted_.resume_steps = {{1, 0}};
    for (const int64_t step : {20, 10}) {
      v1::CheckpointRecord& known = wanted_.known.emplace_back();
      known.set_step(step);
      known.set_attempt(1);
      known.set_manifest_digest(store_.Find("job", step)->manifest_digest);
    }
  }

  void Save(int64_t step) {
    v1::UploadBegin begin;
    begin.mutable_run()->set_job_id("job");
    begin.mutable_run()->set_attempt(1);
    begin.set_step(step);
    v1::TensorSlice* slice = begin.add_slices();
    slice->set_tensor("w");
    slice->set_dtype("F32");
    slice->add_shape(4);
    slice->set_row_end(4);
    slice->set_column_end(1);
    begin.set_file("attempt-1/rank-00000-0a.safetensors");
    auto writer = checkpoint::PartWriter::Create(store_.PathOf("job", step) + "/" + begin.file(),
                                                 begin.slices());
    ASSERT_TRUE((*writer)->Append(std::string(16, 'x')).ok());
    const auto end = (*writer)->Close();
    const auto part = store_.Adopt(begin, *end);
    ASSERT_TRUE(part.ok()) << part.status();
    ASSERT_TRUE(store_.Commit({"job", step, 1, "{}", "{}", "", {*part}}).ok());
  }
  CheckpointFound Search() {
    return SearchCheckpoint(store_, wanted_, checkpoint::VerifyCheckpoint);
  }
  std::string PartOf(int64_t step) const {
    return store_.PathOf("job", step) + "/attempt-1/rank-00000-0a.safetensors";
  }

  TempDir directory_;
  checkpoint::Store store_{directory_.path()};
  FindCheckpoint wanted_;
};

TEST_F(SearchTest, TakesTheNewestWithoutReadingIt) {
  std::string content = *ReadFile(PartOf(20));
  content.back() ^= 1;
  ASSERT_TRUE(WriteFileDurably(PartOf(20), content).ok());
  const CheckpointFound found = Search();
  EXPECT_EQ(found.step, 20) << "its ranks notice";
  ASSERT_EQ(found.there.size(), 2u);
  EXPECT_EQ(found.there[0].numerics(), 1) << "its training state names none";
  wanted_.suspect_step = 20;
  const CheckpointFound again = Search();
  EXPECT_EQ(again.step, 10);
  ASSERT_EQ(again.findings.size(), 1u);
  EXPECT_TRUE(again.findings[0].damaged);
}

TEST_F(SearchTest, PassesOverProvenDamageOnly) {
  std::filesystem::remove_all(store_.PathOf("job", 20));
  CheckpointFound found = Search();
  EXPECT_EQ(found.step, 10);
  ASSERT_EQ(found.findings.size(), 1u);
  EXPECT_THAT(found.findings[0].problem,
              HasSubstr("its directory or the manifest in it is missing"));
  std::filesystem::rename(store_.PathOfJob("job"), directory_.path() + "/away");
  found = Search();
  EXPECT_EQ(found.step, 0);
  ASSERT_EQ(found.findings.size(), 1u);
  EXPECT_FALSE(found.findings[0].damaged) << "it may be a volume that is not mounted";
  wanted_.known.clear();
  EXPECT_TRUE(Search().findings.empty()) << "a job that has not saved yet";
}

TEST_F(SearchTest, AManifestThatIsNotTheCommittedOneIsDamage) {
  wanted_.known[0].set_manifest_digest(std::string(32, '0'));
  const CheckpointFound found = Search();
  EXPECT_EQ(found.step, 10);
  EXPECT_THAT(found.findings.at(0).problem, HasSubstr("not the one that was committed"));
}

// From a back-up of the time before the job came back to this step.
TEST_F(SearchTest, AManifestOfAnEarlierAttemptIsDamageToo) {
  wanted_.known[0].set_attempt(2);
  wanted_.known[0].set_manifest_digest(std::string(32, '0'));
  const CheckpointFound found = Search();
  EXPECT_EQ(found.step, 10);
  EXPECT_THAT(found.findings.at(0).problem, HasSubstr("not the one that was committed"));
}

TEST_F(SearchTest, WhatIsOfNoHistoryIsLeftAlone) {
  wanted_.resume_steps[2] = 10;
  wanted_.known.erase(wanted_.known.begin());
  EXPECT_EQ(Search().step, 10);
  wanted_.only = 0;
  EXPECT_EQ(Search().step, 0);
}

TEST_F(SearchTest, AVolumeThatIsNotThereIsNoDamage) {
  const auto verify = [this] {
    return VerifyStep(store_, "job", 20, checkpoint::VerifyCheckpoint);
  };
  EXPECT_EQ(verify().problem, "");
  std::filesystem::rename(store_.PathOfJob("job"), directory_.path() + "/away");
  EXPECT_NE(verify().problem, "");
  EXPECT_FALSE(verify().damaged);
  std::filesystem::rename(directory_.path() + "/away", store_.PathOfJob("job"));
  std::filesystem::remove_all(store_.PathOf("job", 20));
  EXPECT_TRUE(verify().damaged);
}

}  // namespace
}  // namespace tercio::coordinator
