#include "cli/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <string_view>

#include "common/file.h"

namespace tercio::cli {
namespace {

// Large enough that a history of many steps costs few writes.
constexpr size_t kBufferBytes = 1 << 16;

std::string Text(const Json& json, int indent) {
  // Logs and names may hold bytes that are not UTF-8, which JSON cannot.
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

StandardOutput::StandardOutput(int descriptor)
    // std::cout is replaced, so that every writer of this program is covered.
    : descriptor_(descriptor), before_(std::cout.rdbuf(this)) {}

StandardOutput::~StandardOutput() {
  sync();
  std::cout.rdbuf(before_);
}

absl::Status StandardOutput::Flush() {
  sync();
  // A reader that closes the pipe has seen enough (head), which is no failure.
  if (error_ == 0 || error_ == EPIPE) return absl::OkStatus();
  return AsConflict(FileError(error_, "cannot write to", "standard output"));
}

StandardOutput::int_type StandardOutput::overflow(int_type c) {
  if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
  const char byte = traits_type::to_char_type(c);
  return xsputn(&byte, 1) == 1 ? c : traits_type::eof();
}

std::streamsize StandardOutput::xsputn(const char* bytes, std::streamsize count) {
  waiting_.append(bytes, static_cast<size_t>(count));
  // A failed write is reported as such from then on, so that long outputs stop.
  if (waiting_.size() >= kBufferBytes) sync();
  return error_ == 0 ? count : 0;
}

int StandardOutput::sync() {
  std::string_view left = waiting_;
  while (!left.empty() && error_ == 0) {
    // An interrupted write is repeated: no part of the output may be lost.
    const ssize_t written = write(descriptor_, left.data(), left.size());
    if (written >= 0) {
      left.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  waiting_.clear();
  return error_ == 0 ? 0 : -1;
}

void PrintJson(const Json& json, Output format) {
  if (format == Output::kJson) {
    std::cout << Text(json, 2) << std::endl;
    return;
  }
  // One document on one line is what JSON lines mean for a single value.
  if (!json.is_array()) {
    std::cout << Text(json, -1) << std::endl;
    return;
  }
  for (const Json& element : json) std::cout << Text(element, -1) << "\n";
  std::cout.flush();
}

void PrintNotices(const std::vector<std::string>& notices) {
  for (const std::string& notice : notices) std::fprintf(stderr, "notice: %s\n", notice.c_str());
}

void JsonStream::Add(const Json& json) {
  // Elements are written as they come: the list may never end.
  if (format_ == Output::kJson) std::cout << (any_ ? ",\n" : "[\n");
  any_ = true;
  std::cout << Text(json, -1);
  if (format_ != Output::kJson) std::cout << "\n";
  std::cout.flush();
}

void JsonStream::Finish() {
  if (format_ == Output::kJson) std::cout << (any_ ? "\n]" : "[]") << std::endl;
}

}  // namespace tercio::cli
