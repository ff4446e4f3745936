#include "cli/commands/plan_options.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/command_line.h"
#include "cli/commands/verbs.h"
#include "common/daemon/man_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

using ::testing::HasSubstr;

constexpr PlanMode kModes[] = {PlanMode::kLayouts,   PlanMode::kTensors, PlanMode::kProgram,
                               PlanMode::kEffective, PlanMode::kCluster, PlanMode::kJob};

// Gives an option, as the command line does.
const std::map<std::string, std::function<void(PlanOptions*)>>& Setters() {
  static const auto* setters = new std::map<std::string, std::function<void(PlanOptions*)>>{
      {"--output", [](PlanOptions* o) { o->output = "json"; }},
      {"--coordinator", [](PlanOptions* o) { o->coordinator = "host:1"; }},
      {"--tls-cert", [](PlanOptions* o) { o->tls.certificate = "c.pem"; }},
      {"--tls-key", [](PlanOptions* o) { o->tls.key = "k.pem"; }},
      {"--tls-ca", [](PlanOptions* o) { o->tls.authority = "a.pem"; }},
      {"--state-dir", [](PlanOptions* o) { o->state_dir = "state"; }},
      {"job_file", [](PlanOptions* o) { o->job_file = "job.yaml"; }},
      {"--set", [](PlanOptions* o) { o->set = {"name=x"}; }},
      {"--job", [](PlanOptions* o) { o->job = "job-1"; }},
      {"--ranks", [](PlanOptions* o) { o->ranks = 2; }},
      {"--cluster", [](PlanOptions* o) { o->cluster = "c.yaml"; }},
      {"--what-if", [](PlanOptions* o) { o->what_if = {"nodes=2"}; }},
      {"--explain", [](PlanOptions* o) { o->explain = "1x1x1"; }},
      {"--compare",
       [](PlanOptions* o) {
         o->compare = {"1x1x1", "1x1x2"};
       }},
      {"--tokens", [](PlanOptions* o) { o->tokens = 1; }},
      {"--scale", [](PlanOptions* o) { o->scale = {8}; }},
      {"--weak", [](PlanOptions* o) { o->weak = true; }},
      {"--largest", [](PlanOptions* o) { o->largest = true; }},
      {"--simulate", [](PlanOptions* o) { o->simulate = "30d"; }},
      {"--seed", [](PlanOptions* o) { o->seed = 0; }},
      {"--svg", [](PlanOptions* o) { o->svg = "s.svg"; }},
      {"--timeline", [](PlanOptions* o) { o->timeline = "t.json"; }},
      {"--effective", [](PlanOptions* o) { o->effective = true; }},
      {"--explain-tensors", [](PlanOptions* o) { o->explain_tensors = true; }},
      {"--program", [](PlanOptions* o) { o->program = true; }},
  };
  return *setters;
}

// "--cluster" of "--cluster CLUSTER.yaml".
std::string NameOf(const std::string& option) {
  const std::vector<std::string> words = absl::StrSplit(option, ' ');
  return words.front();
}

void Give(const std::string& name, PlanOptions* options) { Setters().at(name)(options); }

// What asks for a mode, and nothing else.
PlanOptions Asking(PlanMode mode) {
  PlanOptions options;
  if (mode != PlanMode::kJob) Give("job_file", &options);
  if (mode != PlanMode::kLayouts) Give(NameOf(OptionOf(mode)), &options);
  return options;
}

bool HasEffect(const PlanOption& option, PlanMode mode) {
  return std::find(option.modes.begin(), option.modes.end(), mode) != option.modes.end();
}

class PlanOptionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"TERCIO_COORDINATOR", "TERCIO_TLS_CERT", "TERCIO_TLS_KEY", "TERCIO_TLS_CA"}) {
      unsetenv(name);
    }
  }
};

// An option that is added to the verb has to be added to the table.
TEST_F(PlanOptionsTest, TheTableHasEveryOptionOfTheVerb) {
  CommandLine line("tercio 1");
  DeclareVerbs(line);
  std::vector<std::string> declared;
  for (const CLI::App* verb : VerbsOf(line.app())) {
    if (verb->get_name() != "plan") continue;
    for (const CLI::Option* option : verb->get_options()) {
      if (option == verb->get_help_ptr() || option == verb->get_help_all_ptr()) continue;
      declared.push_back(option->get_lnames().empty()
                             ? option->get_name(/*positional=*/true)
                             : absl::StrCat("--", option->get_lnames().front()));
    }
  }
  std::vector<std::string> known;
  for (const PlanOption& option : AllPlanOptions()) known.emplace_back(option.name);
  EXPECT_EQ(known, declared);
}

