#include "worker/progress/record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/untrusted_file.h"

namespace tercio::progress {

void RecordFile::Create(const std::string& path) {
  Close();
  // Without the file messages are dropped, which their senders have to expect anyway.
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
}

void RecordFile::Append(const std::string& bytes) {
  if (file_ < 0) return;
  const auto size = static_cast<uint32_t>(bytes.size());
  std::string record(reinterpret_cast<const char*>(&size), sizeof(size));
  // One write for both: a killed process leaves a whole record, or its beginning.
  record += bytes;
  // Nothing after a partial record could be read.
  const ssize_t written = write(file_, record.data(), record.size());
  if (written != static_cast<ssize_t>(record.size())) Close();
}

void RecordFile::Close() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

std::vector<std::string> RecordFile::Read(const std::string& path, int64_t most_bytes) {
  std::vector<std::string> records;
  const auto file = UntrustedFile::Open(path);
  if (!file.ok()) return records;
  // The writer chose the size, and the reader is the agent of a whole node.
  const int64_t end = std::min(file->size(), most_bytes);
  uint32_t size = 0;
  for (int64_t at = 0; at + int64_t{sizeof(size)} <= end;) {
    const std::string prefix = file->Read(at, sizeof(size));
    if (prefix.size() != sizeof(size)) break;
    std::memcpy(&size, prefix.data(), sizeof(size));
    at += int64_t{sizeof(size)};
    // The record was cut off, or its size is not to be believed.
    if (at + int64_t{size} > end) break;
    std::string bytes = file->Read(at, size);
    if (bytes.size() != size) break;
    at += int64_t{size};
    records.push_back(std::move(bytes));
  }
  return records;
}

}  // namespace tercio::progress
