// The agent's decisions, event by event, and random histories that keep its invariants.
#include "worker/agent/core/agent_core.h"

#include <algorithm>
#include <csignal>
#include <random>
#include <set>

#include "gtest/gtest.h"

namespace tercio::agent {
namespace {

using Life = RankState::Life;

AgentEvent StartRun(int attempt, std::vector<int> ranks, const std::string& job = "job",
                    int64_t scratch_bytes = 0) {
  CoordinatorSaid event;
  v1::StartRun* start = event.message.mutable_start_run();
  *start->mutable_run() = ToRunId({job, attempt});
  for (const int rank : ranks) start->add_ranks()->mutable_placement()->set_rank(rank);
  (*start->mutable_stages())[0].mutable_memory()->set_disk_bytes(scratch_bytes);
  return {0, event};
}

AgentEvent StopRun(int attempt, double grace, double now, const std::string& job = "job") {
  CoordinatorSaid event;
  *event.message.mutable_stop_run()->mutable_run() = ToRunId({job, attempt});
  event.message.mutable_stop_run()->set_grace_seconds(grace);
  return {now, event};
}

AgentEvent Ended(int attempt, int rank, int code, int signal = 0, const std::string& job = "job") {
  return {0, TrainerEnded{{job, attempt}, rank, code, signal, {"last words"}, "", false}};
}

// One word per effect, for comparing.
std::string Word(const AgentEffect& effect) {
  struct Visitor {
    std::string operator()(const KeepRun&) { return ""; }
    std::string operator()(const AdoptTrainer& e) {
      return "adopt " + std::to_string(e.run.second) + "." + std::to_string(e.rank);
    }
    std::string operator()(const StartTrainer& e) {
      return "start " + std::to_string(e.run.second) + "." + std::to_string(e.rank);
    }
    std::string operator()(const SignalTrainer& e) {
      return "signal " + std::to_string(e.run.second) + "." + std::to_string(e.rank) + " " +
             std::to_string(e.signal);
    }
    std::string operator()(const TellTrainer& e) {
      return "save " + std::to_string(e.rank) + (e.command.save_now().then_stop() ? " stop" : "");
    }
    std::string operator()(const SendToCoordinator& e) {
      const v1::AgentMessage& m = e.message;
      if (m.has_rank_phase()) return "phase " + std::to_string(m.rank_phase().phase());
      if (m.has_step_report()) return "step " + std::to_string(m.step_report().record().step());
      if (m.has_rank_exited()) {
        const v1::ExitRecord& exit = m.rank_exited().exit();
        return "exited " + std::to_string(exit.rank()) + " " +
               (exit.signal() != 0 ? "s" + std::to_string(exit.signal())
                                   : std::to_string(exit.exit_code()));
      }
      if (m.has_run_stopped()) return "stopped " + std::to_string(m.run_stopped().run().attempt());
      return "unexpected message";
    }
    std::string operator()(const ReadData&) { return "read"; }
    std::string operator()(const ForgetRun& e) { return "forget " + std::to_string(e.run.second); }
  };
  return std::visit(Visitor{}, effect);
}

std::vector<std::string> Words(AgentState& state, const AgentEvent& event) {
  std::vector<std::string> words;
  for (const AgentEffect& effect : Step(state, event)) words.push_back(Word(effect));
  std::erase(words, "");  // what is kept has tests of its own
  return words;
}

using Strings = std::vector<std::string>;

TEST(AgentCore, RunsFromStartToEnd) {
  AgentState state;
  EXPECT_EQ(Words(state, StartRun(1, {2, 5})), (Strings{"start 1.2", "start 1.5"}));
  EXPECT_EQ(Words(state, StartRun(1, {2, 5})), Strings{}) << "said twice";
  TrainerSaid step{{"job", 1}, 2, {}};
  step.message.mutable_step()->mutable_newest()->set_step(7);
  EXPECT_EQ(Words(state, {0, step}), Strings{}) << "only rank 0 carries a record";
  step.message.mutable_step()->mutable_record()->set_step(7);
  EXPECT_EQ(Words(state, {0, step}), Strings{"step 7"});
  EXPECT_EQ(Words(state, Ended(1, 2, 0)), Strings{"exited 2 0"});
  EXPECT_EQ(Words(state, Ended(1, 2, 0)), Strings{}) << "a rank ends once";
  EXPECT_EQ(Words(state, Ended(1, 5, 0, SIGKILL)),
            (Strings{"exited 5 s9", "stopped 1", "forget 1"}));
  EXPECT_TRUE(state.runs.empty());
}

TEST(AgentCore, ASaveThatNobodyAnsweredIsToldOnce) {
  AgentState state;
  Step(state, StartRun(1, {0, 1}));
  TrainerSaid said{{"job", 1}, 1, {}};
  v1::CheckpointProgress& save = *said.message.mutable_checkpoint();
  save.set_step(10);
  save.set_error("no space left");
  EXPECT_TRUE(Step(state, {0, said}).empty()) << "the coordinator has said so itself";
  save.set_error("connection refused");
  save.set_unanswered(true);
  save.set_problem(v1::SAVE_PROBLEM_TIMEOUT);
  const std::vector<AgentEffect> effects = Step(state, {0, said});
  ASSERT_EQ(effects.size(), 1u);
  const v1::SaveUnanswered& told =
      std::get<SendToCoordinator>(effects[0]).message.save_unanswered();
  EXPECT_EQ(told.run().attempt(), 1);
  EXPECT_EQ(told.rank(), 1);
  EXPECT_EQ(told.step(), 10);
  EXPECT_EQ(told.error(), "connection refused");
  EXPECT_EQ(told.problem(), v1::SAVE_PROBLEM_TIMEOUT);
  said.rank = 0;
  EXPECT_TRUE(Step(state, {0, said}).empty()) << "another rank of this node";
  save.set_step(20);
  EXPECT_EQ(Step(state, {0, said}).size(), 1u);
}

TEST(AgentCore, EvaluationsArePassedOn) {
  AgentState state;
  Step(state, StartRun(3, {0}));
  TrainerSaid said{{"job", 3}, 0, {}};
  said.message.mutable_step()->mutable_record()->set_step(7);
  EXPECT_FALSE(std::get<SendToCoordinator>(Step(state, {0, said})[0])
                   .message.step_report()
                   .has_validation());
  said.message.mutable_step()->mutable_validation()->set_loss(0.25);
  said.message.mutable_step()->mutable_record()->set_step(8);
  EXPECT_EQ(std::get<SendToCoordinator>(Step(state, {0, said})[0])
                .message.step_report()
                .validation()
                .loss(),
            0.25);
  said.message.mutable_test()->set_loss(0.5);
  const std::vector<AgentEffect> effects = Step(state, {0, said});
  ASSERT_EQ(effects.size(), 1u);
  const v1::TestEvaluated& told = std::get<SendToCoordinator>(effects[0]).message.test_evaluated();
  EXPECT_EQ(told.run().attempt(), 3);
  EXPECT_EQ(told.evaluation().loss(), 0.5);
}

TEST(AgentCore, ExitCarriesTheLastFigures) {
  AgentState state;
  Step(state, StartRun(1, {0, 1, 2}));
  TrainerSaid said{{"job", 1}, 0, {}};
  said.message.mutable_step()->mutable_newest()->set_step(7);
  said.message.mutable_step()->mutable_figures()->set_step(7);
  said.message.mutable_step()->mutable_figures()->set_steps(7);
  Step(state, {0, said});
  said.message.mutable_step()->mutable_newest()->set_step(8);
  said.message.mutable_step()->clear_figures();
  Step(state, {0, said});
  said.rank = 1;
  said.message.mutable_last_figures()->set_step(9);
  said.message.mutable_last_figures()->set_steps(3);
  EXPECT_TRUE(Words(state, {0, said}).empty());
  TrainerEnded killed{{"job", 1}, 0, 0, SIGKILL, {}, "", false};
  killed.device_utilization = 0.75;
  const auto exit = [&](const AgentEvent& event) {
    const std::vector<AgentEffect> effects = Step(state, event);
    return std::get<SendToCoordinator>(effects.at(1)).message.rank_exited().exit();
  };
  const v1::ExitRecord first = exit({0, killed});
  EXPECT_EQ(first.figures().step(), 7) << "what it said last";
  EXPECT_EQ(first.figures().device_utilization(), 0.75);
  const v1::ExitRecord second = exit(Ended(1, 1, 0));
  EXPECT_EQ(second.figures().step(), 9);
  EXPECT_FALSE(second.figures().has_device_utilization());
  EXPECT_FALSE(exit(Ended(1, 2, 1)).has_figures()) << "it had not made a step";
}

TEST(AgentCore, ExitCarriesTheTrainersWordAndItsLastLines) {
  AgentState state;
  Step(state, StartRun(1, {0}));
  TrainerSaid failure{{"job", 1}, 0, {}};
  failure.message.mutable_failure()->set_message("loss is nan");
  failure.message.mutable_failure()->set_permanent(true);
  failure.message.mutable_failure()->set_corrupt_rank_plus_one(3);
  failure.message.mutable_failure()->set_roll_back_from(57);
  EXPECT_TRUE(Step(state, {0, failure}).empty());
  const std::vector<AgentEffect> effects = Step(state, Ended(1, 0, 3));
  const v1::ExitRecord exit = std::get<SendToCoordinator>(effects[1]).message.rank_exited().exit();
  EXPECT_EQ(exit.reason(), "loss is nan");
  EXPECT_TRUE(exit.permanent());
  EXPECT_EQ(exit.corrupt_rank_plus_one(), 3);
  EXPECT_EQ(exit.roll_back_from(), 57);
  EXPECT_EQ(exit.exit_code(), 3);
  ASSERT_EQ(exit.last_log_lines_size(), 1);
  EXPECT_EQ(exit.last_log_lines(0), "last words");
}

TEST(AgentCore, AProgramThatCannotStartEndsTheRun) {
  AgentState state;
  Step(state, StartRun(1, {0, 1}));
  EXPECT_EQ(Words(state, {0, StartFailed{{"job", 1}, 0, "no such file"}}), Strings{"exited 0 127"});
  EXPECT_EQ(Words(state, {0, StartFailed{{"job", 1}, 1, "no such file"}}),
            (Strings{"exited 1 127", "stopped 1", "forget 1"}));
}

TEST(AgentCore, StopsWithGraceThenKills) {
  AgentState state;
  Step(state, StartRun(1, {0, 1}));
  EXPECT_EQ(Words(state, StopRun(1, 5, 100)), (Strings{"signal 1.0 15", "signal 1.1 15"}));
  EXPECT_EQ(Words(state, StopRun(1, 9, 101)), Strings{}) << "one SIGTERM is enough";
  EXPECT_EQ(Words(state, Ended(1, 1, 0, SIGTERM)), Strings{"exited 1 s15"});
  EXPECT_EQ(Words(state, {104.9, TimePassed{}}), Strings{});
  EXPECT_EQ(Words(state, {105, TimePassed{}}), Strings{"signal 1.0 9"})
      << "the earlier deadline holds";
  EXPECT_EQ(Words(state, {106, TimePassed{}}), Strings{});
}

TEST(AgentCore, StopsAtOnceWithoutGrace) {
  AgentState state;
  Step(state, StartRun(1, {0}));
  EXPECT_EQ(Words(state, StopRun(1, 0, 0)), Strings{"signal 1.0 9"});
}

TEST(AgentCore, AnswersAStopOfWhatItDoesNotKnow) {
  AgentState state;
  EXPECT_EQ(Words(state, StopRun(4, 0, 0)), Strings{"stopped 4"});
}

TEST(AgentCore, ANewerAttemptWaitsUntilTheOlderOneIsDead) {
  AgentState state;
  Step(state, StartRun(1, {0}));
  Step(state, StartRun(3, {7}, "another job"));
  EXPECT_EQ(Words(state, StartRun(2, {0, 1})), Strings{"signal 1.0 9"});
  EXPECT_EQ(Words(state, Ended(1, 0, 0, SIGKILL)),
            (Strings{"exited 0 s9", "stopped 1", "forget 1", "start 2.0", "start 2.1"}));
  EXPECT_EQ(Words(state, StartRun(1, {0})), (Strings{"exited 0 s9", "stopped 1"}))
      << "an order from the past starts nothing";
  EXPECT_EQ(state.highest_attempt, 3);
}

TEST(AgentCore, ARunThatWaitsCanBeStopped) {
  AgentState state;
  Step(state, StartRun(1, {0}));
  Step(state, StartRun(2, {0}));
  EXPECT_EQ(Words(state, StopRun(2, 5, 0)), (Strings{"stopped 2", "forget 2"}));
  EXPECT_EQ(Words(state, Ended(1, 0, 0, SIGKILL)),
            (Strings{"exited 0 s9", "stopped 1", "forget 1"}));
}

TEST(AgentCore, PassesASaveOnToLiveRanks) {
  AgentState state;
  Step(state, StartRun(1, {0, 1}));
  Step(state, Ended(1, 1, 1));
  CoordinatorSaid save;
  *save.message.mutable_save_checkpoint()->mutable_run() = ToRunId({"job", 1});
  save.message.mutable_save_checkpoint()->set_then_stop(true);
  EXPECT_EQ(Words(state, {0, save}), Strings{"save 0 stop"});
}

TEST(AgentCore, StartsNothingWhileItShutsDown) {
  AgentState state;
  Step(state, StartRun(1, {0}));
  EXPECT_EQ(Words(state, {0, ShutDown{5}}), Strings{"signal 1.0 15"});
  EXPECT_EQ(Words(state, StartRun(2, {0})), Strings{});
  EXPECT_EQ(Words(state, Ended(1, 0, 0, SIGTERM)),
            (Strings{"exited 0 s15", "stopped 1", "forget 1"}));
}

TEST(AgentCore, WhatTheTrainerLeftBehindIsUsedWhereItSaidNothing) {
  for (const bool said : {false, true}) {
    AgentState state;
    Step(state, StartRun(1, {0}));
    if (said) {
      TrainerSaid failure{{"job", 1}, 0, {}};
      failure.message.mutable_failure()->set_message("said");
      Step(state, {0, failure});
    }
    const auto effects =
        Step(state, {0, TrainerEnded{{"job", 1}, 0, 3, 0, {}, "on the page", true}});
    const v1::ExitRecord exit =
        std::get<SendToCoordinator>(effects[1]).message.rank_exited().exit();
    EXPECT_EQ(exit.reason(), said ? "said" : "on the page");
    EXPECT_TRUE(exit.permanent());
  }
}

// What an agent keeps of its state, as worker/agent/link/agent_store.h does it.
class Memory {
 public:
  void Take(const AgentState& state, const std::vector<AgentEffect>& effects) {
    for (const AgentEffect& effect : effects) {
      if (const auto* keep = std::get_if<KeepRun>(&effect)) {
        const auto found = state.runs.find(keep->run);
        if (found != state.runs.end()) Keep(found->first, found->second);
      } else if (const auto* forget = std::get_if<ForgetRun>(&effect)) {
        kept_.runs.erase(forget->run);
        kept_.ended = state.ended;
      }
    }
  }
  const Restored& kept() const { return kept_; }

