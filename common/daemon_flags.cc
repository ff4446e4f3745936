#include "common/daemon_flags.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/daemon.h"
#include "common/log.h"
#include "common/version.h"

namespace tercio {
namespace {

void AddLogOptions(CLI::App& app, std::string* format, std::string* level) {
  app.add_option("--log-format", *format,
                 "of lines on stderr; auto: text on a terminal, else logfmt")
      ->envname("TERCIO_LOG_FORMAT")
      ->check(CLI::IsMember({"auto", "text", "logfmt", "json"}))
      ->capture_default_str()
      ->take_last();
  app.add_option("--log-level", *level, "lines of this level and above")
      ->envname("TERCIO_LOG_LEVEL")
      ->check(CLI::IsMember({"info", "warning", "error"}))
      ->capture_default_str()
      ->take_last();
}

}  // namespace

int ParseDaemonFlags(CLI::App& app, int argc, char** argv, bool* done) {
  app.set_version_flag("--version", kVersion);
  std::string format = "auto";
  std::string level = "info";
  AddLogOptions(app, &format, &level);
  const absl::StatusOr<std::vector<std::string>> arguments = WithConfigFile(argc, argv);
  if (!arguments.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(arguments.status().message()).c_str());
    *done = true;
    return kExitUsage;
  }
  try {
    std::vector<std::string> reversed(arguments->rbegin(), arguments->rend());
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    *done = true;
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  if (format == "text") SetLogFormat(LogFormat::kText);
  if (format == "logfmt") SetLogFormat(LogFormat::kLogfmt);
  if (format == "json") SetLogFormat(LogFormat::kJson);
  SetLogLevel(*LogLevelNamed(level));
  setenv("TERCIO_LOG_LEVEL", level.c_str(), 1);  // of programs that this one starts
  return kExitOk;
}

}  // namespace tercio
