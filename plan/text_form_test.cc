#include "plan/text_form.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

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

// As manifests of checkpoints have them, also those of earlier versions.
TEST(TextForm, OfAModel) {
  v1::ModelSpec model;
  ASSERT_TRUE(FromJson(R"({"architecture": "bert", "layers": 2, "norm": "pre"})", &model).ok());
  EXPECT_EQ(model.architecture(), v1::ARCHITECTURE_BERT);
  EXPECT_EQ(model.norm(), v1::NORM_PLACEMENT_PRE);
  EXPECT_EQ(*ToJson(model, Names()), R"({"layers":2,"architecture":"bert","norm":"pre"})");
  ASSERT_TRUE(FromJson(R"({"architecture": "gpt2", "norm": ""})", &model).ok());
  EXPECT_EQ(model.architecture(), v1::ARCHITECTURE_GPT2);
  EXPECT_EQ(model.norm(), v1::NORM_PLACEMENT_UNSPECIFIED);
}

TEST(TextForm, OfAPlan) {
  v1::Layout layout;
  layout.set_tensor(2);
  layout.set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
  layout.set_recompute(v1::RECOMPUTE_NONE);
  const std::string json = R"({"tensor":2,"schedule":"1f1b","recompute":"none"})";
  EXPECT_EQ(*ToJson(layout, Names()), json);
  v1::Layout again;
  ASSERT_TRUE(FromJson(json, &again).ok());
  EXPECT_EQ(again.SerializeAsString(), layout.SerializeAsString());
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
