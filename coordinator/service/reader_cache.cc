#include "coordinator/service/reader_cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "common/status_macros.h"

namespace tercio::coordinator {

absl::StatusOr<std::shared_ptr<checkpoint::Reader>> ReaderCache::Open(const std::string& job,
                                                                      const std::string& path) {
  Entry now;
  now.path = path;
  // Inode and time tell a manifest that was written again from the one that is open.
  struct stat info = {};
  // A manifest that is missing leaves zeros, which match no entry: opening then gives the error.
  if (stat((path + "/manifest.json").c_str(), &info) == 0) {
    now.inode = info.st_ino;
    now.changed = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  }
  if (auto known = Known(job, now)) return known;
  // Without the lock: a file system that hangs keeps only its own job waiting.
  TERCIO_ASSIGN_OR_RETURN(now.reader,
                          checkpoint::Reader::Open(path, checkpoint::DigestCheck::kNone));
  MutexLock lock(mutex_);
  // Two ranks may open the same at once; the later one stays, and either is right.
  now.used = ++uses_;
  entries_[job] = now;
  if (entries_.size() > kMostJobs) {
    // The reader used longest ago is dropped, so that its files give their place on the disk back.
    entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](auto& a, auto& b) {
      return a.second.used < b.second.used;
    }));
  }
  return now.reader;
}

std::shared_ptr<checkpoint::Reader> ReaderCache::Known(const std::string& job, const Entry& now) {
  MutexLock lock(mutex_);
  const auto known = entries_.find(job);
  if (known == entries_.end() || known->second.path != now.path ||
      known->second.inode != now.inode || known->second.changed != now.changed) {
    return nullptr;
  }
  known->second.used = ++uses_;
  return known->second.reader;
}

void ReaderCache::Forget(const std::string& job) {
  MutexLock lock(mutex_);
  entries_.erase(job);
}

}  // namespace tercio::coordinator
