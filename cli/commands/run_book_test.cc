#include "cli/commands/run_book.h"

#include "common/file.h"
#include "common/temp_dir.h"
#include "config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::JobSpec Spec(const std::vector<std::string>& changes = {}) {
  const auto spec = config::ParseJobText(
      "model: {layers: 2, hidden: 16, heads: 2, context: 8}\n"
      "data: {train: corpus.txt}\n"
      "training: {steps: 100, global_batch: 4, optimizer: {learning_rate: 1e-3}}\n",
      "job.yaml", "/where", changes);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

std::vector<std::string> JobsOf(const std::vector<PlannedRun>& runs) {
  std::vector<std::string> jobs;
  for (const PlannedRun& run : runs) jobs.push_back(run.job);
  return jobs;
}

TEST(DigestOfJob, DependsOnEverythingButTheName) {
  const std::string digest = DigestOfJob(Spec());
  EXPECT_EQ(DigestOfJob(Spec({"name=other"})), digest);
  EXPECT_EQ(DigestOfJob(Spec({"training.seed=1337"})), digest);
  for (const char* change :
       {"training.seed=1", "parallelism={data: 2}", "data.train=else.txt", "training.micro_batch=2",
        "resources.threads_per_rank=1", "training.optimizer.learning_rate=2e-3"}) {
    EXPECT_NE(DigestOfJob(Spec({change})), digest) << change;
  }
}

TEST(RunBook, IsReadBack) {
  const TempDir directory;
  const std::string path = directory.path() + "/runs.json";
  auto book = RunBook::Open(path);
  ASSERT_TRUE(book.ok()) << book.status();
  EXPECT_TRUE(book->runs().empty());
  ASSERT_TRUE(book->Record({"d1", "job-1", "one \"device\""}).ok());
  ASSERT_TRUE(book->Record({"d2", "job-2", "data 2"}).ok());
  ASSERT_TRUE(book->Record({"d1", "job-3", "one"}, "job-1").ok());
  const auto again = RunBook::Open(path);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(again->runs().size(), 2u);
  EXPECT_EQ(again->runs()[0].job, "job-3");
  EXPECT_EQ(again->runs()[0].digest, "d1");
  EXPECT_EQ(again->runs()[1].variant, "data 2");
}

TEST(RunBook, OtherFilesAreRefused) {
  const TempDir directory;
  const std::string path = directory.path() + "/runs.json";
  for (const char* text :
       {"", "[]", "{", R"({"format": "tercio-runs-2", "runs": []})",
        R"({"format": "tercio-runs-1"})",
        R"({"format": "tercio-runs-1", "runs": [{"digest": "d", "job": 3, "variant": "v"}]})"}) {
    ASSERT_TRUE(WriteFileDurably(path, text).ok());
    const auto book = RunBook::Open(path);
    EXPECT_EQ(book.status().code(), absl::StatusCode::kFailedPrecondition) << text;
    EXPECT_THAT(std::string(book.status().message()), HasSubstr("remove it to run all variants"));
  }
}

TEST(PlanRuns, OnlyWhatIsMissingHasNoJob) {
  const std::vector<RecordedRun> recorded = {
      {"b", "job-1", "old name"}, {"c", "job-2", "gone"}, {"a", "job-3", "a"}};
  EXPECT_THAT(JobsOf(PlanRuns({"a", "b", "x"}, 1, recorded)), ElementsAre("job-3", "job-1", ""));
  // A second run of each comes after the first of all.
  const std::vector<PlannedRun> twice = PlanRuns({"a", "b"}, 2, recorded);
  EXPECT_THAT(JobsOf(twice), ElementsAre("job-3", "job-1", "", ""));
  EXPECT_EQ(twice[3].variant, 1u);
  EXPECT_EQ(twice[3].repetition, 1);
}

// Two variants that are alike are two runs.
TEST(PlanRuns, NoRunIsTakenTwice) {
  const std::vector<RecordedRun> recorded = {{"a", "job-1", "a"}, {"a", "job-2", "b"}};
  EXPECT_THAT(JobsOf(PlanRuns({"a", "a"}, 1, recorded)), ElementsAre("job-1", "job-2"));
  EXPECT_THAT(JobsOf(PlanRuns({"a", "a"}, 2, recorded)), ElementsAre("job-1", "job-2", "", ""));
  EXPECT_THAT(JobsOf(PlanRuns({"a"}, 1, recorded)), ElementsAre("job-1"));
}

}  // namespace
}  // namespace tercio::cli
