#include "common/security/file_watch.h"

#include <sys/stat.h>

#include <utility>

namespace tercio {

FileWatch::FileWatch(std::vector<std::string> paths, absl::Duration between_tries)
    : paths_(std::move(paths)), between_tries_(between_tries), seen_(Stamps()) {}

FileWatch::Due FileWatch::Look(absl::Time now) {
  std::vector<Stamp> stamps = Stamps();
  if (stamps != seen_) {
    seen_ = std::move(stamps);
    return Due::kChanged;
  }
  return now < retry_at_ ? Due::kNo : Due::kRetry;
}

void FileWatch::Tried(bool usable, absl::Time now) {
  retry_at_ = usable ? absl::InfiniteFuture() : now + between_tries_;
}

std::vector<FileWatch::Stamp> FileWatch::Stamps() const {
  std::vector<Stamp> stamps(paths_.size());
  for (size_t i = 0; i < paths_.size(); ++i) {
    struct stat info = {};
    if (stat(paths_[i].c_str(), &info) != 0) continue;
    stamps[i] = {info.st_ino, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
  }
  return stamps;
}

}  // namespace tercio
