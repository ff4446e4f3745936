// The faults of a directory's tensors, of which a message names the first few: a file of another
// model has hundreds.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tercio::checkpoint {

// A name out of an untrusted file, for a message.
std::string ShownName(std::string_view name);

// "a, b and 3 more": at most `most` names.
std::string ListedNames(const std::vector<std::string>& names, size_t most);

class TensorFaults {
 public:
  explicit TensorFaults(std::string where) : where_(std::move(where)) {}

  void Damaged(const std::string& what) {
    damaged_ = true;
    faults_.push_back(what);
  }
  // Something that this version cannot read says nothing against the file.
  void Unsupported(const std::string& what) { faults_.push_back(what); }

  // DATA_LOSS if anything is damaged, else INVALID_ARGUMENT, else OK.
  absl::Status ToStatus() const;

 private:
  std::string where_;
  std::vector<std::string> faults_;
  bool damaged_ = false;
};

}  // namespace tercio::checkpoint
