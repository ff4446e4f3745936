// One line per event on stderr, with a time, a level, the program, a text, and fields that identify
// what it is about: job, attempt, rank, node. Secrets must never be in it.
//
// Three formats, the same line in each:
//
//   2026-05-01T12:00:00.000Z warning agent rank 3 has gone job=job-1 rank=3
//
//   time=2026-05-01T12:00:00.000Z level=warning program=agent msg="rank 3 has gone" job=job-1
//   rank=3
//
//   {"time":"2026-05-01T12:00:00.000Z","level":"warning","program":"agent","msg":"rank 3 has gone",
//    "job":"job-1","rank":3}
//
// A line of logfmt or JSON is always one line, whatever its text contains. No format lets control
// characters through, which would act on the reader's terminal.
//
// Threads: all functions from any thread; configure before the first line.
// A line that cannot be written (the disk is full) is dropped and counted; nothing waits for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/time/time.h"

namespace tercio {

enum class LogLevel { kInfo, kWarning, kError };
enum class LogFormat { kText, kLogfmt, kJson };

struct LogField {
  LogField(std::string_view name, std::string_view text) : key(name), value(text), quoted(true) {}
  template <typename Number, typename = std::enable_if_t<std::is_integral_v<Number>>>
  LogField(std::string_view name, Number number)
      : key(name), value(std::to_string(number)), quoted(false) {}

  std::string key;  // a plain word
  std::string value;
  bool quoted;  // text, in JSON a string
};
using LogFields = std::vector<LogField>;

// Called once, first. `program` is part of every line. Text on a terminal, logfmt elsewhere, from
// kInfo on.
void InitLogging(std::string_view program);
void SetLogFormat(LogFormat format);
void SetLogLevel(LogLevel least);
// Fields that are appended to every line.
void SetLogContext(LogFields context);

void LogInfo(std::string_view text, const LogFields& fields = {});
void LogWarning(std::string_view text, const LogFields& fields = {});
void LogError(std::string_view text, const LogFields& fields = {});

// Lines that could not be written since the start.
int64_t LostLogLines();

// ---- pure ----

struct LogEntry {
  absl::Time time;
  LogLevel level = LogLevel::kInfo;
  std::string_view program;
  std::string_view text;
};
// Includes the end of the line. Bytes that are not UTF-8 become '?', control characters are
// escaped; in text they become '?', too, except for newlines and tabs.
std::string FormatLogLine(LogFormat format, const LogEntry& entry, const LogFields& fields,
                          const LogFields& context);

std::string_view NameOf(LogLevel level);  // "info"
std::optional<LogLevel> LogLevelNamed(std::string_view name);

// The level of a line in logfmt or JSON; nullopt for other lines.
std::optional<LogLevel> LevelOfLogLine(std::string_view line);

// The fields of a line in logfmt, in order; none where it is not a line of ours.
std::vector<std::pair<std::string, std::string>> ParseLogfmt(std::string_view line);

}  // namespace tercio
