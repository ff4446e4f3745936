// Children of this process stand for trainers.
#include "worker/agent/runs/rank_inspector.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "absl/time/clock.h"
#include "common/steady_time.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/progress/whereabouts.h"
#include "worker/trainer/stack_dump.h"

namespace tercio::agent {

// Not hidden in a namespace without a name: its name is looked for in a stack.
[[gnu::noinline]] void WaitForEverHere() {
  while (true) pause();
}

namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class RankInspectorTest : public ::testing::Test {
 protected:
  ~RankInspectorTest() override { End(); }

  // Runs `life` in a child that has a page and answers for its stacks.
  void Start(const std::function<void(progress::Whereabouts&)>& life) {
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      const auto page = *progress::ProgressPage::Create(page_);
      if (!trainer::InstallStackDump("test", page_ + ".stacks").ok()) std::_Exit(1);
      progress::Whereabouts whereabouts(page.get());
      page->SetPhase(v1::TRAINER_PHASE_RUNNING);
      std::thread second(WaitForEverHere);
      life(whereabouts);
      std::_Exit(0);
    }
  }
  void End() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  v1::RankPosition Inspect() { return InspectRanks({{5, child_, page_}}, absl::Seconds(20)).at(0); }
  // Until the child says that it waits.
  v1::RankPosition InspectWaiting() {
    while (true) {
      const auto page = progress::ProgressReader::Open(page_);
      const auto progress = page.ok() ? page->Read() : std::nullopt;
      if (progress.has_value() && progress->waiting.sequence == 812) return Inspect();
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  static void HangInStep97(progress::Whereabouts& whereabouts) {
    whereabouts.BeginStep(97);
    whereabouts.BeginAction("forward", 3);
    whereabouts.BeginWait({"pipeline.1", 812, "pipeline receive", "bytes", 4096, 1});
    WaitForEverHere();
  }

  const TempDir directory_;
  const std::string page_ = directory_.path() + "/job-1-5.page";
  pid_t child_ = 0;
};

TEST_F(RankInspectorTest, SaysWhereARankIs) {
  Start(HangInStep97);
  const v1::RankPosition position = InspectWaiting();
  EXPECT_EQ(position.rank(), 5);
  EXPECT_EQ(position.process_state(), "S");
  EXPECT_EQ(position.phase(), v1::TRAINER_PHASE_RUNNING);
  EXPECT_EQ(position.step(), 97);
  EXPECT_EQ(position.action(), "forward 3");
  EXPECT_EQ(position.waiting().operation(), "pipeline receive");
  EXPECT_EQ(position.waiting().sequence(), 812);
  EXPECT_EQ(position.waiting().count(), 4096);
  EXPECT_EQ(position.waiting().peer(), 1);
  EXPECT_THAT(position.stack(),
              AllOf(HasSubstr("tercio::agent::WaitForEverHere()"), HasSubstr("thread ")));
  // Waits for both threads' stacks; the second may still be on its way there.
  std::string stack = position.stack();
  for (int i = 0; i < 1000 && stack.find("WaitFor") == stack.rfind("WaitFor"); ++i) {
    stack = Inspect().stack();
  }
  EXPECT_NE(stack.find("WaitFor"), stack.rfind("WaitFor")) << stack;
  // Asked again it says the same, once.
  EXPECT_EQ(Inspect().stack().size(), stack.size());
}

TEST_F(RankInspectorTest, AStoppedProcessDoesNotAnswer) {
  Start(HangInStep97);
  InspectWaiting();
  kill(child_, SIGSTOP);
  while (ProcessState(child_) != "T") absl::SleepFor(absl::Milliseconds(1));
  const absl::Time start = absl::Now();
  const v1::RankPosition position = Inspect();
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_EQ(position.process_state(), "T");
  EXPECT_EQ(position.waiting().sequence(), 812);
  EXPECT_EQ(position.stack(), "");
}

TEST_F(RankInspectorTest, OneThatHasEndedIsGone) {
  Start(HangInStep97);
  InspectWaiting();
  End();
  const v1::RankPosition position = Inspect();
  EXPECT_EQ(position.process_state(), "");
  EXPECT_EQ(position.step(), 97);  // what it did last
}

TEST_F(RankInspectorTest, AProcessWithoutTheHandlerIsNotSignalled) {
  child_ = fork();
  ASSERT_GE(child_, 0);
  if (child_ == 0) WaitForEverHere();
  const auto page = *progress::ProgressPage::Create(page_);
  std::fclose(std::fopen((page_ + ".stacks").c_str(), "w"));
  EXPECT_EQ(Inspect().stack(), "");
  EXPECT_THAT(ProcessState(child_), AnyOf("S", "R"));
}

// The directory is the trainer's, the agent may be root.
TEST_F(RankInspectorTest, ReadsNoStacksThroughALinkAndWaitsForNoFifo) {
  Start(HangInStep97);
  InspectWaiting();
  const std::string stacks = page_ + ".stacks";
  const std::string secret = directory_.path() + "/secret";
  const auto inspect = [this] {
    const absl::Time start = SteadyNow();
    const v1::RankPosition position = InspectRanks({{5, child_, page_}}, absl::Seconds(1)).at(0);
    EXPECT_LT(SteadyNow() - start, absl::Seconds(10));
    return position;
  };
  std::ofstream(secret) << "";
  std::filesystem::remove(stacks);
  std::filesystem::create_symlink(secret, stacks);
  // What is written into the target once the inspector waits would be taken for a stack.
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::ofstream file(secret, std::ios::app); !stop;) file << "secret\n" << std::flush;
  });
  EXPECT_EQ(inspect().stack(), "");
  stop = true;
  writer.join();
  std::filesystem::remove(stacks);
  ASSERT_EQ(mkfifo(stacks.c_str(), 0600), 0);
  const v1::RankPosition position = inspect();
  EXPECT_EQ(position.stack(), "");
  EXPECT_EQ(position.step(), 97) << "the rest is there";
}

