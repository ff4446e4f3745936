// Positions of the ranks of a 2 x 2 x 2 job, written by hand; ranks 0-3 on node a, 4-7 on node b.
#include "coordinator/core/diagnosis.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::Plan MakePlan() {
  v1::Plan plan;
  const auto add_group = [&](const std::string& name, int first, int stride, int size) {
    v1::ProcessGroup* group = plan.add_groups();
    group->set_name(name);
    group->set_first(first);
    group->set_stride(stride);
    group->set_size(size);
  };
  add_group("world", 0, 1, 8);
  for (int r = 0; r < 8; ++r) {
    v1::RankPlacement* placement = plan.add_ranks();
    placement->set_rank(r);
    placement->set_node(r < 4 ? "a" : "b");
    placement->set_tensor_index(r % 2);
    placement->set_data_index(r / 2 % 2);
    placement->set_pipeline_index(r / 4);
  }
  for (const int first : {0, 2, 4, 6}) {
    add_group("tensor." + std::to_string(first / 2), first, 1, 2);
  }
  for (int i = 0; i < 4; ++i) add_group("pipeline." + std::to_string(i), i, 4, 2);
  return plan;
}

v1::RankPosition Computes(int rank, const std::string& action = "forward 3") {
  v1::RankPosition position;
  position.set_rank(rank);
  position.set_process_state("R");
  position.set_phase(v1::TRAINER_PHASE_RUNNING);
  position.set_step(97);
  position.set_action(action);
  position.set_seconds(45);
  return position;
}

v1::RankPosition Waits(int rank, const std::string& group, const std::string& operation,
                       int64_t sequence, int peer = -1, int64_t count = 100) {
  v1::RankPosition position = Computes(rank);
  position.set_process_state("S");
  v1::CollectiveIdentity* wait = position.mutable_waiting();
  wait->set_group(group);
  wait->set_operation(operation);
  wait->set_sequence(sequence);
  wait->set_dtype("f32");
  wait->set_count(count);
  wait->set_peer(peer);
  return position;
}

class DiagnosisTest : public ::testing::Test {
 protected:
  DiagnosisTest() {
    for (int r = 0; r < 8; ++r) positions_[r] = Waits(r, "world", "all-reduce", 4410);
  }
  Diagnosis Run() const { return Diagnose(plan_, positions_); }

  const v1::Plan plan_ = MakePlan();
  std::map<int, v1::RankPosition> positions_;
};

TEST_F(DiagnosisTest, StoppedProcess) {
  positions_[5] = Waits(5, "pipeline.1", "pipeline receive", 812, 1);
  positions_[5].set_process_state("T");
  const Diagnosis diagnosis = Run();
  EXPECT_EQ(diagnosis.kind, HangKind::kStopped);
  EXPECT_THAT(diagnosis.culprits, ElementsAre(5));
  EXPECT_EQ(diagnosis.text,
            "rank 5 (node b) is at pipeline receive #812 of step 97; ranks 0-4, 6, 7 wait in "
            "all-reduce #4410 of world; the trainer of rank 5 is stopped (state T)");
}

TEST_F(DiagnosisTest, FollowsAChainOfPeers) {
  // 7 waits for 6 in their tensor group, 6 for 2 in the pipeline, 2 for 3; 3 computes for ever.
  positions_[7] = Waits(7, "tensor.3", "all-reduce", 88, 6);
  positions_[6] = Waits(6, "pipeline.2", "pipeline receive", 11, 2);
  positions_[2] = Waits(2, "tensor.1", "all-reduce", 70, 3);
  positions_[3] = Computes(3, "backward 1");
  for (const int rank : {0, 1, 4, 5}) positions_[rank] = Waits(rank, "world", "all-reduce", 9, 7);
  const Diagnosis diagnosis = Run();
  EXPECT_EQ(diagnosis.kind, HangKind::kStuck);
  EXPECT_THAT(diagnosis.culprits, ElementsAre(3));
  EXPECT_THAT(diagnosis.text, HasSubstr("rank 3 (node a) is at backward 1 of step 97; ranks 0, 1, "
                                        "4, 5 wait in all-reduce #9 of world"));
  EXPECT_THAT(diagnosis.text,
              HasSubstr("rank 3 waits for no other rank and has made no progress for 45 s"));
}

TEST_F(DiagnosisTest, UninterruptibleIsStuck) {
  positions_[1].set_process_state("D");
  const Diagnosis diagnosis = Run();
  EXPECT_EQ(diagnosis.kind, HangKind::kStuck);
  EXPECT_THAT(diagnosis.culprits, ElementsAre(1));
  EXPECT_THAT(diagnosis.text, HasSubstr("(state D)"));
}

TEST_F(DiagnosisTest, GoneProcess) {
  positions_[2] = Computes(2);
  positions_[2].set_process_state("");
  EXPECT_EQ(Run().kind, HangKind::kGone);
  EXPECT_THAT(Run().culprits, ElementsAre(2));
  EXPECT_THAT(Run().text, HasSubstr("the trainer of rank 2 has ended"));
  positions_[2].set_process_state("Z");
  EXPECT_EQ(Run().kind, HangKind::kGone);
}

