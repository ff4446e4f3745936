#include "worker/agent/runs/log_limits.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file.h"

namespace tercio::agent {
namespace {

constexpr double kLineBytes = 256;

struct LogFile {
  int64_t changed = 0;  // nanoseconds since 1970
  int64_t bytes = 0;
  std::string name;  // FOLDER/FILE
};

void AddFiles(const std::string& root, const std::string& folder, std::vector<LogFile>* files) {
  for (const std::string& file : ListDirectory(absl::StrCat(root, "/", folder))) {
    const std::string name = absl::StrCat(folder, "/", file);
    struct stat info = {};
    // What is no plain file is none of the agent's logs, and stays.
    if (lstat(absl::StrCat(root, "/", name).c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
      continue;
    }
    // Blocks of 512 bytes (stat(2)) are what removing a file gives back.
    files->push_back({int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec,
                      int64_t{info.st_blocks} * 512, name});
  }
}

}  // namespace

LineLimit::Passed LineLimit::Pass(double now, std::vector<std::string> lines) {
  // The bucket holds two seconds of the rate, which is the longest burst.
  if (last_ > 0) tokens_ = std::min(2 * rate_, tokens_ + (now - last_) * rate_);
  last_ = now;
  // It opens when there is room for a second's lines, not for a single one.
  if (closed_ && tokens_ >= rate_) closed_ = false;
  Passed passed;
  if (!closed_) passed.left_out_before = std::exchange(left_out_, 0);
  for (std::string& line : lines) {
    if (tokens_ <= 0) closed_ = true;
    if (closed_) {
      ++left_out_;
      continue;
    }
    // The last line may overdraw the account: a cut line would help nobody.
    tokens_ -= std::max(1.0, static_cast<double>(line.size()) / kLineBytes);
    passed.lines.push_back(std::move(line));
  }
  return passed;
}

int64_t LineLimit::TakeLeftOut() { return std::exchange(left_out_, 0); }

int TrimLogs(const std::string& root, const std::vector<std::string>& folders, int64_t quota,
             const std::set<std::string>& kept) {
  std::vector<LogFile> files;
  for (const std::string& folder : folders) AddFiles(root, folder, &files);
  std::sort(files.begin(), files.end(), [](const LogFile& a, const LogFile& b) {
    // Names decide between files of the same moment, so that the order is always the same.
    return std::tie(a.changed, a.name) < std::tie(b.changed, b.name);
  });
  int64_t total = 0;
  for (const LogFile& file : files) total += file.bytes;
  int removed = 0;
  for (const LogFile& file : files) {
    if (total <= quota) break;
    // A file that is open keeps its space when it has lost its name.
    if (kept.contains(file.name)) continue;
    if (unlink(absl::StrCat(root, "/", file.name).c_str()) != 0) continue;
    total -= file.bytes;
    ++removed;
  }
  return removed;
}

}  // namespace tercio::agent
