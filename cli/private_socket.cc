#include "cli/private_socket.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/file.h"

namespace tercio::cli {
namespace {

constexpr char kUnix[] = "unix:";

}  // namespace

absl::StatusOr<std::unique_ptr<PrivateSocket>> PrivateSocket::Make() {
  // The path has to fit into the 108 bytes of a socket's
  // address, which a state directory may exceed.
  std::string directory = "/tmp/tercio.XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {  // a directory with mode 0700
    return AsConflict(FileError(errno, "cannot create a directory for a socket in", "/tmp"));
  }
  return std::unique_ptr<PrivateSocket>(new PrivateSocket(std::move(directory)));
}

// The directory holds nothing but the socket.
PrivateSocket::~PrivateSocket() { RemoveTree(directory_).IgnoreError(); }

std::string PrivateSocket::address() const {
  return absl::StrCat(kUnix, directory_, "/coordinator.sock");
}

absl::Status MayUseSocket(const std::string& address) {
  const std::string path(absl::StripPrefix(address, kUnix));
  if (path == address || access(path.c_str(), W_OK) == 0 || errno != EACCES) {
    return absl::OkStatus();
  }
  // gRPC reports this as a connection that failed, which helps nobody.
  return absl::PermissionDeniedError(
      absl::StrCat("the coordinator at ", address, " belongs to another user"));
}

}  // namespace tercio::cli
