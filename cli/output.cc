#include "cli/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <string_view>

#include "common/file.h"

namespace tercio::cli {
namespace {

constexpr size_t kBufferBytes = 1 << 16;

std::string Text(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

StandardOutput::StandardOutput(int descriptor)
    : descriptor_(descriptor), before_(std::cout.rdbuf(this)) {}

StandardOutput::~StandardOutput() {
  sync();
  std::cout.rdbuf(before_);
}

absl::Status StandardOutput::Flush() {
  sync();
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
  if (waiting_.size() >= kBufferBytes) sync();
  return error_ == 0 ? count : 0;
}

int StandardOutput::sync() {
  std::string_view left = waiting_;
  while (!left.empty() && error_ == 0) {
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
