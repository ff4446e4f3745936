#include "cli/commands/named_adapters.h"

#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tercio::cli {

std::string LastPartOf(const std::string& path) {
  const std::vector<std::string> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
  return parts.empty() ? "" : parts.back();
}

absl::StatusOr<std::vector<NamedAdapter>> NamedAdapters(const std::vector<std::string>& options,
                                                        const std::string& model) {
  std::vector<NamedAdapter> adapters;
  std::map<std::string, std::string> taken = {{model, "the model itself"}};
  for (const std::string& option : options) {
    const size_t end = option.find('=');
    const bool named = end != std::string::npos && option.find('/') > end;
    NamedAdapter adapter;
    adapter.directory = named ? option.substr(end + 1) : option;
    adapter.name = named ? option.substr(0, end) : LastPartOf(option);
    if (adapter.name.empty() || adapter.directory.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--adapter ", option, ": give NAME=DIR, or DIR with a name"));
    }
    const auto [other, is_new] = taken.emplace(adapter.name, adapter.directory);
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrCat("--adapter ", option, ": ", adapter.name, " is the name of ", other->second,
                       " already; give it another one (--adapter NAME=", adapter.directory, ")"));
    }
    adapters.push_back(std::move(adapter));
  }
  return adapters;
}

}  // namespace tercio::cli
