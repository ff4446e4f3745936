// One line per event on stderr: time, level, program, text. Thread-safe.
#pragma once

#include <string_view>

namespace tercio {

// Called once, first. `program` is part of every line.
void InitLogging(std::string_view program);

void LogInfo(std::string_view text);
void LogWarning(std::string_view text);
void LogError(std::string_view text);

}  // namespace tercio
