#include "common/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "gtest/gtest.h"

namespace tercio {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string Line(LogFormat format, std::string_view text, const LogFields& fields = {},
                 const LogFields& context = {}) {
  const absl::Time time = absl::FromUnixMillis(1'777'636'800'250);
  return FormatLogLine(format, {time, LogLevel::kWarning, "agent", text}, fields, context);
}

TEST(Log, Formats) {
  const LogFields fields = {{"job", "job-1"}, {"rank", 3}};
  EXPECT_EQ(Line(LogFormat::kText, "it has gone", fields),
            "2026-05-01T12:00:00.250Z warning agent it has gone job=job-1 rank=3\n");
  EXPECT_EQ(Line(LogFormat::kLogfmt, "it has gone", fields),
            "time=2026-05-01T12:00:00.250Z level=warning program=agent msg=\"it has gone\" "
            "job=job-1 rank=3\n");
  EXPECT_EQ(Line(LogFormat::kJson, "it has gone", fields),
            "{\"time\":\"2026-05-01T12:00:00.250Z\",\"level\":\"warning\",\"program\":\"agent\","
            "\"msg\":\"it has gone\",\"job\":\"job-1\",\"rank\":3}\n");
  EXPECT_EQ(Line(LogFormat::kLogfmt, "plain", {}, {{"attempt", 2}}),
            "time=2026-05-01T12:00:00.250Z level=warning program=agent msg=plain attempt=2\n");
}

// The name of a job cannot start a line of its own, or a field.
TEST(Log, NothingInATextEndsTheLineOrItsQuotes) {
  const std::string bad = "a\nlevel=error \"b\" \\ \x1b[31m\x7f \xff \xc3\xa9";
  for (const LogFormat format : {LogFormat::kLogfmt, LogFormat::kJson}) {
    const std::string line = Line(format, bad, {{"name", bad}});
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    EXPECT_EQ(line.find('\x1b'), std::string::npos);
    EXPECT_EQ(line.find('\xff'), std::string::npos);
    EXPECT_NE(line.find("\xc3\xa9"), std::string::npos);
  }
  // A single character that starts an escape sequence on some terminals.
  EXPECT_EQ(Line(LogFormat::kLogfmt,
                 "\xc2\x9b"
                 "2J")
                .find('\x9b'),
            std::string::npos);
  EXPECT_EQ(Line(LogFormat::kText, "two\nlines \x1b[2J\xff \xc3\xa9"),
            "2026-05-01T12:00:00.250Z warning agent two\nlines ?[2J? \xc3\xa9\n");
  const Pairs parsed = ParseLogfmt(Line(LogFormat::kLogfmt, bad, {{"name", "x=y"}}));
  ASSERT_EQ(parsed.size(), 5u);
  EXPECT_EQ(parsed[3].second, "a\nlevel=error \"b\" \\ ?[31m? ? \xc3\xa9");
  EXPECT_EQ(parsed[4], std::make_pair(std::string("name"), std::string("x=y")));
}

TEST(Log, ParsesWhatItWrites) {
  std::string line = Line(LogFormat::kLogfmt, "two words", {{"empty", ""}}, {{"rank", 0}});
  line.pop_back();
  EXPECT_EQ(ParseLogfmt(line), (Pairs{{"time", "2026-05-01T12:00:00.250Z"},
                                      {"level", "warning"},
                                      {"program", "agent"},
                                      {"msg", "two words"},
                                      {"empty", ""},
                                      {"rank", "0"}}));
  EXPECT_TRUE(ParseLogfmt("NCCL INFO ring=3").empty());
  EXPECT_TRUE(ParseLogfmt("").empty());
  // A line that is truncated anywhere does not crash the parser.
  for (size_t length = 0; length < line.size(); ++length) ParseLogfmt(line.substr(0, length));
}

TEST(Log, KnowsTheLevelOfALine) {
  for (const LogFormat format : {LogFormat::kLogfmt, LogFormat::kJson}) {
    const std::string line = Line(format, "level=error");
    EXPECT_EQ(LevelOfLogLine(line), LogLevel::kWarning);
    for (size_t length = 0; length < line.size(); ++length) LevelOfLogLine(line.substr(0, length));
  }
  for (const char* other : {"", "level=error", "time=now level=error", "Segmentation fault"}) {
    EXPECT_FALSE(LevelOfLogLine(other).has_value()) << other;
  }
  EXPECT_EQ(LogLevelNamed("error"), LogLevel::kError);
  EXPECT_FALSE(LogLevelNamed("loud").has_value());
}

// /dev/full behaves like a full disk.
TEST(Log, CountsWhatCannotBeWritten) {
  const int before = dup(STDERR_FILENO);
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  dup2(full, STDERR_FILENO);
  const int64_t lost = LostLogLines();
  LogInfo("one");
  LogError("two", {{"rank", 1}});
  SetLogLevel(LogLevel::kError);
  LogWarning("nobody wants this one");
  SetLogLevel(LogLevel::kInfo);
  dup2(before, STDERR_FILENO);
  close(before);
  close(full);
  EXPECT_EQ(LostLogLines() - lost, 2);
}

}  // namespace
}  // namespace tercio
