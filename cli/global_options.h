// The options that mean the same for every verb that has them. The struct of each verb's own
// options (cli/commands/commands.h) is derived from this one.
#pragma once

#include <cstdlib>
#include <string>

#include "common/security/channel.h"

namespace tercio::cli {

// TERCIO_COORDINATOR, else empty.
inline std::string CoordinatorFromEnvironment() {
  const char* address = std::getenv("TERCIO_COORDINATOR");
  return address == nullptr ? "" : address;
}

enum class Output { kTable, kJson, kJsonLines };

struct GlobalOptions {
  std::string coordinator = CoordinatorFromEnvironment();  // HOST:PORT; empty: the default
  std::string state_dir;                                   // if not empty: use this directory
  std::string output;                                      // "", "json", "jsonl"
  TlsFiles tls = TlsFromEnvironment();

  Output format() const {
    return output == "json"    ? Output::kJson
           : output == "jsonl" ? Output::kJsonLines
                               : Output::kTable;
  }
};

}  // namespace tercio::cli
