#include "worker/agent/runs/log_tail.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace tercio::agent {
namespace {

constexpr size_t kReadBytes = 64 << 10;
// Longer lines are cut in pieces: a rank that writes no line ends must not fill the agent's memory.
constexpr size_t kLongestLine = 8192;

}  // namespace

LogPosition LogTail::EndOf(const std::string& path) {
  const auto file = UntrustedFile::Open(path);
  return file.ok() ? LogPosition{file->inode(), file->size()} : LogPosition{};
}

// Opens the file of the position, under either name; else the present one at its beginning.
bool LogTail::Open() {
  if (file_.has_value()) return true;
  if (auto older = UntrustedFile::Open(path_ + ".1");
      position_.file != 0 && older.ok() && older->inode() == position_.file) {
    file_ = *std::move(older);
  } else if (auto present = UntrustedFile::Open(path_); present.ok()) {
    file_ = *std::move(present);
  } else {
    return false;
  }
  // Another file, or one that was truncated, has only new lines.
  if (file_->inode() != position_.file || file_->size() < position_.offset) {
    position_ = {file_->inode(), 0};
  }
  return true;
}

// The writer has left our file: it writes to the new one only after that.
bool LogTail::NextFileHasBegun() const {
  const LogPosition present = EndOf(path_);
  return present.file != 0 && present.file != position_.file && present.offset > 0;
}

std::vector<std::string> LogTail::Read(Unfinished last) {
  if (!Open()) return {};
  const bool left = NextFileHasBegun();
  std::vector<std::string> lines = ReadHere(left ? Unfinished::kTake : last);
  // The old file is read to its end before the new one.
  if (!lines.empty() || !left) return lines;
  file_.reset();
  // This stands for the beginning of the present file (Open).
  position_ = {};
  return Open() ? ReadHere(last) : lines;
}

std::vector<std::string> LogTail::ReadHere(Unfinished last) {
  const std::string text = file_->Read(position_.offset, kReadBytes);
  const std::string_view bytes(text);
  std::vector<std::string> lines;
  size_t begin = 0;
  while (begin < bytes.size()) {
    const std::string_view rest = bytes.substr(begin);
    const size_t end = rest.find('\n');
    // A read that is full may end in the middle of a line.
    const bool whole = bytes.size() < kReadBytes && last == Unfinished::kTake;
    if (end == std::string_view::npos && rest.size() < kLongestLine && !whole) break;
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
  const std::string text = file_->Read(begin, static_cast<size_t>(position_.offset - begin));
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  // The first line may be the end of a longer one.
  if (begin > 0 && !lines.empty()) lines.erase(lines.begin());
  if (lines.size() > most) lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(most));
  return lines;
}

}  // namespace tercio::agent
