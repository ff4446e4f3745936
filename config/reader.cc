#include "config/reader.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/nearest.h"

namespace tercio::config {

namespace {

// `key` itself, a key of its map or an element of its list.
bool IsAtOrBelow(std::string_view key, std::string_view of) {
  return key.starts_with(of) &&
         (key.size() == of.size() || key[of.size()] == '.' || key[of.size()] == '[');
}

}  // namespace

void Faults::Overridden(const std::string& key, const std::string& place) {
  overridden_.emplace_back(key, place);
}

void Faults::Add(int line, const std::string& key, const std::string& what) {
  // A line of 0 means that nothing of the file stands for the key, such as for a key of --set.
  std::string place = line > 0 ? absl::StrCat(file_, ":", line) : file_;
  // The last one counts. Lines of the file, or of the text of --set, would mislead.
  for (const auto& [changed, changed_at] : overridden_) {
    if (!IsAtOrBelow(key, changed)) continue;
    place = changed_at;
    line = 0;
  }
  lines_.emplace_back(line, absl::StrCat(place, ": ", key.empty() ? "" : key + ": ", what));
}

absl::Status Faults::ToStatus() const {
  if (lines_.empty()) return absl::OkStatus();
  auto sorted = lines_;
  // The sort is stable, so that faults of one line stay in the order of reading.
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> texts;
  for (const auto& [line, text] : sorted) texts.push_back(text);
  return absl::InvalidArgumentError(absl::StrJoin(texts, "\n"));
}

Section::Section(YAML::Node node, std::string path, Faults* faults, int line)
    : node_(node), path_(std::move(path)), faults_(faults), line_(line) {
  // A section that is no map is reported once, and then reads as
  // an empty one, so that its keys cause no further faults.
  if (node_.IsDefined() && !node_.IsNull() && !node_.IsMap()) {
    faults_->Add(node_.Mark().line + 1, path_, "expected a map of keys");
    node_.reset(YAML::Node());
    return;
  }
  if (!node_.IsDefined() || !node_.IsMap()) return;
  // yaml-cpp keeps both entries and finds the first; which one a person meant is not known.
  std::set<std::string> seen;
  for (const auto& entry : node_) {
    const std::string key = entry.first.Scalar();
    if (!seen.insert(key).second) {
      faults_->Add(entry.first.Mark().line + 1, Full(key), "the key is given twice; keep one");
    }
  }
}

int Section::LineOf(const std::string& key) const {
  // A missing section has the line where it should be.
  if (!node_.IsDefined() || !node_.IsMap()) return line_;
  for (const auto& entry : node_) {
    if (entry.first.Scalar() == key) return entry.first.Mark().line + 1;
  }
  // The section's own line is the nearest place for a key that is missing.
  return node_.Mark().line + 1;
}

YAML::Node Section::Get(const std::string& key) {
  // Asking marks the key as known, whether or not it is there: Finish suggests from these.
  known_.insert(key);
  if (!node_.IsDefined() || !node_.IsMap()) return YAML::Node(YAML::NodeType::Undefined);
  // A key whose value is null counts as missing, so that it can be switched off by --set.
  for (const auto& entry : node_) {
    if (entry.first.Scalar() == key && !entry.second.IsNull()) return entry.second;
  }
  return YAML::Node(YAML::NodeType::Undefined);
}

bool Section::Has(const std::string& key) { return Get(key).IsDefined(); }

Section Section::Child(const std::string& key) {
  return Section(Get(key), Full(key), faults_, LineOf(key));
}

void Section::Fault(const std::string& key, const std::string& what) {
  faults_->Add(LineOf(key), Full(key), what);
}

template <typename T>
std::optional<T> Section::Scalar(const std::string& key, const char* expected) {
  const YAML::Node node = Get(key);
  if (!node.IsDefined()) return std::nullopt;
  // The type is decided by the reader of the key, as YAML has no types of its own here.
  T value;
  if (node.IsScalar() && YAML::convert<T>::decode(node, value)) return value;
  Fault(key, absl::StrCat("expected ", expected));
  return std::nullopt;
}

std::string Section::Text(const std::string& key, const std::string& fallback) {
  return Scalar<std::string>(key, "text").value_or(fallback);
}

std::string Section::OneOf(const std::string& key, const std::string& fallback,
                           const std::vector<std::string>& values) {
  const std::string value = Text(key, fallback);
  if (std::find(values.begin(), values.end(), value) != values.end()) return value;
  // The fallback keeps the rest of the section readable.
  Fault(key, absl::StrCat("'", value, "' is not one of ", absl::StrJoin(values, ", ")));
  return fallback;
}

bool Section::Flag(const std::string& key, bool fallback) {
  return Scalar<bool>(key, "true or false").value_or(fallback);
}

int64_t Section::Integer(const std::string& key, int64_t fallback, int64_t least, int64_t most) {
  const std::optional<double> value = Scalar<double>(key, "a whole number");
  if (!value.has_value()) return fallback;
  int64_t exact = 0;
  // 1e3 is a whole number, too; a double has not all digits of the larger ones.
  const bool digits = absl::SimpleAtoi(Get(key).Scalar(), &exact);
  // Beyond 2^63 the conversion below would be undefined.
  const bool whole = digits || (*value == std::floor(*value) && std::abs(*value) < 0x1p63);
  if (whole && !digits) exact = static_cast<int64_t>(*value);
  if (whole && exact >= least && exact <= most) return exact;
  // The upper bound is named where it was broken, or where it is a real limit.
  const bool above = *value > static_cast<double>(least);
  Fault(key, absl::StrCat(
                 "expected a whole number of at least ", least,
                 above || most < (int64_t{1} << 40) ? absl::StrCat(" and at most ", most) : ""));
  return fallback;
}

double Section::Number(const std::string& key, double fallback, double least, double most) {
  const std::optional<double> value = Scalar<double>(key, "a number");
  if (!value.has_value()) return fallback;
  // The negation also excludes NaN.
  if (!(*value >= least && *value <= most)) {
    Fault(key, absl::StrCat("expected a number from ", least, " to ", most));
    return fallback;
  }
  return *value;
}

double Section::Seconds(const std::string& key, double fallback) {
  const std::string text = Text(key, "");
  if (text.empty()) return fallback;
  static constexpr std::pair<char, double> kUnits[] = {
      {'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
  std::string digits = text;
  // A number without a unit counts as seconds.
  double unit = 1;
  for (const auto& [letter, seconds] : kUnits) {
    if (digits.back() != letter) continue;
    unit = seconds;
    digits.pop_back();
    break;
  }
  double value = 0;
  // SimpleAtod accepts "inf" and "nan", which are no durations.
  if (!absl::SimpleAtod(digits, &value) || !std::isfinite(value) || value < 0) {
    Fault(key, absl::StrCat("'", text, "' is not a duration; write 30s, 5m or 2h"));
    return fallback;
  }
  return value * unit;
}

void Section::Finish() {
  if (!node_.IsDefined() || !node_.IsMap()) return;
  for (const auto& entry : node_) {
    const std::string key = entry.first.Scalar();
    // Keys of a wrong place are unknown there and would be ignored by a lenient reader.
    if (known_.contains(key)) continue;
    const std::string nearest =
        // Any distance is accepted: the suggestion only helps, it decides nothing.
        Nearest(key, {known_.begin(), known_.end()}, std::numeric_limits<int>::max());
    faults_->Add(entry.first.Mark().line + 1, Full(key),
                 absl::StrCat("unknown key", nearest.empty() ? "" : "; did you mean '", nearest,
                              nearest.empty() ? "" : "'?"));
  }
}

std::string ResolvePath(const std::string& text, const std::string& directory) {
  const std::filesystem::path path = text;
  return (path.is_absolute() ? path : std::filesystem::path(directory) / path)
      .lexically_normal()
      .string();
}

std::string NotYet(const std::string& what) {
  return absl::StrCat(what, " is not supported by this version");
}

}  // namespace tercio::config
