// The process that reads a job's data, with scripts in its place where it is to fail.
#include "worker/agent/runs/preparation_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/steady_time.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/agent/runs/trainer_process.h"

namespace tercio::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMemory = int64_t{256} << 20;

class PreparationProcessTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }
  PreparationProcess::Options Script(const std::string& commands) const {
    std::ofstream(Path("script")) << "#!/bin/sh\n" << commands << "\n";
    chmod(Path("script").c_str(), 0755);
    return {Path("script"), std::nullopt, kMemory};
  }
  absl::Status Run(const std::string& commands) const {
    return PreparationProcess(Script(commands)).Ask({}).status();
  }
  static std::string Said(const absl::Status& status) { return std::string(status.message()); }
  // The number that a script has written, once it has.
  pid_t Pid() const {
    while (true) {
      pid_t pid = 0;
      if (std::ifstream(Path("pid")) >> pid) return pid;
      std::this_thread::yield();
    }
  }

  TempDir directory_;
};

TEST_F(PreparationProcessTest, HasNoSecretsNoRightsAndBounds) {
  setenv("TERCIO_JOIN_TOKEN", "hidden", 1);
  setenv("SOME_PASSWORD", "hidden", 1);
  const int inherited = fcntl(STDERR_FILENO, F_DUPFD, 57);
  ASSERT_GE(inherited, 57);
  const absl::Status status = Run(
      "env >&2; echo core $(ulimit -c) data $(ulimit -d) >&2; grep NoNewPrivs /proc/$$/status >&2; "
      "for fd in /proc/$$/fd/*; do echo ${fd##*/}; done | tr '\\n' , >&2; exit 9");
  EXPECT_THAT(Said(status),
              AllOf(Not(HasSubstr("hidden")), HasSubstr("PATH="), HasSubstr("core 0 "),
                    HasSubstr("data 262144"), HasSubstr("NoNewPrivs:\t1"), HasSubstr("code 9")));
  // The shell itself has the script open, and the directory that it lists.
  EXPECT_THAT(Said(status), AllOf(HasSubstr("\n0,1,"), HasSubstr(",2,")));
  EXPECT_THAT(Said(status), Not(HasSubstr(absl::StrCat(",", inherited, ","))));
  close(inherited);
}

TEST_F(PreparationProcessTest, SaysHowItEnded) {
  EXPECT_THAT(Said(Run("kill -SEGV $$")), HasSubstr("crashed: signal 11"));
  EXPECT_THAT(Said(Run("echo sorry >&2; exit 3")),
              AllOf(HasSubstr("exited with code 3"), HasSubstr("it printed: sorry")));
  const absl::Status memory = Run("exit 5");
  EXPECT_EQ(memory.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Said(memory), AllOf(HasSubstr("out of memory"), HasSubstr("0.2 GiB (--data-memory")));
  PreparationEnd killed;
  killed.signal = SIGKILL;
  killed.out_of_memory = true;
  EXPECT_THAT(Said(WhyNoAnswer(killed, kMemory)), HasSubstr("killed by the kernel: out of memory"));
}

TEST_F(PreparationProcessTest, AnAnswerThatIsNoneIsAnError) {
  EXPECT_FALSE(Run("head -c 100000 /dev/urandom | tr '\\0' x; exit 0").ok());
  EXPECT_FALSE(Run("printf '\\005\\000\\000\\000\\000\\000\\000\\000'; exit 0").ok()) << "cut off";
  EXPECT_FALSE(Run("exec 0<&- 1>&-; sleep 1000").ok()) << "ends its output and lives on";
}

TEST_F(PreparationProcessTest, FloodsOfWordsAreCut) {
  const absl::Status status = Run("head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 1");
  EXPECT_LT(status.message().size(), 4000u);
}

TEST_F(PreparationProcessTest, LeavesNothingBehind) {
  PreparationProcess process(Script("sleep 1000 & echo $! > " + Path("pid") + "; sleep 1000"));
  absl::Status status;
  std::thread thread([&] { status = process.Ask({}).status(); });
  const pid_t grandchild = Pid();
  const uint64_t start = StartTimeOf(grandchild);
  process.Cancel();
  thread.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  const auto lives = [&] {
    std::stringstream text;
    text << std::ifstream("/proc/" + std::to_string(grandchild) + "/stat").rdbuf();
    return StartTimeOf(grandchild) == start && text.str().find(") Z") == std::string::npos;
  };
  const absl::Time deadline = SteadyNow() + absl::Seconds(20);
  while (lives() && SteadyNow() < deadline) std::this_thread::yield();
  EXPECT_FALSE(lives());
}

// A tokenizer that is a hole on disk, and more than the memory of its reader.
TEST_F(PreparationProcessTest, FilesThatTakeAllMemoryTakeTheProcessOnly) {
  std::ofstream(Path("corpus.txt")) << "the quick brown fox";
  std::ofstream(Path("tokenizer.json")) << "{";
  std::filesystem::resize_file(Path("tokenizer.json"), uintmax_t{8} << 30);
  v1::PrepareRequest request;
  request.set_any_path(true);
  request.set_cache_dir(Path("cache"));
  request.mutable_spec()->mutable_data()->set_train(Path("corpus.txt"));
  request.mutable_spec()->mutable_data()->set_tokenizer(Path("tokenizer.json"));
  request.mutable_spec()->mutable_model()->set_architecture(v1::ARCHITECTURE_GPT2);
  request.mutable_spec()->mutable_model()->set_context(8);
  PreparationProcess process(
      {std::string(std::getenv("TEST_SRCDIR")) + "/tercio/worker/trainer/tercio-trainer",
       std::nullopt, kMemory});
  const auto answer = process.Ask(request);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kResourceExhausted) << answer.status();
}

}  // namespace
}  // namespace tercio::agent
