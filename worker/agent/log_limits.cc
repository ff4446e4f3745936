#include "worker/agent/log_limits.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/file.h"

namespace tercio {
namespace {

constexpr double kLineBytes = 256;

}  // namespace

LineLimit::Passed LineLimit::Pass(double now, std::vector<std::string> lines) {
  if (last_ > 0) tokens_ = std::min(2 * rate_, tokens_ + (now - last_) * rate_);
  last_ = now;
  if (closed_ && tokens_ >= rate_) closed_ = false;
  Passed passed;
  if (!closed_) passed.left_out_before = std::exchange(left_out_, 0);
  for (std::string& line : lines) {
    if (tokens_ <= 0) closed_ = true;
    if (closed_) {
      ++left_out_;
      continue;
    }
    tokens_ -= std::max(1.0, static_cast<double>(line.size()) / kLineBytes);
    passed.lines.push_back(std::move(line));
  }
  return passed;
}

int64_t LineLimit::TakeLeftOut() { return std::exchange(left_out_, 0); }

int TrimLogs(const std::string& directory, int64_t quota, const std::set<std::string>& kept) {
  struct LogFile {
    int64_t changed = 0;  // nanoseconds since 1970
    int64_t bytes = 0;
    std::string name;
  };
  std::vector<LogFile> files;
  int64_t total = 0;
  for (const std::string& name : ListDirectory(directory)) {
    struct stat info = {};
    if (lstat((directory + "/" + name).c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    const int64_t bytes = int64_t{info.st_blocks} * 512;
    files.push_back(
        {int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec, bytes, name});
    total += bytes;
  }
  std::sort(files.begin(), files.end(), [](const LogFile& a, const LogFile& b) {
    return std::tie(a.changed, a.name) < std::tie(b.changed, b.name);
  });
  int removed = 0;
  for (const LogFile& file : files) {
    if (total <= quota) break;
    if (kept.contains(file.name)) continue;
    if (unlink((directory + "/" + file.name).c_str()) != 0) continue;
    total -= file.bytes;
    ++removed;
  }
  return removed;
}

}  // namespace tercio
