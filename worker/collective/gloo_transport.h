// Messages between processes over TCP, by Gloo's unbound buffers. One full mesh of connections per
// group. Not encrypted: ranks must be on a network that only they use.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collective/transport.h"

namespace tercio::collective {

// The place at which the ranks of an attempt leave their addresses for each other.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  virtual absl::Status Put(const std::string& key, const std::string& value) = 0;
  // Waits until every key has been put. DEADLINE_EXCEEDED names the missing ones.
  virtual absl::StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                                       absl::Duration timeout) = 0;
};

// Connects to all other ranks of the group; `data_address` is this node's address that they reach.
// `store` is used during the call only. DEADLINE_EXCEEDED | UNAVAILABLE if a rank does not join.
absl::StatusOr<std::unique_ptr<Transport>> CreateGlooTransport(int rank, int size,
                                                               const std::string& group,
                                                               RendezvousStore& store,
                                                               const std::string& data_address,
                                                               absl::Duration timeout);

}  // namespace tercio::collective
