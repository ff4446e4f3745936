// The keys that clients of a server must send. Kept as digests, and compared in constant time.
//
// Threads: const methods from any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio::serve {

class ApiKeys {
 public:
  // A file with a key on each line; empty lines and lines that begin with # do not count.
  // INVALID_ARGUMENT: no key, or one with blanks or fewer than 16 characters; errors of reading it.
  static absl::StatusOr<ApiKeys> Load(const std::string& path);

  // Whether the value of the header Authorization has one of the keys: "Bearer KEY".
  bool Allows(std::string_view authorization) const;

 private:
  ApiKeys() = default;
  std::vector<std::string> digests_;
};

}  // namespace tercio::serve
