#include "coordinator/store/store.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<Store> Open() {
    auto store = Store::Open(path_, OpenFor::kWriting);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  static Changes Some() {
    Changes changes;
    changes.jobs.emplace_back().set_id("job-1");
    changes.jobs[0].set_step(7);
    v1::Plan plan;
    plan.set_lanes(8);
    changes.plans.emplace_back("job-1", std::make_shared<const v1::Plan>(plan));
    changes.nodes.emplace_back().set_name("a");
    changes.nodes[0].set_reported(12);
    changes.nodes.emplace_back().set_name("b");
    return changes;
  }

  TempDir directory_;
  const std::string path_ = directory_.path() + "/state.sqlite";
};

TEST_F(StoreTest, WhatIsCommittedIsThereAfterwards) {
  ASSERT_TRUE(Open()->Commit(Some()).ok());
  Changes later;
  later.forgotten_nodes.push_back("b");
  ASSERT_TRUE(Open()->Commit(later).ok());
  const auto store = Open();
  EXPECT_EQ(store->LoadJobs()->at(0).step(), 7);
  EXPECT_EQ(store->LoadPlans()->at("job-1").lanes(), 8);
  ASSERT_EQ(store->LoadNodes()->size(), 1u);
  EXPECT_EQ(store->LoadNodes()->at(0).reported(), 12u);
}

v1::RankSlots Placement(const std::vector<std::string>& nodes) {
  v1::RankSlots placement;
  for (const std::string& node : nodes) placement.add_slots()->set_node(node);
  return placement;
}

TEST_F(StoreTest, PlacementsAreReplacedAndForgotten) {
  for (const std::vector<std::string>& nodes :
       {std::vector<std::string>{"a", "a", "b"}, std::vector<std::string>{"b"}}) {
    Changes changes = Some();
    changes.placements.emplace_back("job-1",
                                    std::make_shared<const v1::RankSlots>(Placement(nodes)));
    ASSERT_TRUE(Open()->Commit(changes).ok());
    const auto found = Open()->LoadPlacements();
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->at("job-1").SerializeAsString(), Placement(nodes).SerializeAsString());
  }
  Changes none;
  none.placements.emplace_back("job-1", std::make_shared<const v1::RankSlots>());
  ASSERT_TRUE(Open()->Commit(none).ok());
  EXPECT_TRUE(Open()->LoadPlacements()->empty());
  EXPECT_EQ(Open()->LoadJobs()->at(0).step(), 7);
}

TEST_F(StoreTest, AStoreOfVersionTwoKeepsItsPlacements) {
  Changes changes = Some();
  *changes.jobs[0].mutable_slots_of_old_store() = Placement({"a", "b"}).slots();
  ASSERT_TRUE(Open()->Commit(changes).ok());
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
  sqlite3_exec(database, "PRAGMA user_version=2; DROP TABLE placements", nullptr, nullptr, nullptr);
  sqlite3_close(database);
  {
    // For a question it is left as it is.
    const auto store = Store::Open(path_, OpenFor::kReading);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ((*store)->LoadJobs()->at(0).step(), 7);
    EXPECT_EQ((*store)->LoadPlans()->at("job-1").lanes(), 8);
    EXPECT_TRUE((*store)->LoadPlacements()->empty());
  }
  for (int times = 0; times < 2; ++times) {
    const auto store = Open();
    EXPECT_EQ(store->LoadPlacements()->at("job-1").slots(1).node(), "b");
    EXPECT_EQ(store->LoadJobs()->at(0).slots_of_old_store_size(), 0);
    EXPECT_EQ(store->LoadJobs()->at(0).step(), 7);
  }
}

