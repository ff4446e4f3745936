#include "cli/completion.h"

#include "common/daemon/man_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A small command line like that of main.cc.
class CompletionTest : public ::testing::Test {
 protected:
  CompletionTest() : app_("Trains models.", "tercio") {
    CLI::App* get = app_.add_subcommand("get", "one job");
    get->add_option("-o,--output", text_, "format")->check(CLI::IsMember({"json", "jsonl"}));
    get->add_option("--coordinator", text_, "HOST:PORT")->envname("TERCIO_COORDINATOR");
    get->add_option("job", text_, "id or name")->required();
    get->footer("Example:\n  tercio get job-1 -o json");
    app_.add_subcommand("generate", "a text");
    CLI::App* checkpoint = app_.add_subcommand("checkpoint", "checkpoints");
    checkpoint->require_subcommand(1);
    checkpoint->add_subcommand("list", "oldest first");
    CLI::App* submit = app_.add_subcommand("submit", "a job");
    submit->add_option("job_file", text_, "YAML")->required();
    app_.add_subcommand("secret", "hidden")->group("");
    CLI::App* plot = app_.add_subcommand("plot", "curves");
    plot->add_option("--x", text_, "step, tokens or time (default step)");
    plot->add_option("--smooth", text_, "means over so many steps, or none");
    plot->add_option("jobs", texts_, "jobs")->required();
  }

  std::vector<std::string> Words(const std::vector<std::string>& words) {
    std::vector<std::string> found;
    for (const Candidate& candidate : Complete(app_, words).candidates)
      found.push_back(candidate.word);
    return found;
  }

  CLI::App app_;
  std::string text_;
  std::vector<std::string> texts_;
};

TEST_F(CompletionTest, Verbs) {
  EXPECT_THAT(Words({"ge"}), ElementsAre("get", "generate"));
  EXPECT_THAT(Words({"checkpoint", ""}), ElementsAre("list"));
  EXPECT_THAT(Words({"se"}), ElementsAre());
}

TEST_F(CompletionTest, OptionsAndTheirValues) {
  EXPECT_THAT(Words({"get", "--co"}), ElementsAre("--coordinator"));
  EXPECT_THAT(Words({"get", "-o", ""}), ElementsAre("json", "jsonl"));
  EXPECT_THAT(Words({"get", "--output", "jsonl"}), ElementsAre("jsonl"));
  EXPECT_THAT(Words({"get", "--coordinator", ""}), ElementsAre());
  EXPECT_THAT(Words({"plot", "--x", "t"}), ElementsAre("tokens", "time"));
  EXPECT_THAT(Words({"plot", "--smooth", ""}), ElementsAre());
}

TEST_F(CompletionTest, NamesAndFiles) {
  EXPECT_EQ(Complete(app_, {"get", ""}).names, NameKind::kJob);
  EXPECT_EQ(Complete(app_, {"get", "-o", "json", "jo"}).names, NameKind::kJob);
  EXPECT_EQ(Complete(app_, {"get", "job-1", ""}).names, NameKind::kNone);
  EXPECT_TRUE(Complete(app_, {"submit", "jo"}).files);
  EXPECT_EQ(Complete(app_, {"plot", "a", "b", ""}).names, NameKind::kJob);
  EXPECT_TRUE(Complete(app_, {"plot", ""}).files);
  EXPECT_TRUE(Complete(app_, {}).candidates.size() > 3);
}

TEST_F(CompletionTest, ManualPages) {
  const CLI::App* get = app_.get_subcommand("get");
  const std::string page = ManPage(*get, {});
  EXPECT_THAT(page, HasSubstr(".TH TERCIO\\-GET 1"));
  EXPECT_THAT(page, HasSubstr("tercio\\-get \\- one job"));
  for (const char* section : {"NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS",
                              "ENVIRONMENT", "EXAMPLES", "SEE ALSO"}) {
    EXPECT_THAT(page, HasSubstr(std::string(".SH ") + section + "\n"));
  }
  EXPECT_THAT(page, HasSubstr("\\fB\\-o\\fR, \\fB\\-\\-output\\fR"));
  EXPECT_THAT(page, HasSubstr("\\fBTERCIO_COORDINATOR\\fR"));
  EXPECT_THAT(page, HasSubstr("tercio get job\\-1 \\-o json"));
  const std::string top = ManPage(app_, {});
  EXPECT_THAT(top, HasSubstr("\\fBtercio\\-checkpoint\\fR(1)"));
  EXPECT_THAT(top, Not(HasSubstr("secret")));
}

TEST(CompletionScript, AsksTheProgram) {
  for (const char* shell : {"bash", "zsh", "fish"})
    EXPECT_THAT(CompletionScript(shell), HasSubstr("__complete"));
}

}  // namespace
}  // namespace tercio::cli
