// Texts of YAML files before they are parsed, and of numbers in them. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tercio::config {

// Such a file has a few hundred bytes; anything much larger is some other file.
inline constexpr size_t kMostYamlBytes = size_t{1} << 20;

// INVALID_ARGUMENT, NAME:LINE, for bytes that are not UTF-8: neither messages nor YAML can hold
// them.
absl::Status CheckUtf8(std::string_view text, const std::string& name);

// The line where a second document begins, which YAML::Load would ignore; 0: there is none.
// YAML::Exception for text that is not YAML.
int LineOfSecondDocument(const std::string& text);

// The shortest text that reads back as the same number.
std::string Number(double value);

}  // namespace tercio::config
