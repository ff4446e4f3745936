// Programs of all small layouts hold what CheckProgram proves, and every change of one is noticed.
#include "plan/program.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "plan/schedule.h"

namespace tercio::plan {
namespace {

using Kind = ProgramStep::Kind;

struct Drawn {
  ProgramShape shape;
  Program program;
  std::string name;
};

// Stages, and a stage's chunks, have one, two or three layers.
StageRuns RunsOf(int stage, int chunks) {
  std::vector<int> layers;
  for (int chunk = 0; chunk < chunks; ++chunk) layers.push_back((stage + 2 * chunk + 1) % 3 + 1);
  return StageRuns(layers);
}

// The program of each stage of each small layout.
void ForAll(absl::FunctionRef<void(const Drawn&)> body) {
  for (const auto schedule : {v1::PIPELINE_SCHEDULE_GPIPE, v1::PIPELINE_SCHEDULE_1F1B,
                              v1::PIPELINE_SCHEDULE_INTERLEAVED}) {
    for (const int stages : {1, 2, 4}) {
      const bool interleaved = schedule == v1::PIPELINE_SCHEDULE_INTERLEAVED;
      if (interleaved && stages == 1) continue;
      for (const int micro_batches : {1, 2, 4}) {
        if (interleaved && micro_batches % stages != 0) continue;
        for (const int chunks : interleaved ? std::vector<int>{2, 3} : std::vector<int>{1}) {
          for (const int places : {0, 1, 2, 3}) {
            for (const int rounds : {1, micro_batches}) {
              for (int stage = 0; stage < stages; ++stage) {
                Drawn drawn;
                drawn.shape = {.runs = RunsOf(stage, chunks),
                               .first = stage == 0,
                               .last = stage + 1 == stages,
                               .micro_batches = micro_batches,
                               .rounds = rounds,
                               .reduces = rounds == micro_batches,
                               .places = places,
                               .keeps = places == 2,
                               .fetches = rounds == 1,
                               .published = {}};
                if (drawn.shape.first && rounds == micro_batches) {
                  drawn.shape.published = {kEmbeddingUnit, drawn.shape.runs.layers() - 1};
                } else if (rounds == micro_batches) {
                  drawn.shape.published = {0};
                }
                if (!drawn.shape.reduces && rounds > 1) continue;
                // Half of the stages train little: from a layer of theirs on, and not all units.
                if (places % 2 == 1) {
                  drawn.shape.trained_from = micro_batches % 3;
                  const int last = std::max(0, drawn.shape.trained_from - 1);
                  for (int unit = drawn.shape.first ? kEmbeddingUnit : 0;
                       unit <= std::min(last, drawn.shape.head() - 1); ++unit) {
                    drawn.shape.untrained.push_back(unit);
                  }
                  std::erase_if(drawn.shape.published,
                                [&](int unit) { return !drawn.shape.IsTrained(unit); });
                }
                drawn.program = TrainingProgram(
                    drawn.shape, StageActions({schedule, stages, micro_batches, chunks}, stage));
                drawn.name = absl::StrCat("schedule ", schedule, " stage ", stage, "/", stages,
                                          " micro-batches ", micro_batches, " chunks ", chunks,
                                          " places ", places, " rounds ", rounds);
                body(drawn);
              }
            }
          }
        }
      }
    }
  }
}

TEST(Program, IsCorrectInEveryLayout) {
  int programs = 0;
  ForAll([&](const Drawn& drawn) {
    SCOPED_TRACE(drawn.name);
    EXPECT_TRUE(CheckProgram(drawn.shape, drawn.program).ok())
        << CheckProgram(drawn.shape, drawn.program);
    const Program evaluation = EvaluationProgram(drawn.shape);
    EXPECT_TRUE(CheckProgram(drawn.shape, evaluation).ok())
        << CheckProgram(drawn.shape, evaluation);
    ++programs;
  });
  EXPECT_GT(programs, 200);
}

bool IsProven(Kind kind) {
  return kind == Kind::kForward || kind == Kind::kBackward || kind == Kind::kGather ||
         kind == Kind::kReduce || kind == Kind::kFinish || kind == Kind::kJudge ||
         kind == Kind::kFetch || kind == Kind::kUpdate || kind == Kind::kPublish;
}

// A gather that comes for the next pass may be missed by nothing that is left of the step.
bool IsUsed(const Program& program, size_t gather) {
  return std::any_of(program.begin() + static_cast<std::ptrdiff_t>(gather), program.end(),
                     [&](const ProgramStep& step) {
                       const bool computes =
                           step.kind == Kind::kForward || step.kind == Kind::kBackward;
                       return computes && step.unit == program[gather].unit;
                     });
}

TEST(Program, AStepThatIsMissingIsNoticed) {
  ForAll([](const Drawn& drawn) {
    for (size_t i = 0; i < drawn.program.size(); ++i) {
      if (!IsProven(drawn.program[i].kind)) continue;
      EXPECT_TRUE(drawn.program[i].kind != Kind::kGather || IsUsed(drawn.program, i));
      Program changed = drawn.program;
      changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_FALSE(CheckProgram(drawn.shape, changed).ok())
          << drawn.name << " without " << TextOf(drawn.shape, drawn.program[i]);
    }
  });
}

TEST(Program, AStepThatIsThereTwiceIsNoticed) {
  ForAll([](const Drawn& drawn) {
    for (size_t i = 0; i < drawn.program.size(); ++i) {
      // The end of sums may be waited for twice.
      if (!IsProven(drawn.program[i].kind) || drawn.program[i].kind == Kind::kFinish) continue;
      Program changed = drawn.program;
      changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(i), drawn.program[i]);
      EXPECT_FALSE(CheckProgram(drawn.shape, changed).ok())
          << drawn.name << " with two of " << TextOf(drawn.shape, drawn.program[i]);
    }
  });
}

// Neighbours that touch the same unit, or place, may not change places.
TEST(Program, AnOrderThatIsWrongIsNoticed) {
  ForAll([](const Drawn& drawn) {
    for (size_t i = 0; i + 1 < drawn.program.size(); ++i) {
      const ProgramStep& one = drawn.program[i];
      const ProgramStep& next = drawn.program[i + 1];
      const bool touches = IsProven(one.kind) && IsProven(next.kind) && one.unit == next.unit &&
                           one.kind != next.kind && next.kind != Kind::kGather;
      // Only the first of the updates touches what has no unit.
      if (!touches || one.kind == Kind::kFinish) continue;
      Program changed = drawn.program;
      std::swap(changed[i], changed[i + 1]);
      EXPECT_FALSE(CheckProgram(drawn.shape, changed).ok())
          << drawn.name << ": " << TextOf(drawn.shape, next) << " before "
          << TextOf(drawn.shape, one);
    }
  });
}

TEST(Program, TheErrorNamesTheStep) {
  const ProgramShape shape = {.runs = {2}, .places = 1};
  Program program = TrainingProgram(shape, StageActions({.micro_batches = 1}, 0));
  program.erase(std::find_if(program.begin(), program.end(), [](const ProgramStep& step) {
    return step.kind == Kind::kGather && step.unit == 1;
  }));
  EXPECT_EQ(CheckProgram(shape, program).message(),
            "program: forward layers.1, micro-batch 0: its weights are not in their place");
}

std::vector<std::string> TextsOf(const ProgramShape& shape, const Program& program) {
  std::vector<std::string> texts;
  for (const ProgramStep& step : program) texts.push_back(TextOf(shape, step));
  return texts;
}

// The order that docs/parallelism.md describes: the next layer is gathered while one is computed,
// and the last ones are still there for the way back.
TEST(Program, LayersAreGatheredAheadAndKeptForTheWayBack) {
  const ProgramShape shape = {
      .runs = {3}, .reduces = true, .places = 2, .published = {kEmbeddingUnit, 3}};
  EXPECT_EQ(TextsOf(shape, TrainingProgram(shape, StageActions({.micro_batches = 1}, 0))),
            (std::vector<std::string>{"begin forward, micro-batch 0",
                                      "forward embedding, micro-batch 0",
                                      "gather layers.0 into place 0",
                                      "gather layers.1 into place 1",
                                      "forward layers.0, micro-batch 0",
                                      "gather layers.2 into place 0",
                                      "forward layers.1, micro-batch 0",
                                      "forward layers.2, micro-batch 0",
                                      "forward head, micro-batch 0",
                                      "end forward, micro-batch 0",
                                      "begin backward, micro-batch 0",
                                      "backward head, micro-batch 0",
                                      "sum head, round 0",
                                      "backward layers.2, micro-batch 0",
                                      "sum layers.2, round 0",
                                      "gather layers.0 into place 0",
                                      "backward layers.1, micro-batch 0",
                                      "sum layers.1, round 0",
                                      "backward layers.0, micro-batch 0",
                                      "sum layers.0, round 0",
                                      "backward embedding, micro-batch 0",
                                      "sum embedding, round 0",
                                      "end backward, micro-batch 0",
                                      "finish sums",
                                      "judge the step",
                                      "update embedding",
                                      "publish embedding",
                                      "update layers.0",
                                      "update layers.1",
                                      "update layers.2",
                                      "update head",
                                      "publish head"}));
}

// The backward pass ends at the first unit with something to train; gradients of units between that
// have none are not summed, and are not sent on where no one needs them.
TEST(Program, FrozenUnitsHaveNoGradients) {
  const ProgramShape shape = {.runs = {3},
                              .first = false,
                              .reduces = true,
                              .published = {3},
                              .layers = {4, 5, 6},
                              .trained_from = 5,
                              .untrained = {0, 2}};
  const auto actions = StageActions({v1::PIPELINE_SCHEDULE_1F1B, 2, 1, 1}, 1);
  const Program program = TrainingProgram(shape, actions);
  EXPECT_TRUE(CheckProgram(shape, program).ok()) << CheckProgram(shape, program);
  std::vector<std::string> texts = TextsOf(shape, program);
  texts.erase(texts.begin(),
              std::find(texts.begin(), texts.end(), "begin backward, micro-batch 0"));
  EXPECT_EQ(texts, (std::vector<std::string>{
                       "begin backward, micro-batch 0", "backward head, micro-batch 0",
                       "sum head, round 0", "backward layers.2, micro-batch 0",
                       "backward layers.1, micro-batch 0", "sum layers.1, round 0",
                       "end backward, micro-batch 0", "finish sums", "judge the step",
                       "update layers.1", "update head", "publish head"}));
  // The stage before it has nothing to do but to compute forward.
  const ProgramShape before = {.runs = {4},
                               .last = false,
                               .reduces = true,
                               .layers = {0, 1, 2, 3},
                               .trained_from = 5,
                               .untrained = {kEmbeddingUnit, 0, 1, 2, 3}};
  const Program forward =
      TrainingProgram(before, StageActions({v1::PIPELINE_SCHEDULE_1F1B, 2, 1, 1}, 0));
  EXPECT_TRUE(CheckProgram(before, forward).ok()) << CheckProgram(before, forward);
  for (const ProgramStep& step : forward) {
    EXPECT_NE(step.kind, Kind::kReceiveGradient);
    EXPECT_NE(step.kind, Kind::kBackward);
    EXPECT_NE(step.kind, Kind::kReduce);
    EXPECT_NE(step.kind, Kind::kUpdate);
  }
}

// While a unit is updated, the state of the next is read, and the new weights of the last are sent.
TEST(Program, UpdatesHaveOthersBesideThem) {
  const ProgramShape shape = {
      .runs = {1}, .reduces = true, .fetches = true, .published = {kEmbeddingUnit, 0, 1}};
  std::vector<std::string> texts =
      TextsOf(shape, TrainingProgram(shape, StageActions({.micro_batches = 1}, 0)));
  texts.erase(texts.begin(), std::find(texts.begin(), texts.end(), "judge the step"));
  EXPECT_EQ(texts, (std::vector<std::string>{"judge the step", "fetch embedding", "fetch layers.0",
                                             "update embedding", "publish embedding", "fetch head",
                                             "update layers.0", "publish layers.0", "update head",
                                             "publish head"}));
}

TEST(Program, PartsOfAUnitFollowEachOther) {
  const auto unit = [](int layer) {
    StateUnit state;
    state.layer = layer;
    return state;
  };
  EXPECT_EQ(ProgramUnitsOf({unit(-1), unit(-1), unit(0), unit(1), unit(1), unit(2), unit(2)}),
            (std::vector<int>{kEmbeddingUnit, kEmbeddingUnit, 0, 1, 1, 2, 2}));
  // A stage further back, whose layers are counted from 0.
  EXPECT_EQ(ProgramUnitsOf({unit(4), unit(5), unit(8)}), (std::vector<int>{0, 1, 2}));
}

TEST(Program, NeighboursHaveALayerAfterItsFirstGather) {
  const ProgramShape shape = {.runs = {2}, .micro_batches = 2, .places = 1, .keeps = true};
  const Program program =
      TrainingProgram(shape, StageActions({v1::PIPELINE_SCHEDULE_GPIPE, 1, 2, 1}, 0));
  std::vector<std::string> gathers;
  for (const ProgramStep& step : program) {
    if (step.kind == Kind::kGather)
      gathers.push_back(absl::StrCat(step.unit, step.kept ? "k" : ""));
  }
  EXPECT_EQ(gathers, (std::vector<std::string>{"0", "1", "0k", "1k", "0k", "1k", "0k"}));
}

}  // namespace
}  // namespace tercio::plan
