#include "checkpoint/huggingface/faults.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tercio::checkpoint {
namespace {

constexpr size_t kNamedFaults = 5;

}  // namespace

std::string ShownName(std::string_view name) {
  return absl::Utf8SafeCEscape(std::string(name.substr(0, 200)));
}

std::string ListedNames(const std::vector<std::string>& names, size_t most) {
  const size_t shown = std::min(names.size(), most);
  std::vector<std::string> told;
  for (size_t i = 0; i < shown; ++i) told.push_back(ShownName(names[i]));
  const std::string list = absl::StrJoin(told, ", ");
  if (shown == names.size()) return list;
  return absl::StrCat(list, " and ", names.size() - shown, " more");
}

absl::Status TensorFaults::ToStatus() const {
  if (faults_.empty()) return absl::OkStatus();
  const size_t shown = std::min(faults_.size(), kNamedFaults);
  std::vector<std::string> told(faults_.begin(),
                                faults_.begin() + static_cast<std::ptrdiff_t>(shown));
  if (shown < faults_.size()) told.push_back(absl::StrCat("and ", faults_.size() - shown, " more"));
  const std::string message = absl::StrCat(where_, ": ", absl::StrJoin(told, "; "));
  return damaged_ ? absl::DataLossError(message) : absl::InvalidArgumentError(message);
}

}  // namespace tercio::checkpoint
