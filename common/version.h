// The version that all programs report.
#pragma once

namespace tercio {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace tercio
