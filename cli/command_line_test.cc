#include "cli/command_line.h"

#include <optional>
#include <string>
#include <vector>

#include "common/exit_codes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

using ::testing::ElementsAre;

struct ShowOptions : GlobalOptions {
  std::string job;
  std::vector<int> ranks;
  std::vector<std::string> set;
  double seconds = 7;
  int64_t step = 0;
  uint64_t seed = 1;
  bool follow = false;
};

struct GroupOptions : GlobalOptions {};

struct OtherOptions : GlobalOptions {
  double seconds = 3;
};

// A command line of four verbs, the last two in groups, that note how they were called.
class CommandLineTest : public ::testing::Test {
 protected:
  CommandLineTest() : line_("tercio 1") {
    line_.AddVerb<ShowOptions>(
        {"show", "shows", "show job-1"},
        [this](const ShowOptions& options) {
          shown_ = options;
          return 42;
        },
        [](GlobalOptions& g, ShowOptions& o) {
          return Join({{{"-o", &g.output, "format", {Accepts(CLI::IsMember({"json"}))}}},
                       {{"job", &o.job, "job", {Required()}},
                        {"--rank", &o.ranks, "ranks", {SplitsAtCommas()}},
                        {"--set", &o.set, "changes", {Repeats()}},
                        {"--seconds", &o.seconds, "time", {Excludes("--rank")}},
                        {"--step", &o.step, "step", {Accepts(CLI::PositiveNumber)}},
                        {"--seed", &o.seed, "seed"},
                        {"-f,--follow", &o.follow, "follow"}}});
        });
    CLI::App* nodes = line_.AddVerb<GroupOptions>(
        {"nodes", "lists", ""}, [](const GroupOptions&) { return 43; },
        [](GlobalOptions& g, GroupOptions&) { return Format(g); });
    nodes->require_subcommand(0, 1);
    AddOther(nodes);
    AddOther(line_.AddGroup({"data", "groups", ""}, Format));
  }

  static OptionTable Format(GlobalOptions& g) { return {{"-o", &g.output, "format"}}; }

  void AddOther(CLI::App* group) {
    line_.AddVerb<OtherOptions>(
        {"other", "is another", ""},
        [this](const OtherOptions& options) {
          other_ = options;
          return 44;
        },
        [](GlobalOptions& g, OtherOptions& o) {
          return Join({Format(g), {{"--seconds", &o.seconds, "time"}}});
        },
        group);
  }

  CommandLine line_;
  std::optional<ShowOptions> shown_;
  std::optional<OtherOptions> other_;
};

TEST_F(CommandLineTest, FillsTheStructOfItsVerb) {
  EXPECT_EQ(line_.Run({"show", "job-1", "--rank", "1,2", "--set", "a=1", "--set", "b=2", "--step",
                       "5", "--seed", "9", "-f", "-o", "json"}),
            42);
  ASSERT_TRUE(shown_.has_value());
  EXPECT_EQ(shown_->job, "job-1");
  EXPECT_THAT(shown_->ranks, ElementsAre(1, 2));
  EXPECT_THAT(shown_->set, ElementsAre("a=1", "b=2"));
  EXPECT_EQ(shown_->seconds, 7);
  EXPECT_EQ(shown_->step, 5);
  EXPECT_EQ(shown_->seed, 9u);
  EXPECT_TRUE(shown_->follow);
  EXPECT_EQ(shown_->format(), Output::kJson);
}

TEST_F(CommandLineTest, TheLastValueCounts) {
  EXPECT_EQ(line_.Run({"show", "job-1", "--seconds", "1", "--seconds", "2"}), 42);
  EXPECT_EQ(shown_->seconds, 2);
}

TEST_F(CommandLineTest, AGlobalOptionOfAGroupCountsForItsVerbs) {
  EXPECT_EQ(line_.Run({"nodes", "-o", "json", "other", "--seconds", "4"}), 44);
  ASSERT_TRUE(other_.has_value());
  EXPECT_EQ(other_->format(), Output::kJson);
  EXPECT_EQ(other_->seconds, 4);
}

TEST_F(CommandLineTest, AGroupMayBeAVerb) {
  EXPECT_EQ(line_.Run({"nodes"}), 43);
  EXPECT_FALSE(other_.has_value());
  EXPECT_EQ(line_.Run({"data"}), kExitUsage);
}

TEST_F(CommandLineTest, WrongWordsAreUsageErrors) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{},
                                             {"shwo", "job-1"},
                                             {"show"},
                                             {"show", "job-1", "job-2"},
                                             {"show", "job-1", "--stpe", "5"},
                                             {"show", "job-1", "--step", "0"},
                                             {"show", "job-1", "--step", "five"},
                                             {"show", "job-1", "-o", "yaml"},
                                             {"show", "job-1", "--rank", "1", "--seconds", "2"}}) {
    EXPECT_EQ(line_.Run(words), kExitUsage);
  }
  EXPECT_FALSE(shown_.has_value());
  EXPECT_EQ(line_.Run({"help", "show"}), kExitOk);
}

}  // namespace
}  // namespace tercio::cli
