#include "coordinator/core/snapshots.h"

#include "coordinator/core/placement.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kJob[] = "job-1";

class NewestCompleteTest : public ::testing::Test {
 protected:
  std::optional<SnapshotChoice> Choose(const std::vector<std::string>& placed) {
    std::map<std::string, const HeldSnapshots*> nodes;
    for (const auto& [name, held] : held_) nodes[name] = &held;
    return NewestComplete(kJob, placed, nodes,
                          [this](const SnapshotId& id) { return !lost_.contains(id); });
  }
  void Holds(const std::string& node, int rank, SnapshotId id) { held_[node].Add(kJob, rank, id); }

  std::map<std::string, HeldSnapshots> held_;
  std::set<SnapshotId> lost_;
};

TEST_F(NewestCompleteTest, NeedsEveryRank) {
  Holds("a", 0, {1, 10});
  EXPECT_FALSE(Choose({"a", "b"}).has_value());
  Holds("b", 1, {1, 8});
  EXPECT_FALSE(Choose({"a", "b"}).has_value());
  Holds("b", 1, {1, 10});
  const auto choice = Choose({"a", "b"});
  ASSERT_TRUE(choice.has_value());
  EXPECT_EQ(choice->id, (SnapshotId{1, 10}));
  EXPECT_THAT(choice->sources, ElementsAre("a", "b"));
}

TEST_F(NewestCompleteTest, PrefersTheRanksOwnNode) {
  for (const char* node : {"a", "b", "c"}) {
    for (int rank = 0; rank < 3; ++rank) Holds(node, rank, {1, 10});
  }
  EXPECT_THAT(Choose({"c", "b", "d"})->sources, ElementsAre("c", "b", "a"));
}

TEST_F(NewestCompleteTest, TakesTheLatestStepThatCounts) {
  Holds("a", 0, {1, 10});
  Holds("a", 0, {1, 12});
  EXPECT_EQ(Choose({"a"})->id.step, 12);
  lost_ = {{1, 12}};
  EXPECT_EQ(Choose({"a"})->id.step, 10);
  lost_ = {{1, 12}, {1, 10}};
  EXPECT_FALSE(Choose({"a"}).has_value());
}

TEST_F(NewestCompleteTest, RanksThatTheJobDoesNotHaveAreNothing) {
  Holds("a", 0, {1, 10});
  Holds("a", 7, {1, 12});
  EXPECT_EQ(Choose({"a"})->id.step, 10);
}

TEST(HeldSnapshots, KnowsTheTwoNewestOfARank) {
  HeldSnapshots held;
  held.Add(kJob, 0, {1, 10});
  held.Add(kJob, 0, {1, 20});
  held.Add(kJob, 0, {2, 15});
  EXPECT_THAT(held.Of(kJob).at(0), ElementsAre(SnapshotId{1, 20}, SnapshotId{2, 15}));
  EXPECT_THAT(held.Of("another"), IsEmpty());
  held.Forget(kJob);
  EXPECT_FALSE(held.HasAny(kJob));
}

TEST(Placement, NodesAfterGoRoundAndEndBeforeTheNodeItself) {
  const auto of = [](const std::vector<std::string>& nodes) {
    v1::RankSlots slots;
    for (const std::string& node : nodes) slots.add_slots()->set_node(node);
    return Placement(slots);
  };
  EXPECT_THAT(of({"c", "a", "b"}).NodesAfter("a", 1), ElementsAre("b"));
  EXPECT_THAT(of({"a", "b", "c"}).NodesAfter("c", 1), ElementsAre("a"));
  EXPECT_THAT(of({"a", "b", "c"}).NodesAfter("b", 5), ElementsAre("c", "a"));
  EXPECT_THAT(of({"a", "a"}).NodesAfter("a", 2), IsEmpty());
  EXPECT_THAT(of({}).NodesAfter("a", 2), IsEmpty());
}

}  // namespace
}  // namespace tercio::coordinator
