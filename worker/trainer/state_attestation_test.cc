#include "worker/trainer/state_attestation.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "plan/state_digest.h"
#include "worker/trainer/testing/fake_engine.h"

namespace tercio::trainer {
namespace {

using ::testing::HasSubstr;

class StateAttestationTest : public ::testing::Test {
 protected:
  StateAttestationTest() {
    assignment_.mutable_spec()->mutable_training()->set_steps(25);
    assignment_.mutable_spec()->mutable_fault_tolerance()->set_check_replicas_every(10);
  }

  v1::TrainerAssignment assignment_;
  FakeEngine engine_;
  StateAttestation attestation_{assignment_};
};

TEST_F(StateAttestationTest, SomeStepsRecordIt) {
  for (int64_t step = 1; step <= 25; ++step) {
    EXPECT_EQ(attestation_.IsRecorded(step), step == 10 || step == 20 || step == 25) << step;
  }
  assignment_.mutable_spec()->mutable_fault_tolerance()->set_check_replicas_every(0);
  EXPECT_FALSE(attestation_.IsRecorded(10));
  EXPECT_FALSE(attestation_.IsRecorded(25));
}

TEST_F(StateAttestationTest, AStepIsMeasuredOnce) {
  engine_.digest = 3;
  EXPECT_EQ(*attestation_.After(10, engine_), 3);
  engine_.digest = 4;
  EXPECT_EQ(*attestation_.After(10, engine_), 3);
  EXPECT_EQ(*attestation_.After(11, engine_), 4);
}

TEST_F(StateAttestationTest, WhatWasLoadedIsWhatWasSaved) {
  assignment_.set_resume_step(20);
  engine_.digest = 0xabc;
  // An older version recorded none.
  EXPECT_TRUE(attestation_.CheckLoaded(engine_).ok());
  assignment_.set_resume_state_digest(0xabc);
  EXPECT_TRUE(attestation_.CheckLoaded(engine_).ok());
  assignment_.set_resume_state_digest(0xabd);
  const absl::Status other = attestation_.CheckLoaded(engine_);
  EXPECT_EQ(other.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(other.message()), HasSubstr("0000000000000abd"));
  EXPECT_THAT(std::string(other.message()), HasSubstr("step 20"));
  // A change of precision rounds frozen weights.
  engine_.holds_what_it_loaded = false;
  EXPECT_TRUE(attestation_.CheckLoaded(engine_).ok());
}

TEST_F(StateAttestationTest, CheckpointsCarryIt) {
  const auto state = nlohmann::json::parse(TrainingStateJson(assignment_, 20, 4096, 255));
  EXPECT_EQ(state["step"], 20);
  EXPECT_EQ(state["tokens"], 4096);
  EXPECT_EQ(plan::ParseStateDigest(state["state_digest"].get<std::string>()), 255);
}

}  // namespace
}  // namespace tercio::trainer
