#include "common/daemon_flags.h"

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/daemon.h"
#include "common/log.h"
#include "common/man_page.h"
#include "common/version.h"

namespace tercio {

int ParseDaemonFlags(CLI::App& app, int argc, char** argv, bool* done) {
  app.set_version_flag("--version",
                       absl::StrCat(app.get_name(), " ", kVersion, " commit ", kCommit));
  bool man = false;
  app.add_flag("--man", man, "print the manual page (troff)")->group("");
  const absl::StatusOr<std::vector<std::string>> arguments = WithConfigFile(argc, argv);
  if (!arguments.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(arguments.status().message()).c_str());
    *done = true;
    return kExitUsage;
  }
  try {
    std::vector<std::string> reversed(arguments->rbegin(), arguments->rend());
    app.parse(reversed);
    if (man) {
      ManOptions options;
      options.section = 8;
      options.see_also = {"tercio(1)"};
      std::fputs(ManPage(app, options).c_str(), stdout);
      *done = true;
    }
  } catch (const CLI::ParseError& error) {
    *done = true;
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return kExitOk;
}

DaemonSettings SettingsOf(const CLI::App& app) {
  DaemonSettings settings;
  for (const CLI::Option* option : app.get_options()) {
    settings[option->get_single_name()] =
        option->count() > 0 ? absl::StrJoin(option->results(), "\n") : option->get_default_str();
  }
  return settings;
}

void LogReload(const DaemonSettings& before, const DaemonSettings& after,
               const std::set<std::string>& live) {
  std::vector<std::string> taken, waiting;
  for (const auto& [name, value] : after) {
    const auto old = before.find(name);
    if (old != before.end() && old->second == value) continue;
    (live.contains(name) ? taken : waiting).push_back("--" + name);
  }
  if (taken.empty() && waiting.empty()) return LogInfo("configuration read again: no changes");
  if (!taken.empty()) {
    LogInfo(absl::StrCat("configuration read again; changed: ", absl::StrJoin(taken, ", ")));
  }
  if (!waiting.empty()) {
    LogWarning(absl::StrCat("configuration read again; changed with the next start only: ",
                            absl::StrJoin(waiting, ", ")));
  }
}

}  // namespace tercio
