#include "checkpoint/huggingface/config_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tercio::checkpoint {
namespace {

using Json = nlohmann::json;

// Far above the sizes of real models; a matrix of two such sizes still has a number of bytes that
// fits into 64 bits.
constexpr int64_t kLargestSize = 1 << 24;

}  // namespace

int32_t ConfigReader::Size(const char* key) {
  if (!Has(key)) Damaged(absl::StrCat(key, " is missing"));
  return SizeOr(key, 1);
}

int32_t ConfigReader::SizeOr(const char* key, int64_t fallback) {
  if (!Has(key)) return static_cast<int32_t>(fallback);
  const Json& value = json_[key];
  if (!value.is_number_unsigned() || value.get<uint64_t>() < 1 ||
      value.get<uint64_t>() > static_cast<uint64_t>(kLargestSize)) {
    Damaged(absl::StrCat(key, " is ", Shown(value), ", expected a whole number from 1 to ",
                         kLargestSize));
    return 1;
  }
  return value.get<int32_t>();
}

double ConfigReader::NumberOr(const char* key, double fallback, double least, double most) {
  if (!Has(key)) return fallback;
  const Json& value = json_[key];
  // The comparisons are negated, so that NaN is refused, too.
  if (!value.is_number() || !(value.get<double>() >= least) || !(value.get<double>() <= most)) {
    Damaged(
        absl::StrCat(key, " is ", Shown(value), ", expected a number from ", least, " to ", most));
    return least;
  }
  return value.get<double>();
}

bool ConfigReader::FlagOr(const char* key, bool fallback) {
  if (!Has(key)) return fallback;
  if (!json_[key].is_boolean()) {
    Damaged(absl::StrCat(key, " is ", Shown(json_[key]), ", expected true or false"));
    return fallback;
  }
  return json_[key].get<bool>();
}

std::string ConfigReader::TextOr(const char* key, const std::string& fallback) {
  if (!Has(key)) return fallback;
  if (!json_[key].is_string()) {
    Damaged(absl::StrCat(key, " is ", Shown(json_[key]), ", expected a string"));
    return fallback;
  }
  return json_[key].get<std::string>();
}

void ConfigReader::Only(const char* key, bool value, bool fallback) {
  if (FlagOr(key, fallback) != value) {
    Unsupported(absl::StrCat(key, ": ", value ? "false" : "true"));
  }
}

void ConfigReader::OnlyText(const char* key, const std::string& fallback,
                            const std::vector<std::string>& values) {
  const std::string text = TextOr(key, fallback);
  if (std::find(values.begin(), values.end(), text) != values.end()) return;
  Unsupported(absl::StrCat(key, ": ", Shown(Json(text)),
                           " (supported: ", absl::StrJoin(values, ", "), ")"));
}

void ConfigReader::Without(std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (Has(key)) Unsupported(absl::StrCat(key, ": ", Shown(json_[key])));
  }
}

void ConfigReader::Damaged(const std::string& what) {
  damaged_ = true;
  faults_.push_back(what);
}

void ConfigReader::Unsupported(const std::string& what) {
  faults_.push_back(absl::StrCat(what, " is not supported by this version"));
}

void ConfigReader::Add(const ConfigReader& inner) {
  damaged_ = damaged_ || inner.damaged_;
  for (const std::string& fault : inner.faults_) {
    faults_.push_back(absl::StrCat(inner.path_, ": ", fault));
  }
}

absl::Status ConfigReader::status() const {
  if (faults_.empty()) return absl::OkStatus();
  const std::string message = absl::StrCat(path_, ": ", absl::StrJoin(faults_, "; "));
  return damaged_ ? absl::DataLossError(message) : absl::InvalidArgumentError(message);
}

std::string ConfigReader::Shown(const Json& value) {
  // Messages go to terminals and logs, which the escapes protect from the file's control
  // characters.
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

}  // namespace tercio::checkpoint
