#include "worker/data/jsonl.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tercio::data {
namespace {

// Picks the member out of the stream of parsing events.
class TextFinder : public nlohmann::json::json_sax_t {
 public:
  explicit TextFinder(std::string_view key) : key_(key) {}

  bool null() override { return Value("null"); }
  bool boolean(bool) override { return Value("true or false"); }
  bool number_integer(number_integer_t) override { return Value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return Value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Value("a number"); }
  bool binary(binary_t&) override { return Value("binary data"); }
  bool string(string_t& value) override {
    if (!wanted_) return Value("text");
    text_ = std::move(value);
    wanted_ = false;
    return true;
  }
  bool key(string_t& name) override {
    wanted_ = depth_ == 1 && name == key_;
    return true;
  }
  bool start_object(std::size_t) override {
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
    fault_ = absl::StrCat("not valid JSON at byte ", position);
    return false;
  }

  absl::StatusOr<std::string> Take() && {
    if (fault_.empty() && text_.has_value()) return *std::move(text_);
    return absl::InvalidArgumentError(
        fault_.empty() ? absl::StrCat("the object has no key '", key_,
                                      "'; name the key of the text with data.text_key")
                       : fault_);
  }

 private:
  // A value that is not the wanted text: at the top only an object will do.
  bool Value(const char* what) {
    if (depth_ == 0 && std::string_view(what) != "an object") {
      fault_ = absl::StrCat("the line is ", what, ", expected an object");
    } else if (wanted_) {
      fault_ = absl::StrCat("the value of '", key_, "' is ", what, ", expected text");
    }
    return fault_.empty();
  }
  bool End() {
    --depth_;
    return true;
  }

  std::string key_;
  int64_t depth_ = 0;
  bool wanted_ = false;
  std::optional<std::string> text_;
  std::string fault_;
};

}  // namespace

absl::StatusOr<std::string> TextOfJsonLine(std::string_view line, std::string_view key) {
  TextFinder finder(key);
  nlohmann::json::sax_parse(line.begin(), line.end(), &finder);
  return std::move(finder).Take();
}

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace tercio::data
