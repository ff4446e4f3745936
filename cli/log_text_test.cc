#include "cli/log_text.h"

#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

std::string Shown(const std::string& text) {
  v1::LogLine line;
  line.set_attempt(2);
  line.set_rank(11);
  line.set_line(text);
  return LogText(line);
}

TEST(LogText, ShowsWhatIsNotKnownAlready) {
  EXPECT_EQ(Shown("time=2026-05-01T12:00:00.250Z level=warning program=trainer msg=\"it is slow\" "
                  "peer=3 job=job-1 attempt=2 rank=11"),
            "[2.11] 2026-05-01T12:00:00.250Z warning it is slow peer=3");
  EXPECT_EQ(Shown("NCCL INFO x=3"), "[2.11] NCCL INFO x=3");
  EXPECT_EQ(Shown(""), "[2.11] ");
}

TEST(LogText, NothingMovesTheCursor) {
  EXPECT_EQ(Shown("\x1b[2Jgone\x07\ta\r"), "[2.11] ?[2Jgone?\ta?");
  EXPECT_EQ(Shown("time=2026-05-01T12:00:00.250Z level=info program=t msg=\"a\\nb\\u001b[2J\""),
            "[2.11] 2026-05-01T12:00:00.250Z info a?b?[2J");
}

TEST(LogText, Since) {
  const absl::Time now = absl::FromUnixSeconds(1'777'636'800);
  EXPECT_EQ(*SinceTime("5m", now), now - absl::Minutes(5));
  EXPECT_EQ(*SinceTime("1h30m", now), now - absl::Minutes(90));
  EXPECT_EQ(*SinceTime("2026-05-01T11:00:00Z", now), now - absl::Hours(1));
  EXPECT_EQ(*SinceTime("2026-05-01T13:00:00+02:00", now), now - absl::Hours(1));
  for (const char* bad : {"", "5", "yesterday", "-5m", "5 m"}) {
    EXPECT_EQ(SinceTime(bad, now).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace tercio::cli
