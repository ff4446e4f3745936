#include "worker/trainer/outbox.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::trainer {
namespace {

using ::testing::ElementsAre;

v1::TrainerMessage Step(int64_t step, bool record) {
  v1::TrainerMessage message;
  v1::TrainerStep* report = message.mutable_step();
  (record ? report->mutable_record() : report->mutable_newest())->set_step(step);
  return message;
}

v1::TrainerMessage Memory(int64_t bytes) {
  v1::TrainerMessage message;
  message.mutable_memory()->set_used_bytes(bytes);
  return message;
}

v1::TrainerMessage Phase(v1::TrainerPhase phase) {
  v1::TrainerMessage message;
  message.mutable_phase()->set_phase(phase);
  return message;
}

std::vector<uint64_t> Waiting(const Outbox& outbox) {
  std::vector<uint64_t> sequences;
  const v1::TrainerMessage* next = outbox.After(0);
  for (; next != nullptr; next = outbox.After(sequences.back())) {
    sequences.push_back(next->sequence());
  }
  return sequences;
}

TEST(Outbox, KeepsWhatIsNotReceived) {
  Outbox outbox;
  EXPECT_EQ(outbox.After(0), nullptr);
  for (int step = 1; step <= 4; ++step) outbox.Add(Step(step, true));
  EXPECT_THAT(Waiting(outbox), ElementsAre(1, 2, 3, 4));
  outbox.Received(2);
  EXPECT_THAT(Waiting(outbox), ElementsAre(3, 4));
  outbox.Received(1);
  EXPECT_THAT(Waiting(outbox), ElementsAre(3, 4));
  outbox.Received(9);
  EXPECT_TRUE(outbox.empty());
  outbox.Add(Step(5, true));
  EXPECT_THAT(Waiting(outbox), ElementsAre(5));
}

TEST(Outbox, OfFiguresTheNewestIsEnough) {
  Outbox outbox;
  outbox.Add(Phase(v1::TRAINER_PHASE_RUNNING));
  for (int step = 1; step <= 100; ++step) {
    outbox.Add(Step(step, false));
    outbox.Add(Memory(step));
  }
  ASSERT_EQ(outbox.size(), 3u);
  EXPECT_EQ(outbox.After(1)->step().newest().step(), 100);
  EXPECT_EQ(outbox.After(outbox.After(1)->sequence())->memory().used_bytes(), 100);
  for (int step = 1; step <= 100; ++step) outbox.Add(Step(step, true));
  EXPECT_EQ(outbox.size(), 103u) << "records must all arrive";
}

TEST(Outbox, RepeatsThePhaseOnce) {
  Outbox outbox;
  outbox.RepeatPhase();
  EXPECT_TRUE(outbox.empty()) << "none yet";
  outbox.Add(Phase(v1::TRAINER_PHASE_RUNNING));
  outbox.RepeatPhase();
  EXPECT_EQ(outbox.size(), 1u) << "it waits to be told anyway";
  outbox.Received(1);
  outbox.RepeatPhase();
  ASSERT_EQ(outbox.size(), 1u);
  EXPECT_EQ(outbox.After(0)->phase().phase(), v1::TRAINER_PHASE_RUNNING);
  EXPECT_EQ(outbox.After(0)->sequence(), 2u);
}

}  // namespace
}  // namespace tercio::trainer