 private:
  void Keep(const RunKey& key, const RunState& run) {
    RunState& kept = kept_.runs[key];
    kept.start = run.start;
    kept.stopping = run.stopping;
    for (const auto& [index, rank] : run.ranks) {
      kept.ranks[index].life = rank.life;
      kept.ranks[index].has_exited = rank.has_exited;
      kept.ranks[index].exit = rank.exit;
    }
    kept_.highest_attempt = std::max(kept_.highest_attempt, key.second);
  }
  Restored kept_;
};

TEST(AgentCore, AnotherAgentAdoptsWhatThisOneHasStarted) {
  AgentState state;
  Memory memory;
  for (const AgentEvent& event : {StartRun(1, {0}), StartRun(2, {0, 1}), StopRun(2, 5, 0)}) {
    const auto effects = Step(state, event);
    memory.Take(state, effects);
  }
  memory.Take(state, Step(state, StartRun(3, {0, 1})));
  AgentState next;
  EXPECT_EQ(Words(next, {0, memory.kept()}), Strings{"adopt 1.0"});
  EXPECT_EQ(next.highest_attempt, 3);
  EXPECT_EQ(Words(next, {0, TimePassed{}}), Strings{"signal 1.0 9"})
      << "it was told to stop before";
  EXPECT_EQ(Words(next, {0, TrainerEnded{{"job", 1}, 0, 1, 0, {}, "killed?", false}}),
            (Strings{"exited 0 1", "stopped 1", "forget 1", "start 3.0", "start 3.1"}));
  EXPECT_EQ(Words(next, StartRun(2, {0})), (Strings{"stopped 2"})) << "it has ended before";
}

// What the driver says of the GPU is the rank's own word no more than the log is; whether the GPU
// has failed decides what the coordinator makes of it.
TEST(AgentCore, TheEndOfARankNamesItsGpu) {
  AgentState state;
  Step(state, StartRun(1, {0, 1}));
  TrainerEnded program{{"job", 1}, 0, 1, 0, {}, "an address", false};
  program.gpu_note = "GPU 0: XID 31";
  TrainerEnded gpu{{"job", 1}, 1, 0, 9, {}, "", false};
  gpu.gpu_note = "GPU 1: XID 48";
  gpu.gpu_failed = true;
  std::vector<v1::ExitRecord> exits;
  for (const TrainerEnded& ended : {program, gpu}) {
    for (const AgentEffect& effect : Step(state, {0, ended})) {
      const auto* told = std::get_if<SendToCoordinator>(&effect);
      if (told != nullptr && told->message.has_rank_exited()) {
        exits.push_back(told->message.rank_exited().exit());
      }
    }
  }
  ASSERT_EQ(exits.size(), 2u);
  EXPECT_EQ(exits[0].reason(), "an address; GPU 0: XID 31");
  EXPECT_EQ(exits[0].device_error(), "");
  EXPECT_EQ(exits[1].reason(), "");
  EXPECT_EQ(exits[1].device_error(), "GPU 1: XID 48");
}

TEST(AgentCore, AnAdoptedRankGoesOnAsIfNothingHadBeen) {
  AgentState state;
  Memory memory;
  memory.Take(state, Step(state, StartRun(1, {0, 1})));
  memory.Take(state, Step(state, Ended(1, 1, 0)));
  AgentState next;
  EXPECT_EQ(Words(next, {0, memory.kept()}), Strings{"adopt 1.0"});
  EXPECT_EQ(Words(next, StartRun(1, {0, 1})), Strings{}) << "said again";
  EXPECT_EQ(Words(next, Ended(1, 0, 0)), (Strings{"exited 0 0", "stopped 1", "forget 1"}));
}

// The agent died after the last rank's end was kept and before the run was forgotten.
TEST(AgentCore, ARunWithoutLiveRanksIsForgottenAtOnce) {
  AgentState state;
  Step(state, StartRun(1, {0}));
  Restored kept;
  kept.runs = state.runs;
  kept.runs.at({"job", 1}).ranks.at(0).life = Life::kEnded;
  AgentState next;
  EXPECT_EQ(Words(next, {0, kept}), (Strings{"stopped 1", "forget 1"}));
}

TEST(AgentCore, LeavingStartsNothingAndEndsNothing) {
  AgentState state;
  Step(state, StartRun(1, {0}));
  EXPECT_EQ(Words(state, {0, Leaving{}}), Strings{});
  EXPECT_EQ(Words(state, StartRun(2, {0})), Strings{});
}

TEST(AgentCore, WhatHasEndedIsNotStartedAgain) {
  AgentState state;
  Step(state, StartRun(1, {0, 1}));
  Step(state, Ended(1, 1, 0));
  Step(state, Ended(1, 0, 0));
  EXPECT_EQ(RunsOf(state, EndedRuns::kLeaveOut).size(), 0u);
  EXPECT_EQ(RunsOf(state, EndedRuns::kInclude).size(), 1u);
  EXPECT_EQ(Words(state, StartRun(1, {0, 1})), (Strings{"exited 0 0", "exited 1 0", "stopped 1"}));
}

TEST(AgentCore, ScratchFilesWithoutRoomAreNotBegun) {
  AgentState state;
  state.scratch_total = 100 << 20;
  constexpr int64_t kOfRank = 30 << 20;
  EXPECT_EQ(Words(state, StartRun(1, {0, 1}, "a", kOfRank)), (Strings{"start 1.0", "start 1.1"}));
  const std::vector<AgentEffect> effects = Step(state, StartRun(2, {0, 1}, "b", kOfRank));
  Strings words;
  int exits = 0;
  for (const AgentEffect& effect : effects) {
    words.push_back(Word(effect));
    const auto* said = std::get_if<SendToCoordinator>(&effect);
    if (said == nullptr || !said->message.has_rank_exited()) continue;
    const v1::ExitRecord& exit = said->message.rank_exited().exit();
    ++exits;
    EXPECT_EQ(exit.reason(),
              "offload: this job's ranks on this node need 60.0 MiB of scratch space, others have "
              "60.0 MiB, and the limit is 100.0 MiB: give the agent a larger --scratch-total, "
              "offload less (offload.share), or place fewer ranks on the node");
    // It is free when the other job has ended.
    EXPECT_FALSE(exit.permanent());
  }
  EXPECT_EQ(exits, 2);
  std::erase(words, "");
  EXPECT_EQ(words, (Strings{"exited 0 127", "exited 1 127", "stopped 2", "forget 2"}));
  // What needs none is not in its way, and no limit counts for it.
  EXPECT_EQ(Words(state, StartRun(3, {0}, "c")), Strings{"start 3.0"});
  // A newer attempt begins when the older one has ended, whose files are gone by then.
  EXPECT_EQ(Words(state, StartRun(4, {0, 1, 2}, "a", kOfRank)),
            (Strings{"signal 1.0 9", "signal 1.1 9"}));
  EXPECT_EQ(Words(state, Ended(1, 0, 0, SIGKILL, "a")), Strings{"exited 0 s9"});
  EXPECT_EQ(
      Words(state, Ended(1, 1, 0, SIGKILL, "a")),
      (Strings{"exited 1 s9", "stopped 1", "forget 1", "start 4.0", "start 4.1", "start 4.2"}));
  // One of its ranks has ended, and leaves room for another one.
  EXPECT_EQ(Words(state, Ended(4, 2, 0, 0, "a")), Strings{"exited 2 0"});
  EXPECT_EQ(Words(state, StartRun(5, {0}, "b", kOfRank)), Strings{"start 5.0"});
}

TEST(AgentCore, ScratchFilesThatNeverHaveRoomAreAPermanentFault) {
  AgentState state;
  state.scratch_total = 50;
  int exits = 0;
  for (const AgentEffect& effect : Step(state, StartRun(1, {0, 1}, "job", 30))) {
    const auto* said = std::get_if<SendToCoordinator>(&effect);
    if (said == nullptr || !said->message.has_rank_exited()) continue;
    ++exits;
    EXPECT_TRUE(said->message.rank_exited().exit().permanent());
  }
  EXPECT_EQ(exits, 2);
  EXPECT_TRUE(state.runs.empty());
  state.scratch_total = 0;
  EXPECT_EQ(Words(state, StartRun(2, {0, 1}, "job", int64_t{1} << 60)),
            (Strings{"start 2.0", "start 2.1"}));
}

// Plays the world to the core: every start is answered, some by a failure; every kill ends a rank;
// agents die, and others continue with what they have kept.
class RandomHistory {
 public:
  explicit RandomHistory(unsigned seed) : random_(seed), scratch_total_(seed % 2 == 0 ? 0 : 10) {
    state_.scratch_total = scratch_total_;
  }

