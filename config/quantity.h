// Numbers with a unit, as people write them in files: "300GB/s", "200 Gb/s", "80GiB", "312TFLOPS",
// "5us", "30d". Pure.
#pragma once

#include <optional>
#include <string_view>

namespace tercio::config {

// All give nullopt where the text is no number, or has another unit. A text without a unit is in
// bytes, bytes a second, operations a second or seconds.

// B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of 1024).
std::optional<double> ParseBytes(std::string_view text);
// The same in a second: "/s". A small b is a bit: 200Gb/s are 25GB/s.
std::optional<double> ParseBytesPerSecond(std::string_view text);
// "312T", "312TFLOPS", "312 TFLOP/s", and with G and P.
std::optional<double> ParseFlops(std::string_view text);
// ns, us, ms, s.
std::optional<double> ParseShortTime(std::string_view text);
// s, m (minutes), h, d, y (of 365.25 days); ms.
std::optional<double> ParseDuration(std::string_view text);

}  // namespace tercio::config
