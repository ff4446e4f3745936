#include "common/daemon/daemon_flags.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/daemon/daemon.h"
#include "common/daemon/man_page.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/version.h"

namespace tercio {
namespace {

// Both daemons have these, so that one log collector fits both.
void AddLogOptions(CLI::App& app, std::string* format, std::string* level) {
  app.add_option("--log-format", *format,
                 "format of log lines on stderr; auto: text on a terminal, else logfmt")
      ->envname("TERCIO_LOG_FORMAT")
      ->check(CLI::IsMember({"auto", "text", "logfmt", "json"}))
      ->capture_default_str()
      ->take_last();
  app.add_option("--log-level", *level, "log only lines of this level and above")
      ->envname("TERCIO_LOG_LEVEL")
      ->check(CLI::IsMember({"info", "warning", "error"}))
      ->capture_default_str()
      ->take_last();
}

}  // namespace

int ParseDaemonFlags(CLI::App& app, int argc, char** argv, bool* done) {
  app.set_version_flag("--version",
                       absl::StrCat(app.get_name(), " ", kVersion, " commit ", kCommit));
  bool man = false;
  // The flag is for packages, and so is hidden.
  app.add_flag("--man", man, "print the manual page (troff)")->group("");
  std::string format = "auto";
  std::string level = "info";
  AddLogOptions(app, &format, &level);
  // The file is read before parsing, as its settings become flags.
  const absl::StatusOr<std::vector<std::string>> arguments = WithConfigFile(argc, argv);
  if (!arguments.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(arguments.status().message()).c_str());
    *done = true;
    return kExitUsage;
  }
  try {
    // CLI11 takes the words in reverse order.
    std::vector<std::string> reversed(arguments->rbegin(), arguments->rend());
    app.parse(reversed);
    if (man) {
      ManOptions options;
      // Section 8 is that of daemons.
      options.section = 8;
      options.see_also = {"tercio(1)"};
      std::fputs(ManPage(app, options).c_str(), stdout);
      *done = true;
    }
  } catch (const CLI::ParseError& error) {
    *done = true;
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  // With auto, InitLogging decides by the terminal.
  if (format == "text") SetLogFormat(LogFormat::kText);
  if (format == "logfmt") SetLogFormat(LogFormat::kLogfmt);
  if (format == "json") SetLogFormat(LogFormat::kJson);
  SetLogLevel(*LogLevelNamed(level));
  // The level for child processes. Set only once, before other threads read the environment; flags
  // are parsed again at each reload.
  static const bool told = setenv("TERCIO_LOG_LEVEL", level.c_str(), 1) == 0;
  static_cast<void>(told);
  return kExitOk;
}

DaemonSettings SettingsOf(const CLI::App& app) {
  DaemonSettings settings;
  for (const CLI::Option* option : app.get_options()) {
    // Lists are joined, since settings are only compared.
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
  // A reload without an effect is reported too, as somebody has asked for it.
  if (taken.empty() && waiting.empty()) return LogInfo("configuration reloaded: no changes");
  if (!taken.empty()) {
    LogInfo(absl::StrCat("configuration reloaded; changed: ", absl::StrJoin(taken, ", ")));
  }
  if (!waiting.empty()) {
    LogWarning(absl::StrCat("configuration reloaded; changes that need a restart: ",
                            absl::StrJoin(waiting, ", ")));
  }
}

}  // namespace tercio
