// tercio-trainer: one rank of one attempt, started by the agent; with --prepare, also started by
// the agent, the process that reads a job's data before it runs (data_preparation.h); by hand only
// to query its libraries (--version) or the devices (--doctor, --measure), which it answers in
// JSON.
//
// Exit codes: 0 finished, 1 fault, 3 fault that a restart cannot fix, 4 stopped after a save, 5
// memory limit of --prepare exceeded.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/version.h"
#include "nlohmann/json.hpp"
#include "plan/text_form.h"
#include "worker/progress/progress_page.h"
#include "worker/trainer/data_preparation.h"
#include "worker/trainer/device_report.h"
#include "worker/trainer/log_file.h"
#include "worker/trainer/out_of_memory_score.h"
#include "worker/trainer/stack_dump.h"
#include "worker/trainer/training_loop.h"

namespace tercio::trainer {
namespace {

constexpr int kFinished = 0;
constexpr int kFault = 1;
constexpr int kUsage = 2;
constexpr int kPermanentFault = 3;
constexpr int kStopped = 4;

struct Arguments {
  std::string socket;
  std::string job;
  int attempt = 0;
  int rank = -1;
  std::string progress;  // file for the agent; empty: none
  std::string log;       // file of standard output and error; empty: they have no file of their own
  int64_t log_bytes = 16 << 20;  // size at which it is rotated
};

bool ParseArguments(int argc, char** argv, Arguments* arguments) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    bool good = true;
    if (name == "--socket") {
      arguments->socket = value;
    } else if (name == "--job") {
      arguments->job = value;
    } else if (name == "--progress") {
      arguments->progress = value;
    } else if (name == "--log") {
      arguments->log = value;
    } else if (name == "--log-bytes") {
      good = absl::SimpleAtoi(value, &arguments->log_bytes) && arguments->log_bytes > 0;
    } else if (name == "--attempt") {
      good = absl::SimpleAtoi(value, &arguments->attempt);
    } else if (name == "--rank") {
      good = absl::SimpleAtoi(value, &arguments->rank);
    } else {
      good = false;
    }
    if (!good) return false;
  }
  return argc % 2 == 1 && !arguments->socket.empty() && arguments->rank >= 0;
}

// Every line names its job and rank: people read those of many ranks together.
void ConfigureLog(const Arguments& arguments) {
  SetLogContext({{"job", arguments.job}, {"attempt", arguments.attempt}, {"rank", arguments.rank}});
  const char* level = std::getenv("TERCIO_LOG_LEVEL");
  if (level == nullptr) return;
  if (const auto least = LogLevelNamed(level); least.has_value()) SetLogLevel(*least);
}

// Waking a peer must not put this thread off its core: it writes to the peer under a lock for which
// Gloo's own thread spins meanwhile. Batch threads are not pre-empted by those that they wake; with
// eight ranks on two cores the spinning took two thirds of all processor time. Threads inherit it.
void AskForBatchScheduling() {
  // Whoever started this in another class has a reason.
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  const sched_param parameter = {};
  if (sched_setscheduler(0, SCHED_BATCH, &parameter) != 0) {
    LogWarning(absl::StrCat("no batch scheduling: ", std::strerror(errno)));
  }
}

// Opens the page that the agent can read, and query, even while this process is silent. Training
// does not need it.
std::unique_ptr<progress::ProgressPage> OpenProgress(const Arguments& arguments,
                                                     const char* program) {
  if (arguments.progress.empty()) return nullptr;
  auto page = progress::ProgressPage::Create(arguments.progress);
  absl::Status status = page.status();
  if (status.ok()) status = InstallStackDump(program, arguments.progress + ".stacks");
  if (!status.ok()) LogWarning(absl::StrCat("no progress page: ", std::string(status.message())));
  return page.ok() ? *std::move(page) : nullptr;
}

// The agent may be away: then it finds the note on the page.
void NoteExit(progress::ProgressPage* page, const progress::ExitNote& note) {
  if (page != nullptr) page->NoteExit(note);
}

// The agent has written the token to the standard input, which no other process can read: neither
// this process nor its children need one.
std::string TakeToken() {
  std::string token;
  std::getline(std::cin, token);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null >= 0) {
    dup2(null, STDIN_FILENO);
    close(null);
  }
  return token;
}

