#include "common/daemon/daemon_flags.h"

#include <map>
#include <string>
#include <vector>

#include "common/daemon/flag_values.h"
#include "common/file.h"
#include "common/log.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio {
namespace {

// A daemon with two settings, read from `arguments`.
DaemonSettings Read(std::vector<std::string> arguments, bool* done) {
  CLI::App app("test", "daemon");
  int limit = 7;
  std::string listen = "127.0.0.1:1";
  bool loud = false;
  std::vector<std::string> roots;
  app.add_option("--limit", limit)->capture_default_str()->take_last();
  app.add_option("--listen", listen)->capture_default_str()->take_last();
  app.add_flag("--loud", loud);
  app.add_option("--root", roots);
  arguments.insert(arguments.begin(), "daemon");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  ParseDaemonFlags(app, static_cast<int>(pointers.size()), pointers.data(), done);
  return SettingsOf(app);
}

TEST(DaemonSettings, AreThoseThatCount) {
  const TempDir directory;
  const std::string path = directory.path() + "/daemon.yaml";
  ASSERT_TRUE(WriteFileDurably(path, "limit: 8\nlisten: 127.0.0.1:2\n").ok());
  bool done = false;
  EXPECT_EQ(Read({}, &done).at("limit"), "7");
  DaemonSettings settings = Read({"--config", path, "--listen", "127.0.0.1:3"}, &done);
  EXPECT_EQ(settings.at("limit"), "8");
  EXPECT_THAT(settings.at("listen"), testing::EndsWith("127.0.0.1:3"));
  EXPECT_FALSE(done);
  ASSERT_TRUE(WriteFileDurably(path, "limit: 9\n").ok());
  EXPECT_NE(Read({"--config", path}, &done), settings);
}

TEST(DaemonSettings, FlagsWithoutValueAndLists) {
  const TempDir directory;
  const std::string path = directory.path() + "/daemon.yaml";
  bool done = false;
  ASSERT_TRUE(WriteFileDurably(path, "loud: true\nroot: [/a, /b]\n").ok());
  EXPECT_EQ(Read({"--config", path}, &done).at("loud"), "true");
  EXPECT_EQ(Read({"--config", path}, &done).at("root"), "/a\n/b");
  ASSERT_TRUE(WriteFileDurably(path, "loud: false\n").ok());
  EXPECT_EQ(Read({"--config", path}, &done).at("loud"), "false");
  EXPECT_FALSE(done);
}

TEST(FlagValues, Seconds) {
  const auto read = [](const std::string& text) {
    CLI::App app("test");
    double seconds = -1;
    app.add_option("--wait", seconds)->transform(InSeconds())->check(Between(0.01, 86400.0));
    try {
      app.parse(std::vector<std::string>{"--wait=" + text});
    } catch (const CLI::ParseError&) {
      return -1.0;
    }
    return seconds;
  };
  EXPECT_EQ(read("0.5"), 0.5);
  EXPECT_EQ(read("5s"), 5);
  EXPECT_EQ(read("500ms"), 0.5);
  EXPECT_EQ(read("2m"), 120);
  for (const char* text : {"nan", "inf", "-1s", "0", "2d", "5x", ""})
    EXPECT_EQ(read(text), -1) << text;
}

TEST(DaemonSettings, TheFileIsNamedLikeAnythingElse) {
  const TempDir directory;
  const std::string path = directory.path() + "/daemon.yaml";
  bool done = false;
  ASSERT_TRUE(WriteFileDurably(path, "limit: 8\nlisten:\n").ok());
  const DaemonSettings settings = Read({"--config=" + path}, &done);
  EXPECT_FALSE(done);
  EXPECT_EQ(settings.at("limit"), "8");
  EXPECT_EQ(settings.at("listen"), "127.0.0.1:1");
}

TEST(DaemonSettings, FaultsOfTheFileHaveTheirPlace) {
  const TempDir directory;
  const std::string path = directory.path() + "/daemon.yaml";
  for (const auto& [text, fault] : std::map<std::string, std::string>{
           {"limit: 8\nlimit: 9\n", ":2: limit: the key is given twice"},
           {"\nlimit: {a: 8}\n", ":2: limit: expected a value"}}) {
    ASSERT_TRUE(WriteFileDurably(path, text).ok());
    bool done = false;
    testing::internal::CaptureStderr();
    Read({"--config", path}, &done);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr(path + fault));
    EXPECT_TRUE(done);
  }
}

TEST(DaemonSettings, WhatChangedIsLogged) {
  const DaemonSettings before = {{"limit", "7"}, {"listen", "a"}, {"token", "secret"}};
  InitLogging("test");
  SetLogFormat(LogFormat::kText);
  testing::internal::CaptureStderr();
  LogReload(before, {{"limit", "8"}, {"listen", "b"}, {"token", "other"}}, {"limit"});
  LogReload(before, before, {"limit"});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr("changed: --limit\n"));
  EXPECT_THAT(log, testing::HasSubstr("changes that need a restart: --listen, --token\n"));
  EXPECT_THAT(log, testing::HasSubstr("no changes"));
  EXPECT_THAT(log, testing::Not(testing::HasSubstr("secret")));
}

TEST(DaemonSettings, ABadFileIsSeen) {
  const TempDir directory;
  const std::string path = directory.path() + "/daemon.yaml";
  for (const char* text : {"limit: many\n", "no map", "unknown: 1\n", "{{{"}) {
    ASSERT_TRUE(WriteFileDurably(path, text).ok());
    bool done = false;
    Read({"--config", path}, &done);
    EXPECT_TRUE(done) << text;
  }
}

}  // namespace
}  // namespace tercio
