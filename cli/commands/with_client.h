// The common frame of verbs that call a coordinator.
#pragma once

#include "absl/status/statusor.h"
#include "cli/client.h"

namespace tercio::cli {

// Connects, runs `body(client)` and turns its status into an exit code.
template <typename Body>
int WithClient(const GlobalOptions& options, const Body& body) {
  const auto client = Client::Connect(options);
  if (!client.ok()) return Fail(client.status());
  const absl::StatusOr<int> code = body(**client);
  return code.ok() ? *code : Fail(code.status());
}

}  // namespace tercio::cli
