// tercio: the command line.
#include <string>
#include <utility>
#include <vector>

#include "cli/client.h"
#include "cli/command_line.h"
#include "cli/commands/commands.h"
#include "cli/commands/verbs.h"
#include "cli/completion.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "common/daemon/daemon.h"
#include "common/exit_codes.h"
#include "common/log.h"

namespace tercio::cli {
namespace {

int Main(int argc, char** argv) {
  // `run` and `resume` block these signals and handle them themselves; for other verbs the job
  // continues.
  EndAtInterrupts();
  // A closed standard output would otherwise be a descriptor that a database opens.
  HoldStandardStreams();
  StandardOutput output;
  InitLogging("tercio");
  SetLogFormat(LogFormat::kText);
  CommandLine line(VersionLine());
  DeclareVerbs(line);
  // The words are kept apart from argv, since a hidden verb is looked for first.
  std::vector<std::string> words(argv + 1, argv + argc);
  // Not a verb of CLI11, which would parse the words as its own options.
  if (!words.empty() && words[0] == "__complete") {
    words.erase(words.begin());
    return PrintCompletion(line.app(), words);
  }
  // The output is flushed last: a full disk is noticed then, and must not look like success.
  const int code = line.Run(std::move(words));
  const absl::Status printed = output.Flush();
  if (printed.ok()) return code;
  const int lost = Fail(printed);
  return code == kExitOk ? lost : code;
}

}  // namespace
}  // namespace tercio::cli

int main(int argc, char** argv) { return tercio::cli::Main(argc, argv); }
