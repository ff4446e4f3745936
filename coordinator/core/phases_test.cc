#include "coordinator/core/phases.h"

#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/testing/test_job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr v1::JobPhase kUnknownPhase = static_cast<v1::JobPhase>(42);

std::vector<v1::JobPhase> AllPhases() {
  std::vector<v1::JobPhase> phases;
  for (int phase = v1::JobPhase_MIN; phase <= v1::JobPhase_MAX; ++phase) {
    if (v1::JobPhase_IsValid(phase)) phases.push_back(static_cast<v1::JobPhase>(phase));
  }
  return phases;
}

// By any number of changes, at least one.
std::set<v1::JobPhase> ReachableFrom(v1::JobPhase start) {
  std::set<v1::JobPhase> reached;
  std::vector<v1::JobPhase> open = {start};
  while (!open.empty()) {
    const v1::JobPhase from = open.back();
    open.pop_back();
    for (const PhaseChange& change : kPhaseChanges) {
      if (change.from == from && reached.insert(change.to).second) open.push_back(change.to);
    }
  }
  return reached;
}

v1::JobRecord RecordIn(v1::JobPhase phase) {
  v1::JobRecord record;
  record.set_id(kJob);
  record.set_phase(phase);
  return record;
}

TEST(Phases, AFreshJobReachesEachOne) {
  const std::set<v1::JobPhase> reached = ReachableFrom(v1::JOB_PHASE_UNSPECIFIED);
  for (const v1::JobPhase phase : AllPhases()) {
    EXPECT_EQ(reached.contains(phase), phase != v1::JOB_PHASE_UNSPECIFIED)
        << v1::JobPhase_Name(phase);
  }
}

TEST(Phases, EachOneLeadsToEachEnd) {
  for (const v1::JobPhase phase : AllPhases()) {
    SCOPED_TRACE(v1::JobPhase_Name(phase));
    const std::set<v1::JobPhase> reached = ReachableFrom(phase);
    EXPECT_THAT(reached, Contains(v1::JOB_PHASE_SUCCEEDED));
    EXPECT_THAT(reached, Contains(v1::JOB_PHASE_FAILED));
    EXPECT_THAT(reached, Contains(v1::JOB_PHASE_CANCELLED));
  }
}

TEST(Phases, OnlyAResumeLeadsOnFromAnEnd) {
  for (const PhaseChange& change : kPhaseChanges) {
    if (!IsTerminal(change.from)) continue;
    EXPECT_EQ(change.to, v1::JOB_PHASE_QUEUED) << v1::JobPhase_Name(change.from);
  }
}

TEST(Phases, NoChangeIsListedTwice) {
  std::set<std::pair<v1::JobPhase, v1::JobPhase>> seen;
  for (const PhaseChange& change : kPhaseChanges) {
    EXPECT_TRUE(seen.insert({change.from, change.to}).second)
        << v1::JobPhase_Name(change.from) << " to " << v1::JobPhase_Name(change.to);
  }
}

TEST(Phases, SetPhaseMakesTheChangesOfTheTable) {
  for (const PhaseChange& change : kPhaseChanges) {
    v1::JobRecord record = RecordIn(change.from);
    EXPECT_TRUE(SetPhase(record, change.to).ok());
    EXPECT_EQ(record.phase(), change.to);
  }
}

TEST(Phases, SetPhaseRefusesEachOtherChange) {
  int refused = 0;
  std::vector<v1::JobPhase> phases = AllPhases();
  phases.push_back(kUnknownPhase);
  for (const v1::JobPhase from : phases) {
    for (const v1::JobPhase to : phases) {
      if (MayChange(from, to)) continue;
      SCOPED_TRACE(::testing::Message() << from << " to " << to);
      v1::JobRecord record = RecordIn(from);
      const absl::Status status = SetPhase(record, to);
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(status.message()), HasSubstr(kJob));
      EXPECT_EQ(record.phase(), IsTerminal(from) ? from : v1::JOB_PHASE_FAILED);
      ++refused;
    }
  }
  EXPECT_EQ(refused, 11 * 11 - static_cast<int>(std::size(kPhaseChanges)));
}

TEST(Phases, ARefusalNamesJobAndPhases) {
  v1::JobRecord record = RecordIn(v1::JOB_PHASE_QUEUED);
  EXPECT_EQ(SetPhase(record, v1::JOB_PHASE_RUNNING).message(),
            "job job-1 cannot change from JOB_PHASE_QUEUED to JOB_PHASE_RUNNING: this is a fault "
            "of Tercio");
  record = RecordIn(kUnknownPhase);
  EXPECT_THAT(std::string(SetPhase(record, v1::JOB_PHASE_RUNNING).message()),
              HasSubstr("from phase 42 to JOB_PHASE_RUNNING"));
}

// The store of a newer coordinator may hold a phase that this one does not know.
TEST(Phases, AnIllegalChangeFailsOneJobAndNoOther) {
  Stored stored;
  stored.jobs.push_back(RecordIn(kUnknownPhase));
  State state = Restore(std::move(stored), 1000);
  const Settings settings = PlanningSettings();
  ASSERT_TRUE(Step(state, {1001, "t", Submitted{"other", SmallSpec(2)}}, settings).answer.ok());
  const std::string other = state.jobs.at("other").record.SerializeAsString();

  const Effects effects = Step(state, {1002, "t", CancelRequested{kJob, false, "stop"}}, settings);
  EXPECT_EQ(effects.answer.code(), absl::StatusCode::kInternal);
  const v1::JobRecord& job = state.jobs.at(kJob).record;
  EXPECT_EQ(job.phase(), v1::JOB_PHASE_FAILED);
  EXPECT_EQ(job.finished_at(), 1002);
  EXPECT_THAT(job.error(), HasSubstr("from phase 42 to JOB_PHASE_CANCELLED"));
  EXPECT_THAT(effects.changed_jobs, Contains(kJob));
  std::map<std::string, std::string> told;
  for (const v1::JobEvent& event : effects.events) told[event.kind()] = event.message();
  EXPECT_EQ(told["internal_error"], job.error());
  EXPECT_EQ(told["failed"], job.error());
  EXPECT_FALSE(told.contains("cancelled"));

  EXPECT_EQ(state.jobs.Active().size(), 1u);
  EXPECT_EQ(state.jobs.at("other").record.SerializeAsString(), other);
  // A person may resume it.
  EXPECT_TRUE(Step(state, {1003, "t", ResumeRequested{kJob, SmallSpec(2)}}, settings).answer.ok());
  EXPECT_EQ(job.phase(), v1::JOB_PHASE_QUEUED);
}

TEST(Phases, AKnownJobIsNotSubmittedAgain) {
  State state;
  const Settings settings = PlanningSettings();
  const Effects first = Step(state, {1000, "t", Submitted{kJob, SmallSpec(2), "", "r1"}}, settings);
  ASSERT_TRUE(first.answer.ok());
  EXPECT_THAT(first.requests, Contains(std::pair<std::string, std::string>("r1", kJob)));
  const std::string before = state.jobs.at(kJob).record.SerializeAsString();
  const Effects second =
      Step(state, {1001, "t", Submitted{kJob, SmallSpec(1), "", "r2"}}, settings);
  EXPECT_EQ(second.answer.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(second.requests.empty());
  EXPECT_TRUE(second.events.empty());
  EXPECT_TRUE(second.changed_jobs.empty());
  EXPECT_EQ(state.jobs.at(kJob).record.SerializeAsString(), before);
}

}  // namespace
}  // namespace tercio::coordinator