TEST_F(PlanOptionsTest, EachRowKnowsWhenItsOptionIsGiven) {
  ASSERT_EQ(Setters().size(), AllPlanOptions().size());
  for (const PlanOption& row : AllPlanOptions()) {
    EXPECT_FALSE(row.given(PlanOptions())) << row.name;
    for (const auto& [name, give] : Setters()) {
      PlanOptions options;
      give(&options);
      EXPECT_EQ(row.given(options), name == row.name) << row.name << " with " << name;
    }
  }
}

TEST_F(PlanOptionsTest, WhatHasNoEffectIsRefused) {
  for (const PlanMode mode : kModes) {
    const std::string asks = OptionOf(mode);
    EXPECT_TRUE(CheckPlanOptions(Asking(mode)).ok()) << asks;
    for (const PlanOption& row : AllPlanOptions()) {
      const std::string name = row.name;
      // These two choose what there is a plan of, and options that ask for a mode ask for it.
      if (name == "job_file" || name == "--job" || name == NameOf(asks)) continue;
      PlanOptions options = Asking(mode);
      Give(name, &options);
      if (row.needs[0] != '\0') Give(NameOf(row.needs), &options);
      const absl::Status status = CheckPlanOptions(options);
      const bool asks_too = row.modes.size() == 1 && NameOf(OptionOf(row.modes[0])) == name;
      // An option that asks for a mode has that effect where nothing else asks for one.
      const bool expected = HasEffect(row, mode) || (asks_too && mode == PlanMode::kLayouts);
      EXPECT_EQ(status.ok(), expected) << name << " with " << asks << ": " << status;
      if (!expected) {
        EXPECT_THAT(status.message(), HasSubstr("has no effect"));
        EXPECT_THAT(status.message(), HasSubstr("leave"));
      }
    }
  }
}

TEST_F(PlanOptionsTest, SomeOptionsNeedAnother) {
  int some = 0;
  for (const PlanOption& row : AllPlanOptions()) {
    const std::string needed = row.needs;
    if (needed.empty()) continue;
    ++some;
    ASSERT_EQ(row.modes.size(), 1U) << row.name;
    PlanOptions options = Asking(row.modes[0]);
    Give(row.name, &options);
    EXPECT_EQ(CheckPlanOptions(options).message(),
              absl::StrCat(row.name, " has no effect without ", needed, "; add it, or leave ",
                           row.name, " out"));
    Give(NameOf(needed), &options);
    EXPECT_TRUE(CheckPlanOptions(options).ok()) << row.name;
  }
  EXPECT_EQ(some, 2);
}

TEST_F(PlanOptionsTest, ErrorsSayWhatToAdd) {
  PlanOptions options = Asking(PlanMode::kLayouts);
  Give("--tokens", &options);
  EXPECT_EQ(CheckPlanOptions(options).message(),
            "--tokens has no effect without --cluster CLUSTER.yaml; add it, or leave --tokens out");
  options = Asking(PlanMode::kCluster);
  Give("--ranks", &options);
  EXPECT_EQ(CheckPlanOptions(options).message(),
            "--ranks has no effect with --cluster CLUSTER.yaml; leave one of the two out");
}

TEST_F(PlanOptionsTest, AJobOrAJobFileIsNeeded) {
  EXPECT_THAT(CheckPlanOptions(PlanOptions()).message(), HasSubstr("give one of them"));
  PlanOptions both = Asking(PlanMode::kJob);
  Give("job_file", &both);
  EXPECT_THAT(CheckPlanOptions(both).message(), HasSubstr("give one of them"));
}

// A coordinator of the environment is not an option of the command.
TEST_F(PlanOptionsTest, TheEnvironmentGivesNoOption) {
  setenv("TERCIO_COORDINATOR", "host:1", 1);
  const PlanOptions options = Asking(PlanMode::kLayouts);
  EXPECT_EQ(options.coordinator, "host:1");
  EXPECT_TRUE(CheckPlanOptions(options).ok());
}

}  // namespace
}  // namespace tercio::cli
