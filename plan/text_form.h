// Messages as JSON in which an enum of a closed set is its word (plan/names.h), as in job files.
// Everything else is protobuf's own JSON.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/util/json_util.h"

namespace tercio::plan {

// INTERNAL: a text of the message is not UTF-8.
absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message,
                                   const google::protobuf::util::JsonPrintOptions& options);

// Reads words, and the names of enumerators. INVALID_ARGUMENT: not JSON, or not of this message.
absl::Status FromJson(std::string_view json, google::protobuf::Message* message);

}  // namespace tercio::plan
