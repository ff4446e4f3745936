#include "cli/usage.h"

#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

class UsageTest : public ::testing::Test {
 protected:
  UsageTest() : app_("Trains models.", "tercio") {
    app_.require_subcommand(1);
    CLI::App* list = app_.add_subcommand("list", "all jobs");
    list->add_option("-o,--output", text_, "format");
    list->add_flag("-f,--follow", flag_, "go on");
    CLI::App* get = app_.add_subcommand("get", "one job");
    get->add_option("job", text_, "id or name")->required();
    app_.add_subcommand("plot", "curves")->add_option("jobs", texts_, "jobs");
    CLI::App* checkpoint = app_.add_subcommand("checkpoint", "checkpoints");
    checkpoint->require_subcommand(1);
    checkpoint->add_subcommand("verify", "read every byte")->add_option("job", text_, "job");
    CLI::App* nodes = app_.add_subcommand("nodes", "the nodes");
    nodes->require_subcommand(0, 1);
    nodes->add_subcommand("drain", "no new ranks")->add_option("node", text_, "node");
  }

  std::string Fault(const std::vector<std::string>& words) { return MisplacedWord(app_, words); }

  CLI::App app_;
  std::string text_;
  std::vector<std::string> texts_;
  bool flag_ = false;
};

TEST_F(UsageTest, VerbsThatThereAreNot) {
  EXPECT_EQ(Fault({"lst"}), "tercio has no verb 'lst'; did you mean 'list'?");
  EXPECT_EQ(Fault({"frobnicate", "--help"}), "tercio has no verb 'frobnicate'");
  EXPECT_EQ(Fault({"nodes", "drian", "n"}),
            "tercio nodes has no verb 'drian'; did you mean 'drain'?");
  EXPECT_EQ(Fault({"checkpoint", "frobnicate"}),
            "tercio checkpoint has no verb 'frobnicate'; it has verify");
  EXPECT_EQ(Fault({"checkpoint"}), "tercio checkpoint needs a verb: verify");
}

TEST_F(UsageTest, OptionsThatThereAreNot) {
  EXPECT_EQ(Fault({"list", "--outptu", "json"}),
            "tercio list has no option --outptu; did you mean '--output'?");
  EXPECT_EQ(Fault({"list", "--outptu=json"}),
            "tercio list has no option --outptu; did you mean '--output'?");
  EXPECT_EQ(Fault({"get", "x", "-z"}), "tercio get has no option -z");
  EXPECT_EQ(Fault({"--jsno"}), "tercio has no option --jsno");
}

TEST_F(UsageTest, WordsThatAreTooMany) {
  EXPECT_EQ(Fault({"list", "extra"}), "tercio list does not take 'extra': it takes no arguments");
  EXPECT_EQ(Fault({"get", "a", "b"}), "tercio get does not take 'b'");
}

TEST_F(UsageTest, WhatHasItsPlace) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{},
                                             {"list", "-o", "json"},
                                             {"list", "-ojson", "-f"},
                                             {"list", "--output=json"},
                                             {"list", "--output", "--strange"},
                                             {"get", "list"},
                                             {"get", "--", "-x"},
                                             {"plot", "a", "b", "c"},
                                             {"nodes"},
                                             {"checkpoint", "--help"},
                                             {"nodes", "drain", "x"}}) {
    EXPECT_EQ(Fault(words), "");
  }
  EXPECT_EQ(FullName(VerbNamed(app_, {"checkpoint", "verify", "x"})), "tercio checkpoint verify");
}

}  // namespace
}  // namespace tercio::cli