// Stores that coordinators of earlier versions left (testdata/make_fixtures.py).
class OldStoreTest : public StoreTest, public ::testing::WithParamInterface<int> {
 protected:
  OldStoreTest() {
    std::filesystem::copy_file(
        absl::StrCat("coordinator/store/testdata/version-", GetParam(), ".sqlite"), path_);
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
  static int64_t VersionOf(const std::string& path) {
    sqlite3* database = nullptr;
    sqlite3_stmt* query = nullptr;
    EXPECT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_prepare_v2(database, "PRAGMA user_version", -1, &query, nullptr), SQLITE_OK);
    EXPECT_EQ(sqlite3_step(query), SQLITE_ROW);
    const int64_t version = sqlite3_column_int64(query, 0);
    sqlite3_finalize(query);
    sqlite3_close(database);
    return version;
  }
  // The copies that were made before a store was brought up to date.
  std::vector<std::string> Copies() const {
    std::vector<std::string> copies;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      if (absl::StrContains(entry.path().string(), ".before-v")) copies.push_back(entry.path());
    }
    return copies;
  }
  // Version 4 wrote them as words.
  static void ExpectEnumerators(const v1::JobRecord& job, const v1::Plan& plan) {
    EXPECT_EQ(job.spec().model().architecture(), v1::ARCHITECTURE_BERT);
    EXPECT_EQ(job.spec().model().norm(), v1::NORM_PLACEMENT_PRE);
    EXPECT_EQ(plan.model().architecture(), v1::ARCHITECTURE_BERT);
    EXPECT_EQ(plan.model().norm(), v1::NORM_PLACEMENT_PRE);
    const v1::TrainingSpec& training = job.spec().training();
    EXPECT_EQ(training.optimizer().name(), v1::OPTIMIZER_KIND_ADAMW);
    EXPECT_EQ(training.schedule().kind(), v1::LEARNING_RATE_SCHEDULE_WSD);
    EXPECT_EQ(training.precision(), v1::PRECISION_BF16);
    EXPECT_EQ(training.reproducibility(), v1::REPRODUCIBILITY_EXACT);
    EXPECT_EQ(job.spec().parallelism().schedule(), v1::PIPELINE_SCHEDULE_GPIPE);
    EXPECT_EQ(job.spec().parallelism().recompute(), v1::RECOMPUTE_SELECTIVE);
    EXPECT_EQ(job.elastic_parallelism().schedule(), v1::PIPELINE_SCHEDULE_INTERLEAVED);
    EXPECT_EQ(job.elastic_parallelism().recompute(), v1::RECOMPUTE_FULL);
    EXPECT_EQ(plan.layout().schedule(), v1::PIPELINE_SCHEDULE_GPIPE);
    EXPECT_EQ(plan.layout().recompute(), v1::RECOMPUTE_SELECTIVE);
    EXPECT_EQ(job.spec().resources().device(), v1::DEVICE_KIND_CUDA);
    EXPECT_EQ(job.spec().resources().collectives(), v1::COLLECTIVES_HOST);
    EXPECT_EQ(plan.collectives(), v1::COLLECTIVES_HOST);
    const v1::FaultToleranceSpec& fault = job.spec().fault_tolerance();
    EXPECT_EQ(fault.on_nan(), v1::ON_NAN_SKIP);
    EXPECT_EQ(fault.stragglers(), v1::STRAGGLER_POLICY_EXCLUDE);
    EXPECT_EQ(fault.on_spike(), v1::ON_SPIKE_ROLLBACK);
    EXPECT_EQ(plan.lanes(), 8);
    // Nothing is left of the words.
    EXPECT_TRUE(fault.GetReflection()->GetUnknownFields(fault).empty());
  }
  void ExpectAll(Store& store, bool migrated) const {
    const auto jobs = store.LoadJobs();
    ASSERT_TRUE(jobs.ok()) << jobs.status();
    ASSERT_EQ(jobs->size(), 2u);
    EXPECT_EQ(jobs->at(0).phase(), v1::JOB_PHASE_SUCCEEDED);
    EXPECT_EQ(jobs->at(1).phase(), v1::JOB_PHASE_RUNNING);
    EXPECT_EQ(jobs->at(1).spec().model().layers(), 2);
    EXPECT_EQ(jobs->at(0).spec().model().architecture(), v1::ARCHITECTURE_GPT2);
    if (GetParam() == 4) ExpectEnumerators(jobs->at(1), store.LoadPlans()->at("job-2"));
    EXPECT_EQ(jobs->at(1).checkpoint_step(), 20);
    EXPECT_EQ(store.LoadPlans()->size(), GetParam() >= 2 ? 2u : 0u);
    EXPECT_EQ(store.LoadNodes()->size(), GetParam() >= 2 ? 1u : 0u);
    if (migrated || GetParam() >= 3) {
      EXPECT_EQ(jobs->at(1).slots_of_old_store_size(), 0);
      ASSERT_EQ(store.LoadPlacements()->at("job-2").slots_size(), 2);
      EXPECT_EQ(store.LoadPlacements()->at("job-2").slots(1).node(), "b");
    }
    const auto steps = store.Steps("job-2", {}, [](const v1::StepRecord&) { return true; });
    ASSERT_EQ(steps->size(), 2u);
    EXPECT_EQ(steps->at(1).loss(), 1.5);
    const auto events = store.Events("job-2", 0);
    ASSERT_EQ(events->size(), 2u);
    EXPECT_EQ(events->at(0).message(), absl::StrCat("of version ", GetParam()));
    int64_t after = 0;
    EXPECT_EQ(store.Logs("job-2", &after, [](const v1::LogLine&) { return true; })->size(), 1u);
    EXPECT_EQ(*store.JobOfRequest("request-2"), "job-2");
  }
};

