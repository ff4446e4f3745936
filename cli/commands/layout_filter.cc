#include "cli/commands/layout_filter.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "plan/names.h"
#include "plan/state_shards.h"

namespace tercio::cli {
namespace {

using Filter = std::function<bool(const v1::Layout&)>;
using Getter = int (*)(const v1::Layout&);

absl::Status Fault(const std::string& text, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "layout '", text, "': ", what,
      "; expected TENSORxPIPELINExDATA, such as 8x4x16, and then any of "
      ",micro_batch=N ,virtual_pipeline=N ,zero_stage=N ,shard=N ,recompute=none|selective|full "
      ",sequence_parallel=true|false"));
}

Filter Equals(Getter get, int value) {
  return [get, value](const v1::Layout& layout) { return get(layout) == value; };
}

absl::StatusOr<Filter> FilterOf(const std::string& key, const std::string& value,
                                const std::string& text) {
  if (key == "recompute") {
    const auto recompute = plan::Named<v1::Recompute>(value);
    if (!recompute.has_value()) return Fault(text, absl::StrCat("no recompute '", value, "'"));
    return Equals([](const v1::Layout& l) { return static_cast<int>(l.recompute()); },
                  static_cast<int>(*recompute));
  }
  if (key == "sequence_parallel") {
    if (value != "true" && value != "false") {
      return Fault(text, absl::StrCat("sequence_parallel '", value, "'"));
    }
    return Equals([](const v1::Layout& l) { return l.sequence_parallel() ? 1 : 0; },
                  value == "true" ? 1 : 0);
  }
  int number = 0;
  if (!absl::SimpleAtoi(value, &number)) {
    return Fault(text, absl::StrCat("'", value, "' is no number"));
  }
  static const auto* const kGetters = new std::vector<std::pair<std::string, Getter>>{
      {"micro_batch", [](const v1::Layout& l) { return l.micro_batch(); }},
      {"virtual_pipeline", [](const v1::Layout& l) { return std::max(1, l.virtual_pipeline()); }},
      {"zero_stage", [](const v1::Layout& l) { return l.zero_stage(); }},
      {"shard", [](const v1::Layout& l) { return plan::ShardRanks(l); }}};
  for (const auto& [name, get] : *kGetters) {
    if (key == name) return Equals(get, number);
  }
  return Fault(text, absl::StrCat("no key '", key, "'"));
}

}  // namespace

absl::StatusOr<Filter> ParseLayoutFilter(std::string_view given) {
  const std::string text(given);
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  const std::vector<std::string> degrees = absl::StrSplit(parts.front(), 'x');
  if (degrees.size() != 3) return Fault(text, "no three degrees");
  const Getter getters[] = {[](const v1::Layout& l) { return l.tensor(); },
                            [](const v1::Layout& l) { return l.pipeline(); },
                            [](const v1::Layout& l) { return l.data(); }};
  std::vector<Filter> filters;
  for (size_t i = 0; i < std::size(getters); ++i) {
    if (degrees[i] == "*") continue;
    int degree = 0;
    if (!absl::SimpleAtoi(degrees[i], &degree) || degree < 1) {
      return Fault(text, absl::StrCat("'", degrees[i], "' is no degree"));
    }
    filters.push_back(Equals(getters[i], degree));
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::pair<std::string, std::string> entry =
        absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    absl::StatusOr<Filter> filter = FilterOf(entry.first, entry.second, text);
    if (!filter.ok()) return filter.status();
    filters.push_back(*std::move(filter));
  }
  return [filters](const v1::Layout& layout) {
    return std::all_of(filters.begin(), filters.end(),
                       [&](const Filter& filter) { return filter(layout); });
  };
}

}  // namespace tercio::cli
