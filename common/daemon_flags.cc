#include "common/daemon_flags.h"

#include <cstdio>
#include <string>
#include <vector>

#include "common/daemon.h"
#include "common/man_page.h"
#include "common/version.h"

namespace tercio {

int ParseDaemonFlags(CLI::App& app, int argc, char** argv, bool* done) {
  app.set_version_flag("--version", kVersion);
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

}  // namespace tercio