TEST_P(OldStoreTest, IsReadAsItIs) {
  const auto store = Store::Open(path_, OpenFor::kReading);
  ASSERT_TRUE(store.ok()) << store.status();
  ExpectAll(**store, /*migrated=*/false);
  EXPECT_EQ(VersionOf(path_), GetParam());
  EXPECT_THAT(Copies(), IsEmpty());
}

TEST_P(OldStoreTest, IsCopiedAndThenBroughtUpToDate) {
  ExpectAll(*Open(), /*migrated=*/true);
  const int64_t present = VersionOf(path_);
  EXPECT_GE(present, GetParam());
  if (GetParam() < present) {
    const std::string copy = absl::StrCat(path_, ".before-v", present);
    ASSERT_THAT(Copies(), ElementsAre(copy));
    EXPECT_EQ(VersionOf(copy), GetParam());
    // It is a whole store, from which one can start again.
    ExpectAll(**Store::Open(copy, OpenFor::kReading), /*migrated=*/false);
  } else {
    EXPECT_THAT(Copies(), IsEmpty());
  }
  // The second start finds nothing to do.
  for (const std::string& copy : Copies()) std::filesystem::remove(copy);
  ExpectAll(*Open(), /*migrated=*/true);
  EXPECT_THAT(Copies(), IsEmpty());
}

TEST_P(OldStoreTest, StaysAsItIsWhenTheCopyCannotBeMade) {
  const int64_t present = [this] {
    const std::string other = directory_.path() + "/other.sqlite";
    EXPECT_TRUE(Store::Open(other, OpenFor::kWriting).ok());
    return VersionOf(other);
  }();
  if (GetParam() == present) return;
  std::filesystem::create_directories(absl::StrCat(path_, ".before-v", present, ".partial/full"));
  EXPECT_FALSE(Store::Open(path_, OpenFor::kWriting).ok());
  EXPECT_EQ(VersionOf(path_), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Versions, OldStoreTest, ::testing::Values(0, 2, 3, 4));

TEST_F(StoreTest, ANewStoreHasNoCopy) {
  Open().reset();
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr(".before-v")));
  }
}

RankExit Exit(int attempt, int rank, int64_t step) {
  RankExit ended{"job-1", attempt, {}};
  ended.exit.set_rank(rank);
  ended.exit.mutable_figures()->set_step(step);
  return ended;
}

