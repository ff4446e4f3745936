// What a GPU adds to a schedule's waits. CUDA loads a kernel at its first launch, and may wait then
// until the GPU has done all that it was given: also until every message has come whose receive was
// begun early, though nothing needs it yet. Schedules must come to their end all the same.
#include <set>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "plan/schedule.h"

namespace tercio::plan {
namespace {

// When an action that computes waits for all receives that were begun.
enum class Waits { kAtFirstLaunches, kAlways };

// A message: whether it is a gradient, and the chunk, of all stages, and micro-batch it is for.
using Message = std::tuple<bool, int, int>;

class Player {
 public:
  Player(const ScheduleShape& shape, Waits waits) : shape_(shape), waits_(waits) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      stages_.push_back({stage, StageActions(shape, stage)});
    }
  }

  bool ComesToItsEnd() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (Stage& stage : stages_) {
        while (stage.at < stage.actions.size() && Execute(stage, stage.actions[stage.at])) {
          ++stage.at;
          moved = true;
        }
      }
    }
    for (const Stage& stage : stages_) {
      if (stage.at < stage.actions.size()) return false;
    }
    return true;
  }

 private:
  struct Stage {
    int number;
    std::vector<v1::Action> actions;
    size_t at = 0;
    std::set<Message> begun = {};  // receives
    std::set<int> launched = {};   // kernels that were launched before
  };

  bool Execute(Stage& stage, const v1::Action& action) {
    const int place = action.chunk() * shape_.stages + stage.number;
    const int last = shape_.chunks * shape_.stages - 1;
    const int batch = action.micro_batch();
    switch (action.kind()) {
      case v1::ACTION_KIND_SEND_ACTIVATION:
        sent_.insert({false, place + 1, batch});
        return true;
      case v1::ACTION_KIND_SEND_GRADIENT:
        sent_.insert({true, place - 1, batch});
        return true;
      case v1::ACTION_KIND_RECEIVE_ACTIVATION:
        stage.begun.insert({false, place, batch});
        return true;
      case v1::ACTION_KIND_RECEIVE_GRADIENT:
        stage.begun.insert({true, place, batch});
        return true;
      case v1::ACTION_KIND_FORWARD:
        return (place == 0 || sent_.contains({false, place, batch})) &&
               Launch(stage, {0, place == 0 ? 1 : 0, place == last ? 2 : 0});
      case v1::ACTION_KIND_BACKWARD:
        return (place == last || sent_.contains({true, place, batch})) &&
               Launch(stage, {3, place == 0 ? 4 : 3, place == last ? 5 : 3});
      default:
        return true;
    }
  }

  // Kernels of layers, of the embedding and of the head.
  bool Launch(Stage& stage, const std::set<int>& kernels) {
    bool waits = waits_ == Waits::kAlways;
    for (const int kernel : kernels) waits = waits || !stage.launched.contains(kernel);
    for (const Message& message : stage.begun) {
      if (waits && !sent_.contains(message)) return false;
    }
    stage.launched.insert(kernels.begin(), kernels.end());
    return true;
  }

  const ScheduleShape shape_;
  const Waits waits_;
  std::vector<Stage> stages_;
  std::set<Message> sent_;
};

TEST(ScheduleWaits, FirstLaunchesMayWaitForAllThatWasBegun) {
  for (const v1::PipelineSchedule kind :
       {v1::PIPELINE_SCHEDULE_GPIPE, v1::PIPELINE_SCHEDULE_1F1B}) {
    for (int stages = 2; stages <= 6; ++stages) {
      for (int m = 1; m <= 12; ++m) {
        EXPECT_TRUE(Player({kind, stages, m, 1}, Waits::kAtFirstLaunches).ComesToItsEnd())
            << stages << " stages, " << m << " micro-batches";
      }
    }
  }
  for (int stages = 2; stages <= 6; ++stages) {
    for (int chunks = 2; chunks <= 4; ++chunks) {
      for (int m = stages; m <= 4 * stages; m += stages) {
        const ScheduleShape shape{v1::PIPELINE_SCHEDULE_INTERLEAVED, stages, m, chunks};
        EXPECT_TRUE(Player(shape, Waits::kAtFirstLaunches).ComesToItsEnd())
            << stages << " stages, " << m << " micro-batches, " << chunks << " chunks";
      }
    }
  }
}

// So early are they begun that every launch may not: the test above can fail.
TEST(ScheduleWaits, NotEveryLaunchMay) {
  const ScheduleShape interleaved{v1::PIPELINE_SCHEDULE_INTERLEAVED, 2, 2, 2};
  EXPECT_FALSE(Player(interleaved, Waits::kAlways).ComesToItsEnd());
}

}  // namespace
}  // namespace tercio::plan
