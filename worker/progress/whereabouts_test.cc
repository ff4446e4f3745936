#include "worker/progress/whereabouts.h"

#include <barrier>
#include <thread>

#include "common/temp_dir.h"
#include "gtest/gtest.h"

namespace tercio::progress {
namespace {

class WhereaboutsTest : public ::testing::Test {
 protected:
  WhereaboutsTest()
      : page_(*ProgressPage::Create(directory_.path() + "/rank.page")), whereabouts_(page_.get()) {}

  RankProgress Seen() const {
    return ProgressReader::Open(directory_.path() + "/rank.page")->Read().value();
  }

  TempDir directory_{"/tmp"};
  std::unique_ptr<ProgressPage> page_;
  Whereabouts whereabouts_;
  const CollectivePosition tensor_{"tensor.0", 4410, "all-reduce", "f32", 100, 3};
  const CollectivePosition data_{"data.1", 12, "all-reduce", "f32", 5000, 6};
};

TEST_F(WhereaboutsTest, ShowsStepActionAndWait) {
  whereabouts_.BeginStep(97);
  whereabouts_.BeginAction("forward", 3);
  EXPECT_EQ(whereabouts_.action(), "forward 3");
  EXPECT_EQ(Seen().step, 97);
  EXPECT_EQ(Seen().action, "forward 3");
  whereabouts_.BeginWait(tensor_);
  EXPECT_EQ(Seen().waiting.sequence, 4410);
  EXPECT_EQ(Seen().waiting.peer, 3);
  whereabouts_.EndWait(0.25);
  EXPECT_EQ(Seen().waiting.operation, "");
  EXPECT_EQ(whereabouts_.engine_wait_seconds(), 0.25);
  whereabouts_.BeginAction("evaluation");
  EXPECT_EQ(Seen().action, "evaluation");
}

TEST_F(WhereaboutsTest, TheOtherThreadCountsWhileTheEngineWaitsForIt) {
  whereabouts_.BeginStep(1);
  std::barrier turn(2);
  std::thread other([&] {
    whereabouts_.BeginWait(data_);
    turn.arrive_and_wait();
    turn.arrive_and_wait();
    whereabouts_.EndWait(5);
    turn.arrive_and_wait();
    turn.arrive_and_wait();
    whereabouts_.BeginWait(data_);
  });
  turn.arrive_and_wait();
  EXPECT_EQ(Seen().waiting.operation, "");
  whereabouts_.BeginWait(tensor_);
  EXPECT_EQ(Seen().waiting.group, "tensor.0");
  whereabouts_.EndWait(1);
  whereabouts_.BeginJoin("tensor.0", "");
  EXPECT_EQ(Seen().waiting.operation, "");  // another thread's
  whereabouts_.EndJoin(0);
  whereabouts_.BeginJoin("replica.1", "data.1");
  EXPECT_EQ(Seen().waiting.group, "data.1");
  turn.arrive_and_wait();
  turn.arrive_and_wait();
  EXPECT_EQ(Seen().waiting.operation, "");
  turn.arrive_and_wait();
  other.join();
  EXPECT_EQ(Seen().waiting.sequence, 12);
  whereabouts_.EndJoin(2);
  EXPECT_EQ(Seen().waiting.operation, "");
  EXPECT_EQ(whereabouts_.engine_wait_seconds(), 3);
}

TEST(NoPageTest, IsQuiet) {
  Whereabouts whereabouts(nullptr);
  whereabouts.BeginStep(1);
  whereabouts.BeginWait({});
  whereabouts.EndWait(1);
  whereabouts.BeginJoin("data.0", "");
  whereabouts.EndJoin(1);
  whereabouts.EndStep(1, 3, 1);
  EXPECT_EQ(whereabouts.engine_wait_seconds(), 2);
}

}  // namespace
}  // namespace tercio::progress