TEST_F(RankInspectorTest, OfAPageWithOtherBytesTheMessageCanBeSent) {
  const auto page = *progress::ProgressPage::Create(page_);
  page->BeginStep(3);
  page->BeginAction("\xff\xfe\x1b[2J");
  page->BeginWait({"\xff", 1, "\xff", "\xff", 1, 1});
  std::string bytes;
  EXPECT_TRUE(Inspect().SerializeToString(&bytes));
  v1::RankPosition again;
  EXPECT_TRUE(again.ParseFromString(bytes));
  EXPECT_EQ(again.action(), "???[2J");
  EXPECT_EQ(again.waiting().operation(), "?");
}

TEST(RankWatchTest, GathersStepsAndStandstill) {
  const TempDir directory;
  const std::string path = directory.path() + "/0.page";
  const RunKey run{"job", 1};
  RankWatch watch;
  watch.Sample(run, 0, path);  // not there yet
  EXPECT_LT(watch.Take(run).stalled_seconds(), 10);
  const auto page = *progress::ProgressPage::Create(path);
  for (int step = 1; step <= 5; ++step) {
    page->EndStep(step, step, 0.5 * step);
    watch.Sample(run, 0, path);
    watch.Sample(run, 0, path);
  }
  v1::RunHealth health = watch.Take(run);
  EXPECT_EQ(health.run().job_id(), "job");
  EXPECT_LT(health.stalled_seconds(), 10);
  ASSERT_EQ(health.timings_size(), 1);
  EXPECT_EQ(health.timings(0).step(), 5);
  EXPECT_EQ(health.timings(0).step_seconds(), 3);
  EXPECT_EQ(health.timings(0).compute_seconds(), 1.5);
  absl::SleepFor(absl::Milliseconds(200));
  watch.Sample(run, 0, path);
  health = watch.Take(run);
  EXPECT_EQ(health.timings_size(), 0);
  EXPECT_GE(health.stalled_seconds(), 0.2);
  page->Beat();
  watch.Sample(run, 0, path);
  EXPECT_LT(watch.Take(run).stalled_seconds(), 0.2);
  watch.Forget(run);
  EXPECT_EQ(watch.Take(run).stalled_seconds(), 0);
}

TEST(RankWatchTest, SurvivesATrainerThatCutsItsPage) {
  const TempDir directory;
  const std::string path = directory.path() + "/0.page";
  const RunKey run{"job", 1};
  const auto page = *progress::ProgressPage::Create(path);
  page->EndStep(1, 1, 1);
  RankWatch watch;
  watch.Sample(run, 0, path);
  std::filesystem::resize_file(path, 0);
  watch.Sample(run, 0, path);
  EXPECT_EQ(watch.Take(run).timings_size(), 1) << "what was seen before";
}

TEST(RankWatchTest, SumsTheBytesThatRanksLoad) {
  const TempDir directory;
  const RunKey run{"job", 1};
  RankWatch watch;
  const auto first = *progress::ProgressPage::Create(directory.path() + "/0.page");
  const auto second = *progress::ProgressPage::Create(directory.path() + "/1.page");
  const auto take = [&] {
    watch.Sample(run, 0, directory.path() + "/0.page");
    watch.Sample(run, 1, directory.path() + "/1.page");
    return watch.Take(run);
  };
  first->SetLoaded(0, 100);
  EXPECT_EQ(take().load_total_bytes(), 0) << "it does not load yet";
  first->SetPhase(v1::TRAINER_PHASE_LOADING);
  second->SetPhase(v1::TRAINER_PHASE_LOADING);
  second->SetLoaded(10, 200);
  EXPECT_EQ(take().loaded_bytes(), 10);
  EXPECT_EQ(take().load_total_bytes(), 300);
  first->SetLoaded(100, 100);
  first->SetPhase(v1::TRAINER_PHASE_RUNNING);
  EXPECT_EQ(take().loaded_bytes(), 110) << "what has been loaded counts while others load";
  second->SetPhase(v1::TRAINER_PHASE_RUNNING);
  EXPECT_EQ(take().loaded_bytes(), 0);
}

}  // namespace
}  // namespace tercio::agent
