#include "worker/agent/runs/trainer_user.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/file.h"

namespace tercio::agent {
namespace {

constexpr char kDefaultName[] = "tercio-trainer";

std::optional<TrainerUser> Lookup(const std::string& name) {
  // An entry that does not fit counts as absent; real ones have a few hundred bytes.
  std::array<char, 16384> buffer;
  passwd entry = {};
  passwd* found = nullptr;
  if (getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr) {
    return std::nullopt;
  }
  return TrainerUser{name, entry.pw_uid, entry.pw_gid};
}

}  // namespace

absl::StatusOr<std::optional<TrainerUser>> FindTrainerUser(const std::string& name) {
  if (name.empty()) {
    return geteuid() == 0 ? Lookup(kDefaultName) : std::optional<TrainerUser>();
  }
  const std::optional<TrainerUser> found = Lookup(name);
  if (!found.has_value()) {
    return absl::NotFoundError(absl::StrCat("--trainer-user ", name, ": no such user"));
  }
  // Nothing changes then, so no right is needed.
  if (found->uid == geteuid()) return std::optional<TrainerUser>();
  if (geteuid() == 0) return found;
  return absl::PermissionDeniedError(
      absl::StrCat("--trainer-user ", name,
                   ": only an agent that runs as root can start trainers as another user"));
}

absl::Status GiveTo(const TrainerUser& user, const std::string& path) {
  const std::string what = absl::StrCat("cannot give to ", user.name);
  // Check and change go through one descriptor: the path could mean another file in between.
  const int file = open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return FileError(errno, what, path);
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat info = {};
  if (fstat(file, &info) != 0) return FileError(errno, what, path);
  // The user may own the directory that it lies in.
  if (S_ISLNK(info.st_mode) || (!S_ISDIR(info.st_mode) && info.st_nlink > 1)) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " ", path, ": it is a symbolic link or has more than one hard link"));
  }
  // A descriptor of O_PATH is enough for this, so even files that cannot be read are given.
  if (fchownat(file, "", user.uid, user.gid, AT_EMPTY_PATH) == 0) return absl::OkStatus();
  return FileError(errno, what, path);
}

// With x but not r others reach what is inside by its name, and cannot list it.
absl::Status LetPass(const std::string& directory) {
  struct stat info = {};
  if (stat(directory.c_str(), &info) == 0 &&
      chmod(directory.c_str(), (info.st_mode & 07777) | S_IXGRP | S_IXOTH) == 0) {
    return absl::OkStatus();
  }
  return FileError(errno, "cannot let trainers traverse", directory);
}

}  // namespace tercio::agent
