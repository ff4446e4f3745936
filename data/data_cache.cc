#include "data/data_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tercio::data {
namespace {

// The prefix of an entry is a SHA-256 in hexadecimal digits.
constexpr size_t kDigestLength = 64;

struct Entry {
  std::string prefix;
  int64_t used = 0;  // nanoseconds since 1970
  int64_t bytes = 0;
  std::vector<std::string> paths;
};

// Only such names are ever removed: a directory may hold files of other programs.
bool IsDigest(const std::string& name) {
  return name.size() == kDigestLength && std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isxdigit(c) != 0;
         });
}

// The prefix of a file name PREFIX.*; empty if the name is not that of a part of an entry.
std::string PrefixOf(const std::string& name) {
  const std::string prefix = name.substr(0, name.find('.'));
  return IsDigest(prefix) && prefix.size() < name.size() ? prefix : "";
}

int64_t BytesOnDisk(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return 0;
  // st_blocks counts 512 bytes whatever the file system's blocks are, and what files really take.
  int64_t bytes = int64_t{info.st_blocks} * 512;
  if (!S_ISDIR(info.st_mode)) return bytes;
  for (const std::string& name : ListDirectory(path)) {
    bytes += BytesOnDisk(absl::StrCat(path, "/", name));
  }
  return bytes;
}

int64_t ChangedAt(const std::string& path) {
  struct stat info = {};
  // lstat follows no link, since the owner of the directory may have put one there.
  if (lstat(path.c_str(), &info) != 0) return 0;
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

std::vector<Entry> EntriesOf(const std::string& directory) {
  std::map<std::string, Entry> entries;
  for (const std::string& name : ListDirectory(directory)) {
    const std::string prefix = PrefixOf(name);
    if (prefix.empty()) continue;
    Entry& entry = entries[prefix];
    entry.prefix = absl::StrCat(directory, "/", prefix);
    entry.paths.push_back(absl::StrCat(directory, "/", name));
    entry.bytes += BytesOnDisk(entry.paths.back());
    entry.used = std::max(entry.used, ChangedAt(entry.paths.back()));
  }
  std::vector<Entry> all;
  for (auto& [prefix, entry] : entries) {
    // Entries of earlier versions have no time of use, only the time they were made.
    const int64_t used = ChangedAt(entry.prefix + ".use");
    if (used > 0) entry.used = used;
    all.push_back(std::move(entry));
  }
  // The prefix decides between equal times, so that the order does not depend on the directory.
  std::sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.used, a.prefix) < std::tie(b.used, b.prefix);
  });
  return all;
}

// False if the entry is being made or used.
bool Remove(const Entry& entry) {
  // Neither lock waits: whoever holds one needs the entry, and the next trimming may remove it.
  const auto made = FileLock::Acquire(entry.prefix + ".lock", WhenHeld::kFail);
  if (!made.ok()) return false;
  const auto used = FileLock::Acquire(entry.prefix + ".use", WhenHeld::kFail);
  if (!used.ok()) return false;
  std::error_code ignored;
  for (const std::string& path : entry.paths) {
    // The locks are removed last, so that nobody else takes them while files disappear.
    if (path == entry.prefix + ".lock" || path == entry.prefix + ".use") continue;
    std::filesystem::remove_all(path, ignored);
  }
  unlink((entry.prefix + ".use").c_str());
  unlink((entry.prefix + ".lock").c_str());
  return true;
}

}  // namespace

std::shared_ptr<const FileLock> UseCacheEntry(const std::string& prefix) {
  absl::StatusOr<std::unique_ptr<FileLock>> lock = FileLock::AcquireShared(prefix + ".use");
  if (!lock.ok()) return nullptr;
  // Another user's trainer may lack the right; then its agent has done it.
  utimensat(AT_FDCWD, (prefix + ".use").c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  return *std::move(lock);
}

std::shared_ptr<const UntrustedFile> HoldCacheEntry(const std::string& directory,
                                                    const std::string& name) {
  // The name comes from a process with fewer rights, and must not lead out of the directory.
  if (!IsDigest(name)) return nullptr;
  auto file = UntrustedFile::Open(absl::StrCat(directory, "/", name, ".use"));
  if (!file.ok() || flock(file->descriptor(), LOCK_SH | LOCK_NB) != 0) return nullptr;
  return std::make_shared<const UntrustedFile>(*std::move(file));
}

int TrimDataCache(const std::string& directory, int64_t most_bytes) {
  const std::vector<Entry> entries = EntriesOf(directory);
  int64_t total = 0;
  for (const Entry& entry : entries) total += entry.bytes;
  int removed = 0;
  // An entry that is in use still takes its space, so more of the others go.
  for (const Entry& entry : entries) {
    if (total <= most_bytes) break;
    if (!Remove(entry)) continue;
    total -= entry.bytes;
    ++removed;
  }
  return removed;
}

}  // namespace tercio::data