  void Run(int events) {
    for (int i = 0; i < events; ++i) {
      if (Pick(20) == 0) DieAndComeBack();
      Apply(NextEvent());
    }
    Apply({now_, ShutDown{0}});
    while (!live_.empty()) Apply(EndOf(*live_.begin()));
    EXPECT_TRUE(state_.runs.empty()) << "a run outlived its processes";
  }

 private:
  using Process = std::pair<RunKey, int>;

  int Pick(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }

  AgentEvent EndOf(const Process& process) {
    return {now_, TrainerEnded{process.first, process.second, Pick(2), 0, {}, "", false}};
  }

  AgentEvent NextEvent() {
    now_ += 0.1 * Pick(20);
    const int attempt = 1 + Pick(6);
    switch (Pick(6)) {
      case 0:
      case 1:
        // The later half of the attempts has no room, where there is a limit.
        return StartRun(attempt, {0, 1, 2}, "job", attempt);
      case 2:
        return StopRun(attempt, Pick(3), now_);
      case 3:
        return {now_, TimePassed{}};
      default:
        if (live_.empty()) return {now_, TimePassed{}};
        auto process = live_.begin();
        std::advance(process, Pick(static_cast<int>(live_.size())));
        return EndOf(*process);
    }
  }

  void Apply(const AgentEvent& event) {
    if (const auto* ended = std::get_if<TrainerEnded>(&event.body)) {
      live_.erase({ended->run, ended->rank});
    }
    const std::vector<AgentEffect> effects = Step(state_, event);
    memory_.Take(state_, effects);
    for (const AgentEffect& effect : effects) {
      if (const auto* adopt = std::get_if<AdoptTrainer>(&effect)) {
        EXPECT_TRUE(adopted_.insert({adopt->run, adopt->rank}).second) << "adopted twice";
      } else if (const auto* start = std::get_if<StartTrainer>(&effect)) {
        EXPECT_TRUE(live_.insert({start->run, start->rank}).second) << "started twice";
        EXPECT_TRUE(started_.insert({start->run, start->rank}).second) << "started again";
        EXPECT_TRUE(scratch_total_ == 0 || 3 * start->run.second <= scratch_total_);
        for (const Process& other : live_) {
          EXPECT_EQ(other.first, start->run) << "two attempts of a job side by side";
        }
      } else if (const auto* signal = std::get_if<SignalTrainer>(&effect)) {
        EXPECT_TRUE(live_.contains({signal->run, signal->rank})) << "signal to a dead process";
      } else if (const auto* forget = std::get_if<ForgetRun>(&effect)) {
        for (const Process& other : live_) EXPECT_NE(other.first, forget->run) << "an orphan";
      }
    }
  }

  // Some trainers end while no agent is there; the next one hears of it when it looks for them.
  void DieAndComeBack() {
    state_ = {};
    state_.scratch_total = scratch_total_;
    adopted_.clear();
    Apply({now_, memory_.kept()});
    EXPECT_EQ(adopted_, live_) << "a trainer is forgotten, or one that has ended is awaited";
  }

  std::mt19937 random_;
  const int64_t scratch_total_;
  double now_ = 0;
  Memory memory_;
  std::set<Process> adopted_;
  AgentState state_;
  std::set<Process> live_;
  std::set<Process> started_;
};

TEST(AgentCore, RandomHistoriesKeepTheInvariants) {
  for (unsigned seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomHistory(seed).Run(60);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tercio::agent
