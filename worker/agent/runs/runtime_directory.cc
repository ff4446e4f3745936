#include "worker/agent/runs/runtime_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/log.h"

namespace tercio::agent {
namespace {

constexpr char kNote[] = "runtime_directory";

// Root may have given it to the user of its trainers.
bool IsOurs(const std::string& path) {
  struct stat info = {};
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
         (info.st_uid == geteuid() || geteuid() == 0) && (info.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

}  // namespace

absl::StatusOr<std::string> OpenRuntimeDirectory(AgentStore& store, const std::string& parent) {
  const std::string remembered = store.Note(kNote);
  // Trainers of the previous agent look for the socket there.
  if (remembered.starts_with(parent + "/") && IsOurs(remembered)) return remembered;
  // /tmp belongs to everyone: mkdtemp takes a name that nobody can have prepared, with mode 0700.
  std::string path = parent + "/tercio.XXXXXX";
  if (mkdtemp(path.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot make a directory in ", parent, ": ", std::strerror(errno)));
  }
  store.SetNote(kNote, path);
  return path;
}

void RemoveRuntimeDirectory(AgentStore& store, const std::string& path) {
  // The name may be someone else's by the time that the next agent starts.
  store.SetNote(kNote, "");
  const absl::Status removed = RemoveTree(path);
  if (!removed.ok()) LogWarning(std::string(removed.message()));
}

}  // namespace tercio::agent
