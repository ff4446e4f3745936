// What `tercio login` leaves behind: for each coordinator a directory with a certificate and its
// key, and the address of the last one, under $XDG_CONFIG_HOME/tercio (else ~/.config/tercio).
#pragma once

#include <string>

namespace tercio::cli {

std::string ConfigDirectory();
// Where the files for a coordinator lie, or would.
std::string LoginDirectory(const std::string& coordinator);
// Empty: nobody has logged in.
std::string RememberedCoordinator();

}  // namespace tercio::cli
