#include "cli/report/texts.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/plot/scale.h"

namespace tercio::report {

std::string SecondsText(double seconds) {
  // A duration below zero comes from clocks that were set.
  if (!std::isfinite(seconds) || seconds < 0) return kNotKnown;
  // Two minutes in seconds are still read at a glance.
  if (seconds < 120) {
    const plot::Unit unit = plot::SecondsUnit(seconds);
    return absl::StrCat(plot::ShortText(seconds / unit.divisor), " ", unit.name);
  }
  const auto minutes = static_cast<int64_t>(seconds / 60);
  if (minutes < 120)
    return absl::StrCat(minutes, " min ", static_cast<int64_t>(seconds) % 60, " s");
  if (minutes < 72 * 60) return absl::StrCat(minutes / 60, " h ", minutes % 60, " min");
  return absl::StrCat(minutes / 1440, " d ", minutes / 60 % 24, " h");
}

std::string BytesText(double bytes) {
  // Memory is counted in powers of two.
  const plot::Unit unit = plot::BytesUnit(bytes);
  return absl::StrCat(plot::ShortText(bytes / unit.divisor), " ", unit.name);
}

std::string PercentText(double share) {
  // Small shares need another digit to differ.
  return absl::StrFormat("%.*f %%", std::abs(share) < 0.1 ? 2 : 1, 100 * share);
}

std::string CountText(int64_t count) {
  const std::string plain = absl::StrCat(count);
  std::string digits;
  for (size_t i = 0; i < plain.size(); ++i) {
    const size_t left = plain.size() - i;
    // A minus sign is no digit to be separated.
    if (i > 0 && left % 3 == 0 && plain[i - 1] != '-') digits += ',';
    digits += plain[i];
  }
  return digits;
}

std::string RatioText(double value, double base) {
  // Nothing is a multiple of zero.
  if (!std::isfinite(value) || !std::isfinite(base) || base == 0) return "";
  const double ratio = value / base;
  return absl::StrFormat("%.*f×", ratio < 10 ? 2 : 1, ratio);
}

std::string TimeText(double seconds_since_1970) {
  if (seconds_since_1970 <= 0) return kNotKnown;
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC",
                          absl::FromUnixSeconds(static_cast<int64_t>(seconds_since_1970)),
                          absl::UTCTimeZone());
}

}  // namespace tercio::report
