#include "cli/watch_view.h"

#include <cmath>
#include <limits>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNow = 1'777'636'800;

void AddRank(int tensor, int pipeline, int data, double wait, v1::JobStatus* job) {
  v1::RankView* rank = job->add_ranks();
  rank->set_rank(job->ranks_size() - 1);
  rank->set_tensor(tensor);
  rank->set_pipeline(pipeline);
  rank->set_data(data);
  if (wait < 0) return;
  v1::RankFigures* figures = rank->mutable_figures();
  figures->set_step(120 - pipeline);
  figures->set_elapsed_seconds(10);
  figures->mutable_phases()->set_wait(10 * wait);
  figures->set_resident_bytes(int64_t{48 + rank->rank()} << 20);
}

WatchState Running(int tensor = 2, int pipeline = 2, int data = 2) {
  WatchState state;
  state.now = kNow;
  v1::JobStatus& job = state.job;
  job.set_id("job-1");
  job.set_name("small");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_attempt(2);
  job.set_step(120);
  job.set_steps(400);
  job.set_loss(2.25);
  job.set_tokens_per_second(1000);
  job.set_eta_seconds(280);
  job.set_restarts(1);
  job.mutable_checkpoint()->mutable_committed_at()->set_seconds(static_cast<int64_t>(kNow) - 12);
  job.mutable_goodput()->set_total(100);
  job.mutable_goodput()->set_productive(90);
  job.mutable_goodput()->set_starting(7);
  job.mutable_goodput()->set_restarting(3);
  for (int p = 0; p < pipeline; ++p) {
    for (int d = 0; d < data; ++d) {
      for (int t = 0; t < tensor; ++t) AddRank(t, p, d, 0.1 + 0.2 * p + 0.1 * t, &job);
    }
  }
  for (int i = 0; i < 120; ++i) state.losses.push_back(6.25 - i * 4.0 / 119);
  v1::JobEvent event;
  event.mutable_time()->set_seconds(static_cast<int64_t>(kNow) - 30);
  event.set_kind("rank_exited");
  event.set_message("rank 3 was ended by signal 9\x1b[2J");
  state.events = {event};
  return state;
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

size_t Columns(const std::string& line) {
  size_t columns = 0;
  for (const char c : line) columns += static_cast<unsigned char>(c) >> 6 != 2 ? 1 : 0;
  return columns;
}

Screen Sized(int width, int height) {
  Screen screen;
  screen.width = width;
  screen.height = height;
  return screen;
}

TEST(WatchView, ShowsAJobOnOneScreen) {
  EXPECT_EQ(WatchView(Running(), Sized(110, 24)),
            "running  step 120/400  30.0%  loss 2.2500  1000 tok/s  ETA 4m40s  restarts 1  "
            "checkpoint 12s "
            "ago\n"
            "[███████████░░░░░░░░░░░░░░░░░░░░░░░░░░░]  small  job-1  attempt 2\n"
            "loss     █████▇▇▇▇▇▆▆▆▆▆▅▅▅▅▅▄▄▄▄▄▃▃▃▃▃▂▂▂▂▂▁▁▁▁▁  6.2500 to 2.2500 in 120 steps\n"
            "goodput  90.0% of 1m40s  starting 7s  restarting 3s\n"
            "\n"
            "         data 0 tensor 0  data 0 tensor 1  data 1 tensor 0  data 1 tensor 1  \n"
            "stage 0  r0 120 48M 10%   r1 120 49M 20%   r2 120 50M 10%   r3 120 51M 20%   \n"
            "stage 1  r4 119 52M 30%   r5 119 53M 40%   r6 119 54M 30%   r7 119 55M 40%   \n"
            "last events\n"
            "11:59:30  rank_exited  rank 3 was ended by signal 9?[2J");
}

TEST(WatchView, RanksThatDoNotFitBecomeStages) {
  const std::vector<std::string> lines = LinesOf(WatchView(Running(), Sized(70, 24)));
  EXPECT_EQ(lines[5], "stage 0      4 ranks  step 120 to 120  48M to 51M  wait 10% to 20%, le");
  EXPECT_EQ(lines[6], "stage 1      4 ranks  step 119 to 119  52M to 55M  wait 30% to 40%, le");
  const std::string many = WatchView(Running(1, 64, 1), Sized(100, 20));
  EXPECT_THAT(many, HasSubstr("stage 0      1 ranks"));
  EXPECT_THAT(many, HasSubstr(" more stages"));
}

// No state of a job makes the screen scroll.
TEST(WatchView, NeverExceedsTheScreen) {
  WatchState state = Running(8, 8, 4);
  state.job.set_error(std::string(500, 'e'));
  for (int i = 0; i < 20; ++i) {
    state.events.push_back(state.events[0]);
    state.job.add_last_lines()->set_line(std::string(300, 'w'));
  }
  for (int height = 1; height <= 40; ++height) {
    for (const int width : {1, 7, 20, 80, 300}) {
      const std::vector<std::string> lines = LinesOf(WatchView(state, Sized(width, height)));
      EXPECT_LE(lines.size(), static_cast<size_t>(height)) << width;
      for (const std::string& line : lines) {
        EXPECT_LE(Columns(line), static_cast<size_t>(width)) << line;
      }
    }
  }
}

TEST(WatchView, ColoursOnlyWhereTheyAreWanted) {
  Screen screen = Sized(110, 24);
  EXPECT_THAT(WatchView(Running(), screen), Not(HasSubstr("\x1b")));
  screen.colour = true;
  const std::string text = WatchView(Running(), screen);
  EXPECT_THAT(text, HasSubstr("\x1b[32mr0 120 48M 10%   \x1b[0m"));
  EXPECT_THAT(text, HasSubstr("\x1b[33mr4 119 52M 30%   \x1b[0m"));
  WatchState slow = Running();
  slow.job.mutable_ranks(0)->mutable_figures()->mutable_phases()->set_wait(8);
  EXPECT_THAT(WatchView(slow, screen), HasSubstr("\x1b[31mr0 120 48M 80%   \x1b[0m"));
}

TEST(WatchView, ShowsTheLastWordsOfTheRankAtFault) {
  WatchState state = Running();
  state.job.set_state(v1::JOB_STATE_FAILED);
  v1::LogLine* line = state.job.add_last_lines();
  line->set_rank(3);
  line->set_attempt(2);
  line->set_line("out of memory");
  EXPECT_THAT(WatchView(state, Sized(110, 24)),
              HasSubstr("last output of rank 3 (attempt 2)\n[2.3] out of memory"));
}

TEST(WatchView, AJobThatHasNothingYet) {
  WatchState state;
  state.job.set_state(v1::JOB_STATE_QUEUED);
  state.job.set_steps(10);
  state.job.set_error("waiting: needs 4 devices");
  const std::string text = WatchView(state, Sized(80, 24));
  EXPECT_THAT(text, HasSubstr("queued  step 0/10  0.0%  (waiting: needs 4 devices)"));
  EXPECT_THAT(text, HasSubstr("no step yet"));
  EXPECT_THAT(text, HasSubstr("no ranks yet"));
  AddRank(0, 0, 0, -1, &state.job);
  EXPECT_THAT(WatchView(state, Sized(80, 24)), HasSubstr("r0 -"));
}

TEST(Sparkline, MeansBetweenTheLowestAndTheHighest) {
  EXPECT_EQ(Sparkline({1, 2, 3, 4, 5, 6, 7, 8}, 8, Glyphs::kBlocks), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(Sparkline({8, 8, 1, 1}, 2, Glyphs::kBlocks), "█▁");
  EXPECT_EQ(Sparkline({8, 8, 1, 1}, 2, Glyphs::kAscii), "#_");
  EXPECT_EQ(Sparkline({3, 3, 3}, 10, Glyphs::kBlocks), "▁▁▁");
  EXPECT_EQ(Sparkline({}, 10, Glyphs::kBlocks), "");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Sparkline({1, std::nan(""), 2, -infinity, infinity}, 5, Glyphs::kBlocks), "▁█");
}

TEST(Bar, IsAsWideAsItIsToBe) {
  EXPECT_EQ(Bar(0.5, 12, Glyphs::kAscii), "[#####-----]");
  EXPECT_EQ(Bar(0, 4, Glyphs::kBlocks), "[░░]");
  EXPECT_EQ(Bar(2, 4, Glyphs::kAscii), "[##]");
  EXPECT_EQ(Bar(std::nan(""), 4, Glyphs::kAscii), "[--]");
}

}  // namespace
}  // namespace tercio::cli
