#include "data/jsonl.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace tercio::data {
namespace {

// Picks members out of the stream of parsing events. With `only_text` a value that is not a text is
// an error.
class MemberFinder : public nlohmann::json::json_sax_t {
 public:
  MemberFinder(absl::Span<const std::string> keys, bool only_text)
      : keys_(keys), only_text_(only_text), found_(keys.size()) {}

  bool null() override {
    // A null counts as a missing member, unless the text itself must be there.
    if (depth_ == 0 || only_text_) return Value("null");
    if (wanted_.has_value()) found_[*wanted_].reset();
    wanted_.reset();
    return true;
  }
  bool boolean(bool) override { return Value("true or false"); }
  bool number_integer(number_integer_t value) override { return Number(value); }
  // The parser reports all numbers without a sign here, so those that fit are ordinary ones.
  bool number_unsigned(number_unsigned_t value) override {
    return value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
               ? Value("a number above 2^63-1")
               : Number(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t, const string_t&) override {
    return Value(only_text_ ? "a number" : "a number with a fraction");
  }
  bool binary(binary_t&) override { return Value("binary data"); }
  bool string(string_t& value) override {
    // A text that nobody asked for is skipped, and only at the top of the line a fault.
    if (!wanted_.has_value()) return Value("text");
    found_[*wanted_] = std::move(value);
    wanted_.reset();
    return true;
  }
  bool key(string_t& name) override {
    // Only members of the outermost object count: a nested object may have the same keys.
    wanted_.reset();
    const auto known = depth_ == 1 ? std::find(keys_.begin(), keys_.end(), name) : keys_.end();
    if (known != keys_.end()) wanted_ = static_cast<size_t>(known - keys_.begin());
    return true;
  }
  bool start_object(std::size_t) override {
    // The value is judged at the depth at which it stands, before its members are entered.
    if (!Value("an object")) return false;
    ++depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    if (!Value("a list")) return false;
    ++depth_;
    return true;
  }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    // The parser's own text quotes the line, which may be long and no business of a log.
    fault_ = absl::StrCat("not valid JSON at byte ", position);
    return false;
  }

  absl::StatusOr<std::vector<std::optional<JsonValue>>> Take() && {
    if (!fault_.empty()) return absl::InvalidArgumentError(fault_);
    return std::move(found_);
  }

 private:
  // A number at the top is as wrong as any other value there, though it may be wanted elsewhere.
  bool Number(int64_t value) {
    if (depth_ == 0 || only_text_ || !wanted_.has_value()) return Value("a number");
    found_[*wanted_] = value;
    wanted_.reset();
    return true;
  }
  // Handles a value of an unwanted type: at the top only an object is allowed.
  bool Value(const char* what) {
    if (depth_ == 0 && std::string_view(what) != "an object") {
      fault_ = absl::StrCat("the line is ", what, ", expected an object");
    } else if (wanted_.has_value()) {
      fault_ = absl::StrCat("the value of '", keys_[*wanted_], "' is ", what, ", expected text",
                            only_text_ ? "" : " or a whole number");
    }
    return fault_.empty();
  }
  bool End() {
    --depth_;
    return true;
  }

  absl::Span<const std::string> keys_;
  bool only_text_;
  std::vector<std::optional<JsonValue>> found_;
  int64_t depth_ = 0;
  std::optional<size_t> wanted_;
  std::string fault_;
};

}  // namespace

absl::StatusOr<std::vector<std::optional<JsonValue>>> MembersOfJsonLine(
    std::string_view line, absl::Span<const std::string> keys) {
  // The parser passes events instead of building a tree, for a line may have large members that
  // nobody wants.
  MemberFinder finder(keys, /*only_text=*/false);
  nlohmann::json::sax_parse(line.begin(), line.end(), &finder);
  return std::move(finder).Take();
}

absl::StatusOr<std::string> TextOfJsonLine(std::string_view line, std::string_view key) {
  const std::string wanted(key);
  MemberFinder finder({&wanted, 1}, /*only_text=*/true);
  nlohmann::json::sax_parse(line.begin(), line.end(), &finder);
  TERCIO_ASSIGN_OR_RETURN(auto found, std::move(finder).Take());
  if (!found[0].has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the object has no key '", wanted, "'; name the key of the text with data.text_key"));
  }
  // With only_text no value but a text was ever stored, so this access cannot fail.
  return std::get<std::string>(*std::move(found[0]));
}

std::string SkippedLinesNotice(int64_t lines, std::string_view first) {
  if (lines == 1) return absl::StrCat("1 line was skipped: ", std::string(first));
  return absl::StrCat(lines, " lines were skipped, the first is ", std::string(first));
}

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace tercio::data
