#include "worker/agent/runs/drills.h"

#include <csignal>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A trainer that writes down what is done to it.
class DrillsTest : public ::testing::Test {
 protected:
  static v1::InjectFault Fault(const std::string& name) {
    v1::InjectFault fault;
    fault.mutable_run()->set_job_id("j");
    fault.mutable_run()->set_attempt(2);
    fault.set_rank(3);
    fault.set_fault(name);
    fault.set_seconds(10);
    return fault;
  }

  Drills::Target Connected() {
    return {
        [this](int signal) { signals_.push_back(signal); },
        [this](const v1::TrainerCommand& command) { flips_ += command.has_flip_bit() ? 1 : 0; }};
  }

  std::vector<int> SignalsAt(double now) {
    std::vector<int> signals;
    for (const Drills::Pulse& pulse : drills_.Pulses(now)) {
      EXPECT_EQ(pulse.run, RunKey("j", 2));
      EXPECT_EQ(pulse.rank, 3);
      signals.push_back(pulse.signal);
    }
    return signals;
  }

  Drills drills_;
  std::vector<int> signals_;
  int flips_ = 0;
};

TEST_F(DrillsTest, SignalsAndFlips) {
  EXPECT_TRUE(drills_.Inject(Fault("kill-trainer"), Connected(), 1).ok());
  EXPECT_TRUE(drills_.Inject(Fault("freeze-trainer"), Connected(), 1).ok());
  EXPECT_THAT(signals_, ElementsAre(SIGKILL, SIGSTOP));
  EXPECT_TRUE(drills_.Inject(Fault("flip-bit"), Connected(), 1).ok());
  EXPECT_EQ(flips_, 1);
  EXPECT_FALSE(drills_.SlowsDown());
}

TEST_F(DrillsTest, SaysWhyAFaultIsImpossible) {
  EXPECT_EQ(drills_.Inject(Fault("kill-trainer"), {}, 1).message(),
            "rank 3 is not running on this node");
  Drills::Target away = Connected();
  away.write = nullptr;
  EXPECT_EQ(drills_.Inject(Fault("flip-bit"), away, 1).message(),
            "rank 3 is not connected to its agent");
  EXPECT_EQ(drills_.Inject(Fault("flood"), Connected(), 1).message(),
            "this agent does not support the fault flood");
  EXPECT_THAT(signals_, IsEmpty());
}

TEST_F(DrillsTest, ASlowRankStopsInEverySecondSliceAndContinuesAtTheEnd) {
  ASSERT_TRUE(drills_.Inject(Fault("slow-rank"), Connected(), 100).ok());
  EXPECT_TRUE(drills_.SlowsDown());
  EXPECT_THAT(SignalsAt(101), ElementsAre(SIGSTOP));
  EXPECT_THAT(SignalsAt(102), ElementsAre(SIGCONT));
  EXPECT_THAT(SignalsAt(109), ElementsAre(SIGSTOP));
  EXPECT_THAT(SignalsAt(110), ElementsAre(SIGCONT));
  EXPECT_FALSE(drills_.SlowsDown());
  EXPECT_THAT(SignalsAt(111), IsEmpty());
}

}  // namespace
}  // namespace tercio::agent
