#include "config/quantity.h"

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace tercio::config {
namespace {

struct Quantity {
  double number = 0;
  absl::string_view unit;
};

std::optional<Quantity> Split(std::string_view given) {
  const absl::string_view text =
      absl::StripAsciiWhitespace(absl::string_view(given.data(), given.size()));
  size_t end = 0;
  while (end < text.size() &&
         (absl::ascii_isdigit(static_cast<unsigned char>(text[end])) ||
          absl::StrContains(".+-", text.substr(end, 1)) ||
          // "1e9" has an exponent, "1E" would be a unit that nobody writes.
          (text[end] == 'e' && end + 1 < text.size() && text[end + 1] != 'B'))) {
    ++end;
  }
  Quantity quantity;
  if (!absl::SimpleAtod(text.substr(0, end), &quantity.number) || !std::isfinite(quantity.number)) {
    return std::nullopt;
  }
  quantity.unit = absl::StripLeadingAsciiWhitespace(text.substr(end));
  return quantity;
}

std::optional<double> FactorOfBytes(absl::string_view unit) {
  static constexpr std::array<std::pair<absl::string_view, double>, 11> kUnits = {{
      {"", 1},
      {"B", 1},
      {"kB", 1e3},
      {"KB", 1e3},
      {"MB", 1e6},
      {"GB", 1e9},
      {"TB", 1e12},
      {"KiB", 1024.0},
      {"MiB", 1024.0 * 1024},
      {"GiB", 1024.0 * 1024 * 1024},
      {"TiB", 1024.0 * 1024 * 1024 * 1024},
  }};
  for (const auto& [name, factor] : kUnits) {
    if (unit == name) return factor;
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> ParseBytes(std::string_view text) {
  const std::optional<Quantity> quantity = Split(text);
  if (!quantity.has_value()) return std::nullopt;
  const std::optional<double> factor = FactorOfBytes(quantity->unit);
  if (!factor.has_value()) return std::nullopt;
  return quantity->number * *factor;
}

std::optional<double> ParseBytesPerSecond(std::string_view text) {
  const std::optional<Quantity> quantity = Split(text);
  if (!quantity.has_value()) return std::nullopt;
  absl::string_view unit = quantity->unit;
  if (!unit.empty() && !absl::ConsumeSuffix(&unit, "/s") && !absl::ConsumeSuffix(&unit, "ps")) {
    return std::nullopt;
  }
  double bits = 1;
  std::string of_bytes(unit);
  if (absl::EndsWith(unit, "b") || absl::EndsWith(unit, "bit")) {
    bits = 8;
    of_bytes = std::string(unit.substr(0, unit.find('b'))) + "B";
  }
  const std::optional<double> factor = FactorOfBytes(of_bytes);
  if (!factor.has_value()) return std::nullopt;
  return quantity->number * *factor / bits;
}

std::optional<double> ParseFlops(std::string_view text) {
  const std::optional<Quantity> quantity = Split(text);
  if (!quantity.has_value()) return std::nullopt;
  absl::string_view unit = quantity->unit;
  for (const absl::string_view name : {"FLOPS", "FLOP/s", "flops", "flop/s"}) {
    if (absl::ConsumeSuffix(&unit, name)) break;
  }
  if (unit.empty()) return quantity->number;
  if (unit == "G") return quantity->number * 1e9;
  if (unit == "T") return quantity->number * 1e12;
  if (unit == "P") return quantity->number * 1e15;
  return std::nullopt;
}

std::optional<double> ParseShortTime(std::string_view text) {
  const std::optional<Quantity> quantity = Split(text);
  if (!quantity.has_value()) return std::nullopt;
  if (quantity->unit.empty() || quantity->unit == "s") return quantity->number;
  if (quantity->unit == "ms") return quantity->number / 1e3;
  if (quantity->unit == "us") return quantity->number / 1e6;
  if (quantity->unit == "ns") return quantity->number / 1e9;
  return std::nullopt;
}

std::optional<double> ParseDuration(std::string_view text) {
  static constexpr std::array<std::pair<absl::string_view, double>, 7> kUnits = {{
      {"", 1},
      {"ms", 1e-3},
      {"s", 1},
      {"m", 60},
      {"h", 3600},
      {"d", 86400},
      {"y", 365.25 * 86400},
  }};
  const std::optional<Quantity> quantity = Split(text);
  if (!quantity.has_value()) return std::nullopt;
  for (const auto& [name, seconds] : kUnits) {
    if (quantity->unit == name) return quantity->number * seconds;
  }
  return std::nullopt;
}

}  // namespace tercio::config
