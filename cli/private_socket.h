// A Unix socket in a directory that only this user can enter, for the coordinator that this program
// starts for itself. On a port, any user of the machine could submit jobs, which read and write
// files as this user.
//
// Threads: any.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tercio::cli {

// The directory is removed with the object.
class PrivateSocket {
 public:
  // FAILED_PRECONDITION if /tmp is not writable. (Socket paths have at most 107 bytes, so a state
  // directory may be too deep.)
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

// PERMISSION_DENIED if `address` is a Unix socket that this user cannot write to.
absl::Status MayUseSocket(const std::string& address);

}  // namespace tercio::cli
