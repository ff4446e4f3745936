#include "cli/log_text.h"

#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "cli/text.h"
#include "common/log.h"

namespace tercio::cli {

std::string LogText(const v1::LogLine& line) {
  // Attempt and rank come first, so that lines can be sorted by eye.
  const std::string whose = absl::StrCat("[", line.attempt(), ".", line.rank(), "] ");
  const auto fields = ParseLogfmt(line.line());
  // Trainers may print anything: what is no log line is shown as it is.
  if (fields.empty()) return whose + ForTerminal(line.line());
  // Fields that are shown without their names, and fields that are already known.
  static const std::set<std::string_view> bare = {"time", "level", "msg"};
  static const std::set<std::string_view> known = {"program", "job", "attempt", "rank"};
  std::string text = whose;
  for (const auto& [key, value] : fields) {
    if (known.contains(key)) continue;
    if (text.size() > whose.size()) text += ' ';
    if (!bare.contains(key)) absl::StrAppend(&text, ForTerminal(key), "=");
    text += ForTerminal(value);
  }
  return text;
}

absl::StatusOr<absl::Time> SinceTime(const std::string& text, absl::Time now) {
  absl::Duration ago;
  // A duration is meant backwards; a negative one would be in the future.
  if (absl::ParseDuration(text, &ago) && ago >= absl::ZeroDuration()) return now - ago;
  absl::Time time;
  std::string error;
  if (absl::ParseTime(absl::RFC3339_full, text, &time, &error)) return time;
  return absl::InvalidArgumentError(absl::StrCat(
      "--since ", text, " is neither a duration such as 5m or 1h30m nor a time such as ",
      "2026-05-01T12:00:00Z"));
}

}  // namespace tercio::cli
