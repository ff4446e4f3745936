// The files that `tercio login` writes: for each coordinator a directory with a certificate and its
// key, and the address of the last one, under $XDG_CONFIG_HOME/tercio (else ~/.config/tercio).
#pragma once

#include <string>

namespace tercio::cli {

std::string ConfigDirectory();
// The directory of the files for a coordinator, whether it exists or not.
std::string LoginDirectory(const std::string& coordinator);
// The coordinator of the last login; empty if there was none.
std::string RememberedCoordinator();

}  // namespace tercio::cli
