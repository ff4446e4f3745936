// Where a coordinator listens that this program starts for its user alone: a Unix socket in a
// directory that nobody else may enter. On a port any user of the machine could submit jobs, which
// read and write files as this one.
//
// Threads: any.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tercio::cli {

// The directory goes with the object.
class PrivateSocket {
 public:
  // FAILED_PRECONDITION where /tmp takes none. (Paths of sockets have 107 bytes at most, so a state
  // directory may be too far down.)
  static absl::StatusOr<std::unique_ptr<PrivateSocket>> Make();
  ~PrivateSocket();
  PrivateSocket(const PrivateSocket&) = delete;
  PrivateSocket& operator=(const PrivateSocket&) = delete;

  // unix:PATH
  std::string address() const;

 private:
  explicit PrivateSocket(std::string directory) : directory_(std::move(directory)) {}
  const std::string directory_;
};

// PERMISSION_DENIED where `address` is a Unix socket that this user may not use.
absl::Status MayUseSocket(const std::string& address);

}  // namespace tercio::cli