progress::ExitNote Run(const Arguments& arguments, progress::ProgressPage* page) {
  v1::TrainerHello hello;
  hello.mutable_run()->set_job_id(arguments.job);
  hello.mutable_run()->set_attempt(arguments.attempt);
  hello.set_rank(arguments.rank);
  hello.set_token(TakeToken());
  hello.set_pid(getpid());
  const std::string untold = arguments.progress.empty() ? "" : arguments.progress + ".untold";
  auto link =
      AgentLink::Connect(arguments.socket, hello, untold, [page](const std::string& reason) {
        LogError(absl::StrCat("ending: ", reason));
        NoteExit(page, {kFault, false, reason});
        // This is a thread of the link: the others may hang, so nothing is taken down in order.
        _exit(kFault);
      });
  if (!link.ok()) {
    LogError(std::string(link.status().message()));
    return {kFault, false, std::string(link.status().message())};
  }
  CheckpointIdentity identity;
  identity.run = hello.run();
  identity.token = hello.token();
  identity.rank = arguments.rank;
  identity.world_size = (*link)->assignment().world_size();
  v1::TrainerMessage message;
  v1::TrainerFailure* failure = message.mutable_failure();
  const absl::StatusOr<TrainingOutcome> outcome = RunTraining(**link, identity, page, failure);
  if (!outcome.ok()) {
    const std::string reason(outcome.status().message());
    LogError(reason);
    failure->set_message(reason);
    (*link)->Send(message);
    return {failure->permanent() ? kPermanentFault : kFault, failure->permanent(), reason};
  }
  (*link)->SendPhase(v1::TRAINER_PHASE_FINISHED);
  return {*outcome == TrainingOutcome::kFinished ? kFinished : kStopped, false, ""};
}

// The linked libraries, as JSON, with the version and commit of this program.
std::string DescribeProgram() {
  auto facts = nlohmann::json::parse(DescribeLibraries());
  facts["version"] = kVersion;
  facts["commit"] = kCommit;
  return facts.dump();
}

// Prints the figures of this machine as JSON, or what keeps them from being measured.
int Measure(int argc, char** argv) {
  int threads = 0;
  const bool named = argc == 4 && std::string(argv[2]) == "--threads";
  if (argc != 2 && !(named && absl::SimpleAtoi(argv[3], &threads) && threads > 0)) {
    LogError("usage: tercio-trainer --measure [--threads N]");
    return kUsage;
  }
  std::signal(SIGPIPE, SIG_IGN);
  AskForBatchScheduling();
  const absl::StatusOr<v1::MachineFigures> figures = MeasureDevices(threads);
  absl::Status status = figures.status();
  if (figures.ok()) {
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    const absl::StatusOr<std::string> text = plan::ToJson(*figures, options);
    status = text.status();
    if (text.ok()) std::printf("%s\n", text->c_str());
  }
  if (status.ok()) return kFinished;
  // An answer, too: the caller shows it to a person.
  std::printf("%s\n", nlohmann::json({{"error", std::string(status.message())}}).dump().c_str());
  return kFinished;
}

}  // namespace
}  // namespace tercio::trainer

int main(int argc, char** argv) {
  tercio::InitLogging("trainer");
  const std::string question = argc == 2 ? argv[1] : "";
  if (question == "--version" || question == "--doctor") {
    std::printf("%s\n", (question == "--version" ? tercio::trainer::DescribeProgram()
                                                 : tercio::trainer::ExamineDevices())
                            .c_str());
    return tercio::trainer::kFinished;
  }
  if (question == "--prepare") return tercio::trainer::ServePreparation();
  if (argc >= 2 && std::string(argv[1]) == "--measure") return tercio::trainer::Measure(argc, argv);
  tercio::trainer::Arguments arguments;
  if (!tercio::trainer::ParseArguments(argc, argv, &arguments)) {
    tercio::LogError(
        "usage: tercio-trainer --socket PATH --job ID --attempt N --rank N [--progress PATH] "
        "[--log PATH] [--log-bytes N]; or --version, --doctor, --measure [--threads N], "
        "--prepare");
    return tercio::trainer::kUsage;
  }
  tercio::trainer::ConfigureLog(arguments);
  tercio::trainer::AskForBatchScheduling();
  tercio::trainer::SetOutOfMemoryScore(tercio::trainer::kRankScore);
  std::unique_ptr<tercio::trainer::LogRotation> rotation;
  if (!arguments.log.empty()) {
    rotation = std::make_unique<tercio::trainer::LogRotation>(arguments.log, arguments.log_bytes);
  }
  std::signal(SIGPIPE, SIG_IGN);  // a rank that has gone is reported as an error
  auto page = tercio::trainer::OpenProgress(arguments, argv[0]);
  const tercio::progress::ExitNote note = tercio::trainer::Run(arguments, page.get());
  tercio::trainer::NoteExit(page.get(), note);
  page.reset();
  rotation.reset();
  // _exit writes nothing that is still buffered.
  std::fflush(nullptr);
  // No destructors of static objects: a thread that hangs in a file system may still use them.
  _exit(note.exit_code);
}
