// The keys that clients of a server must send. Kept as digests, and compared in constant time.
//
// Threads: immutable after construction.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tercio::serve {

class ApiKeys {
 public:
  // No key is needed.
  ApiKeys() = default;
  // A file with a key on each line; empty lines and lines that begin with # do not count.
  // INVALID_ARGUMENT: no key, or one with blanks or fewer than 16 characters; errors of reading it.
  static absl::StatusOr<ApiKeys> Load(const std::string& path);

  bool needed() const { return !digests_.empty(); }
  // Whether the value of the header Authorization has one of the keys: "Bearer KEY".
  bool Allows(std::string_view authorization) const;

 private:
  std::vector<std::string> digests_;
};

}  // namespace tercio::serve