TEST_F(StoreTest, HowRanksEndedIsKeptOfTheLastAttempts) {
  {
    const auto store = Open();
    for (int attempt = 1; attempt <= 6; ++attempt) {
      Changes changes;
      changes.exits = {Exit(attempt, 1, attempt), Exit(attempt, 0, 10 * attempt)};
      ASSERT_TRUE(store->Commit(changes).ok());
    }
  }
  const auto store = Open();
  for (const int gone : {1, 2, 7}) EXPECT_TRUE(store->Exits("job-1", gone)->empty()) << gone;
  for (int attempt = 3; attempt <= 6; ++attempt) {
    const auto exits = *store->Exits("job-1", attempt);
    ASSERT_EQ(exits.size(), 2u) << attempt;
    EXPECT_EQ(exits[0].figures().step(), 10 * attempt);
    EXPECT_EQ(exits[1].figures().step(), attempt);
  }
  EXPECT_TRUE(store->Exits("job-2", 6)->empty());
}

// Before version 4 nothing was kept of how ranks ended.
TEST_F(StoreTest, AStoreOfVersionThreeLearnsOfExits) {
  ASSERT_TRUE(Open()->Commit(Some()).ok());
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(
      sqlite3_exec(database, "PRAGMA user_version=3; DROP TABLE exits", nullptr, nullptr, nullptr),
      SQLITE_OK);
  sqlite3_close(database);
  {
    const auto store = Store::Open(path_, OpenFor::kReading);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->Exits("job-1", 1).ok());
    EXPECT_TRUE((*store)->Exits("job-1", 1)->empty());
  }
  const auto store = Open();
  EXPECT_EQ(store->LoadJobs()->at(0).step(), 7);
  Changes changes;
  changes.exits = {Exit(1, 0, 7)};
  ASSERT_TRUE(store->Commit(changes).ok());
  EXPECT_EQ(store->Exits("job-1", 1)->size(), 1u);
}

