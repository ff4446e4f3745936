#include "common/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "common/utf8.h"

namespace tercio {
namespace {

constexpr std::string_view kLevels[] = {"info", "warning", "error"};
// Both daemons' lines begin with the time, by which readers recognise them.
constexpr std::string_view kFirstKey = "time=";

struct Log {
  std::string program = "tercio";
  std::atomic<bool> format_chosen{false};
  std::atomic<LogFormat> format{LogFormat::kText};
  std::atomic<LogLevel> least{LogLevel::kInfo};
  LogFields context;
  Mutex mutex;  // serialises writes, so that lines do not mix
  std::atomic<int64_t> lost{0};
};

// Never destroyed: threads may log until the very end.
Log& TheLog() {
  static Log* const log = new Log;
  return *log;
}

// Quotes the text and escapes it as JSON requires.
void AppendQuoted(std::string_view text, std::string* out) {
  out->push_back('"');
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = DecodeUtf8(text, at);
    if (!point.valid) {
      out->push_back('?');
    } else if (point.code == '"' || point.code == '\\') {
      out->push_back('\\');
      out->push_back(text[at]);
    } else if (point.code == '\n') {
      out->append("\\n");
    } else if (point.code == '\t') {
      out->append("\\t");
    } else if (!IsPrintable(point)) {
      // JSON has no other way to write a control character.
      absl::StrAppendFormat(out, "\\u%04x", point.code);
    } else {
      out->append(text.substr(at, point.length));
    }
    at += point.length;
  }
  out->push_back('"');
}

bool IsPlain(std::string_view text) {
  // An empty value without quotes would look like a missing one.
  if (text.empty()) return false;
  for (const char c : text) {
    if (c <= ' ' || c > '~' || c == '"' || c == '\\' || c == '=') return false;
  }
  return true;
}

void AppendField(LogFormat format, std::string_view key, std::string_view value, bool quoted,
                 std::string* out) {
  if (format == LogFormat::kJson) {
    // The first field follows the brace.
    if (out->size() > 1) out->push_back(',');
    out->append("\"").append(key).append("\":");
    if (!quoted) return void(out->append(value));
    return AppendQuoted(value, out);
  }
  if (!out->empty()) out->push_back(' ');
  out->append(key).push_back('=');
  if (!IsPlain(value)) return AppendQuoted(value, out);
  out->append(value);
}

bool Consume(std::string_view* text, std::string_view prefix) {
  if (!text->starts_with(prefix)) return false;
  text->remove_prefix(prefix.size());
  return true;
}

bool WriteAll(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(STDERR_FILENO, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    // A log that cannot be written must not stop a daemon, and is counted instead.
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

void Write(LogLevel level, std::string_view text, const LogFields& fields) {
  Log& log = TheLog();
  // The check comes first, as most lines of a quiet daemon are below the level.
  if (level < log.least) return;
  const std::string line =
      FormatLogLine(log.format, {absl::Now(), level, log.program, text}, fields, log.context);
  MutexLock lock(log.mutex);
  // Nobody could be told of a lost line here; a metric shows the count.
  if (!WriteAll(line)) ++log.lost;
}

}  // namespace

std::string FormatLogLine(LogFormat format, const LogEntry& entry, const LogFields& fields,
                          const LogFields& context) {
  // UTC, so that lines of several machines can be merged.
  const std::string time =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", entry.time, absl::UTCTimeZone());
  std::string line;
  if (format == LogFormat::kText) {
    line.append(time).append(" ").append(NameOf(entry.level)).append(" ");
    line.append(entry.program).append(" ").append(ForDisplay(entry.text, "\n\t"));
  } else {
    if (format == LogFormat::kJson) line.push_back('{');
    AppendField(format, "time", time, true, &line);
    AppendField(format, "level", NameOf(entry.level), true, &line);
    AppendField(format, "program", entry.program, true, &line);
    AppendField(format, "msg", entry.text, true, &line);
  }
  // The context follows, since the fields of a line say what is special about it.
  for (const LogFields* some : {&fields, &context}) {
    for (const LogField& field : *some) {
      AppendField(format, field.key, field.value, field.quoted, &line);
    }
  }
  line.append(format == LogFormat::kJson ? "}\n" : "\n");
  return line;
}

std::string_view NameOf(LogLevel level) { return kLevels[static_cast<size_t>(level)]; }

std::optional<LogLevel> LogLevelNamed(std::string_view name) {
  for (size_t i = 0; i < std::size(kLevels); ++i) {
    if (kLevels[i] == name) return static_cast<LogLevel>(i);
  }
  return std::nullopt;
}

std::vector<std::pair<std::string, std::string>> ParseLogfmt(std::string_view line) {
  std::vector<std::pair<std::string, std::string>> fields;
  // Text without this beginning was not written by us.
  if (!line.starts_with(kFirstKey)) return fields;
  while (!line.empty()) {
    const size_t equals = line.find('=');
    // A line with a field that has no value is no line of ours.
    if (equals == std::string_view::npos) return {};
    std::string& value = fields.emplace_back(std::string(line.substr(0, equals)), "").second;
    line.remove_prefix(equals + 1);
    if (!line.starts_with('"')) {
      const size_t end = std::min(line.find(' '), line.size());
      value = std::string(line.substr(0, end));
      line.remove_prefix(std::min(end + 1, line.size()));
      continue;
    }
    size_t at = 1;
    for (; at < line.size() && line[at] != '"'; ++at) {
      // A backslash at the end belongs to a line that was cut.
      if (line[at] != '\\' || at + 1 >= line.size()) {
        value.push_back(line[at]);
        continue;
      }
      const char escaped = line[++at];
      if (escaped == 'u') {  // a control character, which is not shown
        value.push_back('?');
        at += 4;
      } else {
        value.push_back(escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped);
      }
    }
    if (at >= line.size()) return fields;  // the line was truncated
    line.remove_prefix(std::min(at + 2, line.size()));
  }
  return fields;
}

std::optional<LogLevel> LevelOfLogLine(std::string_view line) {
  // Both formats start with the time, whose length is fixed.
  constexpr size_t kTimeLength = sizeof("2026-05-01T12:00:00.000Z") - 1;
  std::string_view rest = line;
  std::string_view end;
  if (Consume(&rest, kFirstKey)) {
    // A time of another length makes the next check fail.
    rest.remove_prefix(std::min(rest.size(), kTimeLength));
    if (!Consume(&rest, " level=")) return std::nullopt;
    end = " ";
  } else if (Consume(&rest, "{\"time\":\"")) {
    rest.remove_prefix(std::min(rest.size(), kTimeLength));
    if (!Consume(&rest, "\",\"level\":\"")) return std::nullopt;
    end = "\"";
  } else {
    // Trainers may print anything: such a line has no level.
    return std::nullopt;
  }
  return LogLevelNamed(rest.substr(0, rest.find(end)));
}

void InitLogging(std::string_view program) {
  TheLog().program = std::string(program);
  // A format that was chosen stays, whichever is set up first.
  if (TheLog().format_chosen) return;
  // People read text; collectors read fields.
  TheLog().format = isatty(STDERR_FILENO) != 0 ? LogFormat::kText : LogFormat::kLogfmt;
}

void SetLogFormat(LogFormat format) {
  TheLog().format_chosen = true;
  TheLog().format = format;
}
void SetLogLevel(LogLevel least) { TheLog().least = least; }
void SetLogContext(LogFields context) { TheLog().context = std::move(context); }

void LogInfo(std::string_view text, const LogFields& fields) {
  Write(LogLevel::kInfo, text, fields);
}
void LogWarning(std::string_view text, const LogFields& fields) {
  Write(LogLevel::kWarning, text, fields);
}
void LogError(std::string_view text, const LogFields& fields) {
  Write(LogLevel::kError, text, fields);
}

int64_t LostLogLines() { return TheLog().lost; }

}  // namespace tercio
