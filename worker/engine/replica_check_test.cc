// Tests which replica is named where replicas that should be equal differ.
#include "worker/engine/replica_check.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(OddMembers, AreThoseWithoutTheMajority) {
  EXPECT_THAT(OddMembers({5}), IsEmpty());
  EXPECT_THAT(OddMembers({5, 5}), IsEmpty());
  EXPECT_THAT(OddMembers({5, 6}), ElementsAre(0, 1));
  EXPECT_THAT(OddMembers({5, 6, 5}), ElementsAre(1));
  EXPECT_THAT(OddMembers({5, 5, 5, 6}), ElementsAre(3));
  EXPECT_THAT(OddMembers({5, 5, 6, 6}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(OddMembers({5, 6, 7}), ElementsAre(0, 1, 2));
  EXPECT_THAT(OddMembers({7, 5, 5, 6, 5}), ElementsAre(0, 3));
}

TEST(JudgeReplicas, NamesTheOneThatMostGroupsSuspect) {
  const ReplicaVerdict one = JudgeReplicas({0, 0, 1, 0}, "layers.0.mlp.up.weight");
  EXPECT_FALSE(one.equal);
  EXPECT_EQ(one.odd_rank, 2);
  EXPECT_EQ(one.text,
            "the weights of rank 2 differ from those of its replicas (layers.0.mlp.up.weight)");
  const ReplicaVerdict two = JudgeReplicas({0, 1, 0, 1}, "");
  EXPECT_EQ(two.odd_rank, -1);
  EXPECT_EQ(two.text, "the weights of one of ranks 1 and 3 differ from those of its replicas");
  // Two replicas and two tensor ranks: both groups suspect rank 3.
  EXPECT_EQ(JudgeReplicas({0, 1, 1, 2}, "").odd_rank, 3);
  EXPECT_EQ(JudgeReplicas({1, 1, 1}, "").text,
            "the weights of some of ranks 0, 1, 2 differ from those of its replicas");
}

}  // namespace
}  // namespace tercio::engine
