#include "worker/agent/log_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace tercio {
namespace {

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kLongestLine = 8192;

struct FileFacts {
  uint64_t inode = 0;  // 0: there is none
  int64_t bytes = 0;
};

FileFacts FactsOf(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return {};
  return {info.st_ino, info.st_size};
}

}  // namespace

LogTail::~LogTail() {
  if (file_ >= 0) close(file_);
}

LogPosition LogTail::EndOf(const std::string& path) {
  const FileFacts facts = FactsOf(path);
  return {facts.inode, facts.bytes};
}

// The file of the position, under either name; else the present one from its beginning.
bool LogTail::Open() {
  if (file_ >= 0) return true;
  const std::string older = path_ + ".1";
  const bool in_older = position_.file != 0 && FactsOf(older).inode == position_.file;
  file_ = open((in_older ? older : path_).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  struct stat info = {};
  if (file_ < 0 || fstat(file_, &info) != 0) return false;
  if (info.st_ino != position_.file || info.st_size < position_.offset) {
    position_ = {info.st_ino, 0};
  }
  return true;
}

// The writer has left our file: it says something in the new one only after that.
bool LogTail::NextFileHasBegun() const {
  const FileFacts present = FactsOf(path_);
  return present.inode != 0 && present.inode != position_.file && present.bytes > 0;
}

std::vector<std::string> LogTail::Read(bool all) {
  if (!Open()) return {};
  const bool left = NextFileHasBegun();
  std::vector<std::string> lines = ReadHere(all || left);
  if (!lines.empty() || !left) return lines;
  close(file_);
  file_ = -1;
  position_ = {};
  return Open() ? ReadHere(all) : lines;
}

std::vector<std::string> LogTail::ReadHere(bool all) {
  std::string text(kReadBytes, '\0');
  const ssize_t count = pread(file_, text.data(), text.size(), position_.offset);
  if (count <= 0) return {};
  const std::string_view bytes(text.data(), static_cast<size_t>(count));
  std::vector<std::string> lines;
  size_t begin = 0;
  while (begin < bytes.size()) {
    const std::string_view rest = bytes.substr(begin);
    const size_t end = rest.find('\n');
    const bool last = bytes.size() < kReadBytes && all;
    if (end == std::string_view::npos && rest.size() < kLongestLine && !last) break;
    const size_t length = std::min({end, rest.size(), kLongestLine});
    lines.emplace_back(rest.substr(0, length));
    begin += length + (length == end ? 1 : 0);
  }
  position_.offset += static_cast<int64_t>(begin);
  return lines;
}

std::vector<std::string> LogTail::Preceding(size_t most) {
  if (!Open()) return {};
  const int64_t begin = std::max<int64_t>(0, position_.offset - int64_t{kReadBytes} / 4);
  std::string text(static_cast<size_t>(position_.offset - begin), '\0');
  const ssize_t count = pread(file_, text.data(), text.size(), begin);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, count)));
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  // The first may be the end of a longer line.
  if (begin > 0 && !lines.empty()) lines.erase(lines.begin());
  if (lines.size() > most) lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(most));
  return lines;
}

}  // namespace tercio
