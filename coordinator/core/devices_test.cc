#include "coordinator/core/devices.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As "node device".
std::vector<std::string> Names(const std::vector<FreeDevice>& devices) {
  std::vector<std::string> names;
  for (const FreeDevice& device : devices) {
    names.push_back(std::string(device.node) + std::to_string(device.device));
  }
  return names;
}

TEST(Devices, ThatAreAlikeAreTakenInTheirOrder) {
  const std::vector<FreeDevice> free = {{"a", 1, "", ""}, {"a", 3, "", ""}, {"b", 0, "", ""}};
  EXPECT_THAT(Names(ChooseDevices(free, {2, 2, false})), ElementsAre("a1", "a3"));
  EXPECT_THAT(Names(ChooseDevices(free, {3, 2, true})), ElementsAre("a1", "a3", "b0"));
  EXPECT_THAT(ChooseDevices(free, {4, 1, false}), IsEmpty());
  EXPECT_EQ(WhyNoDevices(free, {4, 1, false}), "");
}

TEST(Devices, ATensorGroupHasOneModel) {
  const std::vector<FreeDevice> free = {{"a", 0, "old", ""}, {"b", 0, "new", ""},
                                        {"b", 1, "new", ""}, {"c", 0, "old", ""},
                                        {"d", 0, "new", ""}, {"d", 1, "new", ""}};
  // All of one model where that suffices, although another comes first.
  EXPECT_THAT(Names(ChooseDevices(free, {4, 2, false})), ElementsAre("b0", "b1", "d0", "d1"));
  // Else whole groups of each.
  EXPECT_THAT(Names(ChooseDevices(free, {6, 2, false})),
              ElementsAre("a0", "c0", "b0", "b1", "d0", "d1"));
  EXPECT_THAT(ChooseDevices(free, {6, 3, false}), IsEmpty());
  EXPECT_EQ(WhyNoDevices(free, {6, 3, false}),
            "the 3 GPUs of a tensor group must be of the same model: 2 x old, 4 x new");
  // A layout that nobody knows yet may need them all alike.
  EXPECT_THAT(Names(ChooseDevices(free, {2, 0, false})), ElementsAre("a0", "c0"));
  EXPECT_THAT(ChooseDevices(free, {5, 0, false}), IsEmpty());
  EXPECT_THAT(WhyNoDevices(free, {5, 0, false}), HasSubstr("parallelism: auto"));
}

TEST(Devices, AMixIsForJobsThatNoModelHasEnoughDevicesFor) {
  const std::vector<FreeDevice> free = {
      {"a", 0, "old", ""}, {"b", 0, "new", ""}, {"b", 1, "new", ""}, {"c", 0, "old", ""}};
  EXPECT_THAT(ChooseDevices(free, {.ranks = 3, .tensor = 0}), IsEmpty());
  // Those of one model follow each other.
  EXPECT_THAT(Names(ChooseDevices(free, {.ranks = 3, .tensor = 0, .mixes = true})),
              ElementsAre("a0", "c0", "b0"));
  EXPECT_THAT(Names(ChooseDevices(free, {.ranks = 2, .tensor = 0, .mixes = true})),
              ElementsAre("a0", "c0"));
  EXPECT_THAT(ChooseDevices(free, {.ranks = 5, .tensor = 0, .mixes = true}), IsEmpty());
}

TEST(Devices, NodesOfAJobHaveOneNccl) {
  const std::vector<FreeDevice> free = {{"a", 0, "m", "2.27.3"}, {"a", 1, "m", "2.27.3"},
                                        {"b", 0, "m", "2.28.9"}, {"b", 1, "m", "2.28.9"},
                                        {"c", 0, "m", "2.28.9"}, {"d", 0, "m", ""}};
  EXPECT_THAT(Names(ChooseDevices(free, {3, 1, true})), ElementsAre("b0", "b1", "c0"));
  EXPECT_THAT(Names(ChooseDevices(free, {2, 1, true})), ElementsAre("a0", "a1"));
  EXPECT_THAT(ChooseDevices(free, {4, 1, true}), IsEmpty());
  EXPECT_EQ(WhyNoDevices(free, {4, 1, true}),
            "the nodes of a job need the same NCCL version: 2 x 2.27.3, 3 x 2.28.9, 1 x unknown");
  EXPECT_EQ(ChooseDevices(free, {6, 1, false}).size(), 6u);
}

}  // namespace
}  // namespace tercio::coordinator
