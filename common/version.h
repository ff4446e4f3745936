// The version that all programs report.
#pragma once

namespace tercio {

inline constexpr char kVersion[] = "0.1.0";
inline constexpr char kCommit[] = "unknown";

}  // namespace tercio
