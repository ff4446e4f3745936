#include "plan/text_form.h"

#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/type.pb.h"
#include "google/protobuf/util/type_resolver.h"
#include "google/protobuf/util/type_resolver_util.h"
#include "plan/names.h"

namespace tercio::plan {
namespace {

constexpr char kUrlPrefix[] = "type.googleapis.com";

// Describes our messages to protobuf's JSON, whose text of an enumerator is its name: before the
// names it knows stand our words, so that a number is written as its word, and both are read.
class WordResolver : public google::protobuf::util::TypeResolver {
 public:
  WordResolver()
      : types_(google::protobuf::util::NewTypeResolverForDescriptorPool(
            kUrlPrefix, google::protobuf::DescriptorPool::generated_pool())) {}

  google::protobuf::util::Status ResolveMessageType(const std::string& url,
                                                    google::protobuf::Type* type) override {
    return types_->ResolveMessageType(url, type);
  }

  google::protobuf::util::Status ResolveEnumType(const std::string& url,
                                                 google::protobuf::Enum* type) override {
    const auto status = types_->ResolveEnumType(url, type);
    if (!status.ok()) return status;
    const std::span<const Word> words = WordsOfEnum(type->name());
    if (words.empty()) return status;
    const google::protobuf::Enum named = *type;
    type->clear_enumvalue();
    // The first one is the value of a field that is not set.
    type->add_enumvalue()->set_number(0);
    for (const Word& word : words) {
      google::protobuf::EnumValue* value = type->add_enumvalue();
      value->set_number(word.value);
      value->set_name(std::string(word.text));
    }
    type->mutable_enumvalue()->MergeFrom(named.enumvalue());
    return status;
  }

 private:
  const std::unique_ptr<google::protobuf::util::TypeResolver> types_;
};

std::string UrlOf(const google::protobuf::Message& message) {
  return absl::StrCat(kUrlPrefix, "/", message.GetDescriptor()->full_name());
}

}  // namespace

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message,
                                   const google::protobuf::util::JsonPrintOptions& options) {
  WordResolver resolver;
  std::string json;
  if (!google::protobuf::util::BinaryToJsonString(&resolver, UrlOf(message),
                                                  message.SerializeAsString(), &json, options)
           .ok()) {
    return absl::InternalError(
        absl::StrCat("cannot write ", message.GetDescriptor()->full_name(), " as JSON"));
  }
  return json;
}

absl::Status FromJson(std::string_view json, google::protobuf::Message* message) {
  WordResolver resolver;
  std::string bytes;
  const auto parsed = google::protobuf::util::JsonToBinaryString(&resolver, UrlOf(*message),
                                                                 std::string(json), &bytes);
  if (!parsed.ok() || !message->ParseFromString(bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("not the JSON of a ", message->GetDescriptor()->full_name()));
  }
  return absl::OkStatus();
}

}  // namespace tercio::plan