TEST_F(StoreTest, LogsOfEveryJobAreBounded) {
  const auto store = Open();
  const auto lines = [&](const std::string& job) {
    int64_t after = 0;
    return store->Logs(job, &after, [](const v1::LogLine&) { return true; })->size();
  };
  for (int batch = 0; batch < 25; ++batch) {
    Changes changes;
    for (int i = 0; i < 1000; ++i) {
      for (const char* job : {"job-1", "job-2"}) {
        changes.logs.emplace_back(job, v1::LogLine()).second.set_line("text");
      }
    }
    ASSERT_TRUE(store->Commit(changes).ok());
  }
  for (const char* job : {"job-1", "job-2"}) {
    EXPECT_GE(lines(job), 20'000u) << job;
    EXPECT_LE(lines(job), 21'000u) << job;
  }
}

// A reader that comes back with a place among lines that were trimmed, or behind the last line of a
// store that was restored from a back-up.
TEST_F(StoreTest, APlaceThatIsGoneContinuesWithWhatIsThere) {
  const auto store = Open();
  const auto add = [&](int count) {
    Changes changes;
    for (int i = 0; i < count; ++i) {
      changes.logs.emplace_back("job-1", v1::LogLine()).second.set_line("text");
    }
    ASSERT_TRUE(store->Commit(changes).ok());
  };
  const auto sequences = [&](int64_t* after) {
    std::vector<int64_t> found;
    const auto lines = store->Logs("job-1", after, [](const v1::LogLine&) { return true; });
    for (const v1::LogLine& line : *lines) found.push_back(line.sequence());
    return found;
  };
  for (int batch = 0; batch < 22; ++batch) add(1000);
  int64_t trimmed = 5;
  const std::vector<int64_t> kept = sequences(&trimmed);
  ASSERT_GE(kept.size(), 20'000u);
  EXPECT_GT(kept.front(), 6) << "the lines after place 5 are gone";
  EXPECT_EQ(kept.back(), 22'000);
  EXPECT_EQ(kept.back() - kept.front() + 1, static_cast<int64_t>(kept.size())) << "without a gap";
  EXPECT_EQ(trimmed, 22'000);
  int64_t beyond = 30'000;
  EXPECT_THAT(sequences(&beyond), IsEmpty());
  add(2);
  EXPECT_THAT(sequences(&beyond), ElementsAre(22'001, 22'002));
  EXPECT_TRUE(store->Events("job-1", 30'000)->empty());
  Store::StepCursor far;
  far.step = 30'000;
  EXPECT_TRUE(store->Steps("job-1", far, [](const v1::StepRecord&) { return true; })->empty());
}

// A commit has happened when the disk says so, and not before.
TEST_F(StoreTest, ACommitThatTheDiskDidNotTakeIsNone) {
  const std::string rules = directory_.path() + "/rules";
  setenv("FAILING_FILES", rules.c_str(), 1);
  const auto store = Open();
  ASSERT_TRUE(store->Commit(Some()).ok());
  std::ofstream(rules) << "fail fsync /state.sqlite";
  Changes second;
  second.jobs.emplace_back().set_id("job-2");
  EXPECT_FALSE(store->Commit(second).ok());
  EXPECT_EQ(store->LoadJobs()->size(), 1u);
  std::filesystem::remove(rules);
  ASSERT_TRUE(store->Commit(second).ok());
  EXPECT_EQ(store->LoadJobs()->size(), 2u);
}

// Power fails in a commit: whatever part of it has reached the disk, as far as `cut`, and what lies
// in the rest of the file then. What was committed before is there; it is, as a whole, or is not.
TEST_F(StoreTest, OfATornEndWhatWasCommittedBeforeIsThere) {
  const std::string log_path = path_ + "-wal";
  const auto store = Open();
  ASSERT_TRUE(store->Commit(Some()).ok());
  const size_t before = ReadFile(log_path)->size();
  ASSERT_GT(before, 0u);
  Changes second;
  second.jobs.emplace_back().set_id("job-2");
  second.requests.emplace_back("request-2", "job-2");
  second.events.emplace_back().set_job_id("job-2");
  second.nodes.emplace_back().set_name("b");
  second.nodes[0].set_reported(99);
  ASSERT_TRUE(store->Commit(second).ok());
  const std::string database = *ReadFile(path_);
  const std::string log = *ReadFile(log_path);
  ASSERT_GT(log.size(), before + 4096);
  const std::string torn = directory_.path() + "/torn.sqlite";
  const auto step = [&](size_t cut) { return std::min<size_t>(1789, log.size() - cut); };
  for (const char* rest : {"nothing", "zeros", "garbage"}) {
    for (size_t cut = before; cut <= log.size(); cut += cut < log.size() ? step(cut) : 1) {
      SCOPED_TRACE(absl::StrCat(cut, " of ", log.size(), " bytes, then ", rest));
      std::string left = log.substr(0, cut);
      if (rest[0] != 'n') left.resize(log.size(), rest[0] == 'z' ? '\0' : '\xa5');
      std::filesystem::remove(torn + "-shm");
      std::ofstream(torn, std::ios::binary) << database;
      std::ofstream(torn + "-wal", std::ios::binary) << left;
      const auto found = Store::Open(torn, OpenFor::kWriting);
      ASSERT_TRUE(found.ok()) << found.status();
      const auto jobs = (*found)->LoadJobs();
      ASSERT_TRUE(jobs.ok()) << jobs.status();
      const bool whole = jobs->size() == 2;
      ASSERT_TRUE(whole || jobs->size() == 1) << jobs->size();
      EXPECT_EQ(jobs->at(0).step(), 7);
      EXPECT_EQ((*found)->LoadPlans()->at("job-1").lanes(), 8);
      EXPECT_EQ(*(*found)->JobOfRequest("request-2"), whole ? "job-2" : "");
      EXPECT_EQ((*found)->Events("job-2", 0)->size(), whole ? 1u : 0u);
      EXPECT_EQ((*found)->LoadNodes()->at(1).reported(), whole ? 99u : 0u);
      EXPECT_TRUE(whole || cut < log.size());
      EXPECT_TRUE(!whole || cut > before + 4096);
      EXPECT_TRUE((*found)->Commit(Some()).ok());
    }
  }
}

TEST_F(StoreTest, EventsOfOneJobAreFoundAmongThoseOfAll) {
  const auto store = Open();
  Changes changes;
  for (const char* job : {"job-1", "job-2", "", "job-1"}) {
    v1::JobEvent& event = changes.events.emplace_back();
    event.set_job_id(job);
    event.set_message(absl::StrCat("event ", changes.events.size()));
  }
  ASSERT_TRUE(store->Commit(changes).ok());
  const auto messages = [&](const std::string& job, int64_t after) {
    std::vector<std::string> all;
    const auto events = store->Events(job, after);
    for (const v1::JobEvent& event : *events) all.push_back(event.message());
    return all;
  };
  using Strings = std::vector<std::string>;
  EXPECT_EQ(messages("job-1", 0), (Strings{"event 1", "event 4"}));
  EXPECT_EQ(messages("job-1", 1), (Strings{"event 4"}));
  EXPECT_EQ(messages("", 1), (Strings{"event 2", "event 3", "event 4"}));
}

TEST_F(StoreTest, AStoreOfANewerVersionIsRefusedAndLeftAlone) {
  Open().reset();
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
  sqlite3_exec(database, "PRAGMA user_version=99; PRAGMA wal_checkpoint(TRUNCATE)", nullptr,
               nullptr, nullptr);
  sqlite3_close(database);
  const auto before = std::filesystem::last_write_time(path_);
  const auto store = Store::Open(path_, OpenFor::kWriting);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("newer Tercio"));
  EXPECT_EQ(std::filesystem::last_write_time(path_), before);
}

TEST_F(StoreTest, DamageIsFoundAtTheStartAndTheBackUpNamed) {
  {
    const auto store = Open();
    Changes changes = Some();
    for (int i = 0; i < 2000; ++i) {
      v1::JobEvent& event = changes.events.emplace_back();
      event.set_job_id("job-1");
      event.set_message(std::string(100, 'x'));
    }
    ASSERT_TRUE(store->Commit(changes).ok());
    ASSERT_TRUE(store->BackUp().ok());
  }
  const auto size = std::filesystem::file_size(path_);
  ASSERT_GT(size, 100'000u);
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(size / 2 / 4096 * 4096));
    file << std::string(4096, '\xee');
  }
  const auto damaged = Store::Open(path_, OpenFor::kWriting);
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(damaged.status().message()), HasSubstr("cp " + path_ + ".backup"));
  // What the message says helps.
  std::filesystem::remove(path_ + "-wal");
  std::filesystem::remove(path_ + "-shm");
  std::filesystem::copy_file(path_ + ".backup", path_,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(Open()->LoadJobs()->at(0).step(), 7);
}

// The damage lies where the check does not come in its time.
TEST_F(StoreTest, ACheckThatTakesTooLongIsCutOff) {
  {
    const auto store = Open();
    Changes changes = Some();
    for (int i = 0; i < 2000; ++i) {
      changes.events.emplace_back().set_message(std::string(100, 'x'));
    }
    ASSERT_TRUE(store->Commit(changes).ok());
  }
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(path_) / 2 / 4096 * 4096));
    file << std::string(4096, '\xee');
  }
  EXPECT_FALSE(Store::Open(path_, OpenFor::kWriting).ok());
  const auto store = Store::Open(path_, OpenFor::kWriting, absl::ZeroDuration());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->LoadJobs()->at(0).step(), 7);
  Changes more;
  more.jobs.emplace_back().set_id("job-2");
  EXPECT_TRUE((*store)->Commit(more).ok()) << "an interrupt came after the check";
}

TEST_F(StoreTest, AFileThatIsNoDatabaseIsRefused) {
  std::ofstream(path_) << std::string(10'000, 'x');
  EXPECT_EQ(Store::Open(path_, OpenFor::kWriting).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tercio::coordinator
