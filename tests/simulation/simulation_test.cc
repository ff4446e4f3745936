// Many seeds of a simulated cluster (world.h), and broken cores that it must notice.
//
// One seed again: bazel test //tests/simulation:simulation_test --test_env=TERCIO_SIMULATION_SEED=N
// Many more:      ... --test_env=TERCIO_SIMULATION_SEEDS=1000000
#include <cstdio>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"
#include "tests/simulation/world.h"

namespace tercio::simulation {
namespace {

constexpr uint64_t kSeeds = 7500;
constexpr uint64_t kSeedsToCatch = 4000;

uint64_t Number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(Simulation, ManySeeds) {
  const uint64_t chosen = Number("TERCIO_SIMULATION_SEED", 0);
  const uint64_t first = chosen > 0 ? chosen : 1;
  const uint64_t last = chosen > 0 ? chosen : Number("TERCIO_SIMULATION_SEEDS", kSeeds);
  // Bazel runs parts of the seeds side by side.
  const uint64_t shards = Number("TEST_TOTAL_SHARDS", 1);
  const uint64_t shard = chosen > 0 ? first % shards : Number("TEST_SHARD_INDEX", 0);
  if (const char* status = std::getenv("TEST_SHARD_STATUS_FILE"); status != nullptr) {
    std::fclose(std::fopen(status, "w"));
  }
  for (uint64_t seed = first; seed <= last; ++seed) {
    if (seed % shards != shard) continue;
    const std::string wrong = World(seed).Run();
    ASSERT_EQ(wrong, "") << "TERCIO_SIMULATION_SEED=" << seed;
  }
}

struct Variant {
  Broken broken;
  const char* name;
};

class BrokenCore : public ::testing::TestWithParam<Variant> {};

TEST_P(BrokenCore, IsNoticed) {
  for (uint64_t seed = 1; seed <= kSeedsToCatch; ++seed) {
    const std::string wrong = World(seed, GetParam().broken).Run();
    if (wrong.empty()) continue;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), wrong.c_str());
    return;
  }
  FAIL() << "no check noticed within " << kSeedsToCatch << " seeds";
}

INSTANTIATE_TEST_SUITE_P(
    Simulation, BrokenCore,
    ::testing::Values(Variant{Broken::kReportsCountTwice, "ReportsCountTwice"},
                      Variant{Broken::kAttemptsAreNotFenced, "AttemptsAreNotFenced"},
                      Variant{Broken::kEffectsBeforeCommit, "EffectsBeforeCommit"},
                      Variant{Broken::kProgressIsForgotten, "ProgressIsForgotten"},
                      Variant{Broken::kAttemptNumbersAgain, "AttemptNumbersAgain"},
                      Variant{Broken::kDevicesTwice, "DevicesTwice"},
                      Variant{Broken::kLeasesNeverEnd, "LeasesNeverEnd"},
                      Variant{Broken::kStopsAreNotSent, "StopsAreNotSent"},
                      Variant{Broken::kResumeTooFar, "ResumeTooFar"},
                      Variant{Broken::kResumeTooEarly, "ResumeTooEarly"},
                      Variant{Broken::kEndedJobsRun, "EndedJobsRun"},
                      Variant{Broken::kBackoffNeverEnds, "BackoffNeverEnds"},
                      Variant{Broken::kStepsAreDropped, "StepsAreDropped"},
                      Variant{Broken::kTimeIsCountedTwice, "TimeIsCountedTwice"},
                      Variant{Broken::kAcknowledgesTooMuch, "AcknowledgesTooMuch"},
                      Variant{Broken::kSnapshotOfSomeRanks, "SnapshotOfSomeRanks"},
                      Variant{Broken::kSnapshotOfLostAttempt, "SnapshotOfLostAttempt"},
                      Variant{Broken::kSnapshotStepsDropped, "SnapshotStepsDropped"},
                      Variant{Broken::kSnapshotsAreIgnored, "SnapshotsAreIgnored"},
                      Variant{Broken::kSnapshotsAreKept, "SnapshotsAreKept"},
                      Variant{Broken::kNobodyIsBlamed, "NobodyIsBlamed"},
                      Variant{Broken::kDataIsReadAgain, "DataIsReadAgain"},
                      Variant{Broken::kRollsBackForEver, "RollsBackForEver"},
                      Variant{Broken::kFaultyGpusAreUsed, "FaultyGpusAreUsed"},
                      Variant{Broken::kLostGpusAreWaitedFor, "LostGpusAreWaitedFor"},
                      Variant{Broken::kStartsOverSilently, "StartsOverSilently"},
                      Variant{Broken::kUnreadableIsDamaged, "UnreadableIsDamaged"},
                      Variant{Broken::kTrustsTheSender, "TrustsTheSender"},
                      Variant{Broken::kDamageIsNotBelieved, "DamageIsNotBelieved"},
                      Variant{Broken::kPrunesByNumber, "PrunesByNumber"},
                      Variant{Broken::kPrunesUnverified, "PrunesUnverified"},
                      Variant{Broken::kCheckpointsAreForgotten, "CheckpointsAreForgotten"},
                      Variant{Broken::kChosenStepIsIgnored, "ChosenStepIsIgnored"},
                      Variant{Broken::kWaitsForEver, "WaitsForEver"},
                      Variant{Broken::kBestIsPruned, "BestIsPruned"},
                      Variant{Broken::kBestOfLostHistory, "BestOfLostHistory"},
                      Variant{Broken::kBestIsNotTold, "BestIsNotTold"},
                      Variant{Broken::kTestIsForgotten, "TestIsForgotten"}),
    [](const auto& variant) { return std::string(variant.param.name); });

}  // namespace
}  // namespace tercio::simulation