TEST_F(DiagnosisTest, AStoppedRankExplainsABusyOne) {
  positions_[1] = Computes(1);
  positions_[6].set_process_state("T");
  EXPECT_THAT(Run().culprits, ElementsAre(6));
}

TEST_F(DiagnosisTest, AWholeNodeWithoutAnswer) {
  for (int r = 4; r < 8; ++r) positions_.erase(r);
  const Diagnosis diagnosis = Run();
  EXPECT_EQ(diagnosis.kind, HangKind::kNoAnswer);
  EXPECT_THAT(diagnosis.culprits, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(
      diagnosis.text,
      "ranks 0-3 wait in all-reduce #4410 of world; nothing is known about ranks 4-7: no answer "
      "from node b");
  // Only the rank that is waited for counts.
  for (int r = 0; r < 4; ++r) positions_[r] = Waits(r, "tensor.0", "all-reduce", 3, r / 2 * 2);
  positions_[0] = Waits(0, "pipeline.0", "pipeline receive", 3, 4);
  EXPECT_THAT(Run().culprits, ElementsAre(4));
  positions_.clear();
  EXPECT_EQ(Run().kind, HangKind::kNoAnswer);
  EXPECT_EQ(Run().culprits.size(), 8);
}

TEST_F(DiagnosisTest, Mismatch) {
  positions_[1] = Waits(1, "world", "all-gather", 4410, 0);
  Diagnosis diagnosis = Run();
  EXPECT_EQ(diagnosis.kind, HangKind::kMismatch);
  EXPECT_THAT(diagnosis.culprits, ElementsAre(0, 1));
  EXPECT_THAT(diagnosis.text, HasSubstr("rank 0 at all-reduce #4410 of f32 x 100 in group world, "
                                        "rank 1 at all-gather #4410 of f32 x 100 in group world"));
  positions_[1] = Waits(1, "world", "all-reduce", 4410, 0, 99);
  EXPECT_EQ(Run().kind, HangKind::kMismatch);
}

TEST_F(DiagnosisTest, SlowLink) {
  positions_[2] = Waits(2, "pipeline.2", "pipeline send", 40, 6);
  positions_[6] = Waits(6, "pipeline.2", "pipeline receive", 40, 2);
  for (const int rank : {0, 1, 3, 4, 5, 7}) {
    positions_[rank] = Waits(rank, "world", "all-reduce", 9, rank == 0 ? 2 : 0);
  }
  Diagnosis diagnosis = Run();
  EXPECT_EQ(diagnosis.kind, HangKind::kSlowLink);
  EXPECT_THAT(diagnosis.culprits, ElementsAre(2, 6));
  EXPECT_THAT(diagnosis.text, HasSubstr("rank 2 (node a) waits in pipeline send #40 of step 97 for "
                                        "data that rank 6 (node b)"));
  // A collective in which both wait for each other.
  positions_[2] = Waits(2, "tensor.1", "all-reduce", 5, 3);
  positions_[3] = Waits(3, "tensor.1", "all-reduce", 5, 2);
  positions_[6] = Waits(6, "world", "all-reduce", 9, 0);
  EXPECT_EQ(Run().kind, HangKind::kSlowLink);
  EXPECT_THAT(Run().culprits, ElementsAre(2, 3));
}

TEST_F(DiagnosisTest, AllWaitInACircle) {
  positions_[0] = Waits(0, "tensor.0", "all-reduce", 5, 1);
  positions_[1] = Waits(1, "pipeline.1", "pipeline receive", 6, 5);
  positions_[5] = Waits(5, "tensor.2", "all-reduce", 7, 4);
  positions_[4] = Waits(4, "pipeline.0", "pipeline receive", 8, 0);
  const Diagnosis diagnosis = Run();
  EXPECT_EQ(diagnosis.kind, HangKind::kDeadlock);
  EXPECT_THAT(diagnosis.culprits, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(diagnosis.text, HasSubstr("all ranks wait, ranks 0, 1, 4, 5 in a cycle"));
}

TEST_F(DiagnosisTest, BeforeTheFirstStep) {
  for (auto& [rank, position] : positions_) {
    position = v1::RankPosition();
    position.set_process_state("S");
    position.set_phase(v1::TRAINER_PHASE_LOADING);
  }
  EXPECT_EQ(Run().kind, HangKind::kStuck);
  EXPECT_THAT(Run().text, HasSubstr("rank 0 (node a) is at loading; ranks 0-7 wait for no other"));
}

TEST(NameRanksTest, MakesRuns) {
  EXPECT_EQ(NameRanks({5}), "rank 5");
  EXPECT_EQ(NameRanks({0, 1, 2, 3, 4, 6, 7}), "ranks 0-4, 6, 7");
  EXPECT_EQ(NameRanks({1, 3, 4, 5}), "ranks 1, 3-5");
}

}  // namespace
}  // namespace tercio::coordinator
