#include "cli/login_files.h"

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/file.h"

namespace tercio::cli {

std::string ConfigDirectory() {
  // An empty variable counts as none, as the XDG specification says.
  if (const char* base = std::getenv("XDG_CONFIG_HOME"); base != nullptr && *base != '\0') {
    return absl::StrCat(base, "/tercio");
  }
  const char* home = std::getenv("HOME");
  return absl::StrCat(home == nullptr ? "/root" : home, "/.config/tercio");
}

std::string LoginDirectory(const std::string& coordinator) {
  return absl::StrCat(ConfigDirectory(), "/",
                      // Colons and slashes of an address have a meaning in paths.
                      absl::StrReplaceAll(coordinator, {{":", "_"}, {"/", "_"}}));
}

std::string RememberedCoordinator() {
  // Without the file there was no login, which is no error.
  const absl::StatusOr<std::string> text = ReadFile(ConfigDirectory() + "/coordinator");
  return text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
}

}  // namespace tercio::cli
