#include "plan/old_words.h"

#include "gmock/gmock.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/state.pb.h"

namespace tercio::plan {
namespace {

using ::testing::HasSubstr;

// protobuf generates no accessor for messages of proto3.
const google::protobuf::UnknownFieldSet& UnknownFieldsOf(const google::protobuf::Message& message) {
  return message.GetReflection()->GetUnknownFields(message);
}

void Say(google::protobuf::Message* message, int number, const std::string& word) {
  message->GetReflection()->MutableUnknownFields(message)->AddLengthDelimited(number, word);
}

// As from the disk: what this version does not know is among the unknown fields.
template <typename Message>
Message ReadAgain(const Message& message) {
  Message again;
  EXPECT_TRUE(again.ParseFromString(message.SerializeAsString()));
  return again;
}

TEST(OldWords, BecomeEnumerators) {
  v1::JobRecord old;
  old.set_id("job-1");
  v1::FaultToleranceSpec* fault = old.mutable_spec()->mutable_fault_tolerance();
  fault->set_max_restarts(3);
  Say(fault, 5, "skip");
  Say(fault, 6, "exclude");
  Say(fault, 7, "off");
  Say(fault, 7, "rollback");  // the last one counts
  v1::JobRecord record = ReadAgain(old);
  ASSERT_TRUE(UpgradeWords(&record).ok());

  v1::JobRecord expected;
  expected.set_id("job-1");
  fault = expected.mutable_spec()->mutable_fault_tolerance();
  fault->set_max_restarts(3);
  fault->set_on_nan(v1::ON_NAN_SKIP);
  fault->set_stragglers(v1::STRAGGLER_POLICY_EXCLUDE);
  fault->set_on_spike(v1::ON_SPIKE_ROLLBACK);
  EXPECT_EQ(record.SerializeAsString(), expected.SerializeAsString());
  // Again it has no effect.
  ASSERT_TRUE(UpgradeWords(&record).ok());
  EXPECT_EQ(record.SerializeAsString(), expected.SerializeAsString());
}

TEST(OldWords, OfAnAgentAndOfItsRanks) {
  v1::AgentMessage message;
  Say(message.mutable_hello(), 5, "cuda");
  ASSERT_TRUE(UpgradeWords(&message).ok());
  EXPECT_EQ(message.hello().device_kind(), v1::DEVICE_KIND_CUDA);
  v1::StartRun start;
  for (const char* word : {"nccl", "host"}) Say(start.add_ranks(), 9, word);
  Say(start.mutable_ranks(0)->mutable_layout(), 8, "1f1b");
  ASSERT_TRUE(UpgradeWords(&start).ok());
  EXPECT_EQ(start.ranks(0).collectives(), v1::COLLECTIVES_NCCL);
  EXPECT_EQ(start.ranks(0).layout().schedule(), v1::PIPELINE_SCHEDULE_1F1B);
  EXPECT_EQ(start.ranks(1).collectives(), v1::COLLECTIVES_HOST);
}

TEST(OldWords, AnAbsentWordStaysAbsent) {
  v1::JobRecord record;
  Say(record.mutable_spec()->mutable_fault_tolerance(), 5, "");
  ASSERT_TRUE(UpgradeWords(&record).ok());
  EXPECT_EQ(record.spec().fault_tolerance().on_nan(), v1::ON_NAN_UNSPECIFIED);
  EXPECT_TRUE(UnknownFieldsOf(record.spec().fault_tolerance()).empty());
}

TEST(OldWords, FieldsOfNewerVersionsAreKept) {
  v1::FaultToleranceSpec fault;
  Say(&fault, 5, "stop");
  Say(&fault, 1000, "stop");
  fault.GetReflection()->MutableUnknownFields(&fault)->AddVarint(6, 1);
  ASSERT_TRUE(UpgradeWords(&fault).ok());
  EXPECT_EQ(fault.on_nan(), v1::ON_NAN_STOP);
  EXPECT_EQ(UnknownFieldsOf(fault).field_count(), 2);
}

TEST(OldWords, AnotherWordIsRefused) {
  v1::JobRecord record;
  Say(record.mutable_spec()->mutable_fault_tolerance(), 7, "restart");
  const absl::Status refused = UpgradeWords(&record);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("tercio.v1.FaultToleranceSpec.on_spike is 'restart'"));
}

}  // namespace
}  // namespace tercio::plan
