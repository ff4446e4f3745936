// Formats numbers for people.
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tercio::report {

inline constexpr char kNotKnown[] = "not known";

std::string SecondsText(double seconds);           // "12.3 ms", "4.1 s", "2 h 5 min"
std::string BytesText(double bytes);               // "12.4 MiB"
std::string PercentText(double share);             // "12.4 %"
std::string CountText(int64_t count);              // "1,234,567"
std::string RatioText(double value, double base);  // "1.52x"; empty if there is none
std::string TimeText(double seconds_since_1970);   // "2026-11-22 05:13:47 UTC"

// `text(*value)`, or "not known".
template <typename T, typename Text>
std::string OrNotKnown(const std::optional<T>& value, const Text& text) {
  return value.has_value() ? text(*value) : std::string(kNotKnown);
}

}  // namespace tercio::report
