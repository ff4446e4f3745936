#include "plan/text_form.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::plan {
namespace {

using ::testing::HasSubstr;

google::protobuf::util::JsonPrintOptions Names() {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  return options;
}

v1::JobSpec Job() {
  v1::JobSpec job;
  job.set_name("ON_NAN_SKIP");  // a text, whatever it looks like
  job.mutable_fault_tolerance()->set_max_restarts(3);
  job.mutable_fault_tolerance()->set_on_nan(v1::ON_NAN_SKIP);
  job.mutable_fault_tolerance()->set_on_spike(v1::ON_SPIKE_OFF);
  return job;
}

TEST(TextForm, EnumeratorsAreWords) {
  EXPECT_EQ(*ToJson(Job(), Names()), R"({"name":"ON_NAN_SKIP","fault_tolerance":)"
                                     R"({"max_restarts":3,"on_nan":"skip","on_spike":"off"}})");
}

TEST(TextForm, AnAbsentWordIsAnEmptyText) {
  google::protobuf::util::JsonPrintOptions all = Names();
  all.always_print_primitive_fields = true;
  EXPECT_THAT(*ToJson(Job().fault_tolerance(), all), HasSubstr(R"("stragglers":"")"));
}

TEST(TextForm, ReadsWhatItWrites) {
  google::protobuf::util::JsonPrintOptions all = Names();
  all.always_print_primitive_fields = true;
  for (const auto& options : {Names(), all}) {
    v1::JobSpec again;
    const absl::Status read = FromJson(*ToJson(Job(), options), &again);
    ASSERT_TRUE(read.ok()) << read;
    EXPECT_EQ(again.ShortDebugString(), Job().ShortDebugString());
  }
}

TEST(TextForm, ReadsNamesOfEnumeratorsToo) {
  v1::FaultToleranceSpec fault;
  ASSERT_TRUE(FromJson(R"({"on_nan": "ON_NAN_SKIP", "stragglers": "exclude"})", &fault).ok());
  EXPECT_EQ(fault.on_nan(), v1::ON_NAN_SKIP);
  EXPECT_EQ(fault.stragglers(), v1::STRAGGLER_POLICY_EXCLUDE);
}

TEST(TextForm, OtherTextIsRefused) {
  for (const char* json :
       {R"({"on_nan": "restart"})", R"({"on_nan": "exclude"})", R"({"x": 1})", "{", "\xff"}) {
    v1::FaultToleranceSpec fault;
    EXPECT_EQ(FromJson(json, &fault).code(), absl::StatusCode::kInvalidArgument) << json;
  }
}

}  // namespace
}  // namespace tercio::plan
