#include "cli/man.h"

#include <algorithm>
#include <iostream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "common/daemon/man_page.h"
#include "common/exit_codes.h"
#include "common/file.h"
#include "common/status_macros.h"

namespace tercio::cli {
namespace {

// Variables are read by hand (cli/main.cc), so that the page has to be told of them.
std::string PageOf(const CLI::App& app) {
  ManOptions options;
  options.environment = {
      {"TERCIO_COORDINATOR", "HOST:PORT of the coordinator."},
      {"TERCIO_TLS_CERT, TERCIO_TLS_KEY, TERCIO_TLS_CA",
       "PEM files of the certificate, its key and the authority."},
      {"XDG_STATE_HOME", "Directory that holds tercio/, the default state directory."}};
  // Only the page of the program refers to the daemons.
  if (app.get_parent() == nullptr) options.see_also = {"tercio-coordinator(8)", "tercio-agent(8)"};
  return ManPage(app, options);
}

absl::Status WriteAll(const CLI::App& app, const std::string& directory) {
  TERCIO_RETURN_IF_ERROR(
      // Section 1 is that of commands.
      WriteFileDurably(absl::StrCat(directory, "/", ManName(app), ".1"), PageOf(app)));
  for (const CLI::App* verb : VerbsOf(app)) TERCIO_RETURN_IF_ERROR(WriteAll(*verb, directory));
  return absl::OkStatus();
}

}  // namespace

int Man(const CLI::App& app, const std::vector<std::string>& words, const std::string& directory) {
  // Packages write all pages in one call.
  if (!directory.empty()) {
    absl::Status status = MakeDirectories(directory);
    if (status.ok()) status = WriteAll(app, directory);
    return status.ok() ? kExitOk : Fail(status);
  }
  const CLI::App* verb = &app;
  for (const std::string& word : words) {
    // Words lead to a verb one by one, as on the command line.
    const auto verbs = VerbsOf(*verb);
    const auto found = std::find_if(verbs.begin(), verbs.end(), [&](const CLI::App* other) {
      return other->get_name() == word;
    });
    if (found == verbs.end()) {
      return Fail(absl::NotFoundError(absl::StrCat(ManName(*verb), " has no verb ", word)));
    }
    verb = *found;
  }
  std::cout << PageOf(*verb);
  return kExitOk;
}

}  // namespace tercio::cli
