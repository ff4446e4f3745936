#include "plan/old_words.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/unknown_field_set.h"
#include "plan/names.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

// A field that held a word, and the one that holds the enumerator.
struct MovedField {
  const Descriptor* (*message)();
  int word;
  int enumerator;
};

constexpr MovedField kMovedFields[] = {
    {v1::ModelSpec::descriptor, 1, v1::ModelSpec::kArchitectureFieldNumber},
    {v1::ModelSpec::descriptor, 16, v1::ModelSpec::kNormFieldNumber},
    {v1::OptimizerSpec::descriptor, 1, v1::OptimizerSpec::kNameFieldNumber},
    {v1::ScheduleSpec::descriptor, 1, v1::ScheduleSpec::kKindFieldNumber},
    {v1::TrainingSpec::descriptor, 7, v1::TrainingSpec::kPrecisionFieldNumber},
    {v1::TrainingSpec::descriptor, 15, v1::TrainingSpec::kReproducibilityFieldNumber},
    {v1::ParallelismSpec::descriptor, 7, v1::ParallelismSpec::kScheduleFieldNumber},
    {v1::ParallelismSpec::descriptor, 10, v1::ParallelismSpec::kRecomputeFieldNumber},
    {v1::ResourcesSpec::descriptor, 1, v1::ResourcesSpec::kDeviceFieldNumber},
    {v1::ResourcesSpec::descriptor, 4, v1::ResourcesSpec::kCollectivesFieldNumber},
    {v1::FaultToleranceSpec::descriptor, 5, v1::FaultToleranceSpec::kOnNanFieldNumber},
    {v1::FaultToleranceSpec::descriptor, 6, v1::FaultToleranceSpec::kStragglersFieldNumber},
    {v1::FaultToleranceSpec::descriptor, 7, v1::FaultToleranceSpec::kOnSpikeFieldNumber},
    {v1::Layout::descriptor, 8, v1::Layout::kScheduleFieldNumber},
    {v1::Layout::descriptor, 11, v1::Layout::kRecomputeFieldNumber},
    {v1::Plan::descriptor, 9, v1::Plan::kCollectivesFieldNumber},
    {v1::RankPlan::descriptor, 9, v1::RankPlan::kCollectivesFieldNumber},
    {v1::AgentHello::descriptor, 5, v1::AgentHello::kDeviceKindFieldNumber},
};

// The last one counts, as in any message.
std::optional<std::string> TextUnder(int number, const UnknownFieldSet& unknown) {
  std::optional<std::string> text;
  for (int i = 0; i < unknown.field_count(); ++i) {
    const UnknownField& field = unknown.field(i);
    if (field.number() == number && field.type() == UnknownField::TYPE_LENGTH_DELIMITED) {
      text = field.length_delimited();
    }
  }
  return text;
}

absl::Status UpgradeOwnFields(Message* message) {
  const Reflection& reflection = *message->GetReflection();
  if (reflection.GetUnknownFields(*message).empty()) return absl::OkStatus();
  for (const MovedField& moved : kMovedFields) {
    if (moved.message() != message->GetDescriptor()) continue;
    const std::optional<std::string> text =
        TextUnder(moved.word, reflection.GetUnknownFields(*message));
    if (!text.has_value()) continue;
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByNumber(moved.enumerator);
    const Word* found = nullptr;
    for (const Word& word : WordsOfEnum(field->enum_type()->full_name())) {
      if (word.text == *text) found = &word;
    }
    if (found == nullptr && !text->empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(field->full_name(), " is '", *text, "', which no version has written"));
    }
    if (found != nullptr) reflection.SetEnumValue(message, field, found->value);
    reflection.MutableUnknownFields(message)->DeleteByNumber(moved.word);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status UpgradeWords(Message* message) {
  std::vector<Message*> left = {message};
  while (!left.empty()) {
    Message* const next = left.back();
    left.pop_back();
    const absl::Status upgraded = UpgradeOwnFields(next);
    if (!upgraded.ok()) return upgraded;
    const Reflection& reflection = *next->GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(*next, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
      if (!field->is_repeated()) {
        left.push_back(reflection.MutableMessage(next, field));
        continue;
      }
      for (int i = 0; i < reflection.FieldSize(*next, field); ++i) {
        left.push_back(reflection.MutableRepeatedMessage(next, field, i));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tercio::plan
