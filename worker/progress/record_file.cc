#include "worker/progress/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

namespace tercio {

void RecordFile::Create(const std::string& path) {
  Close();
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
}

void RecordFile::Append(const std::string& bytes) {
  if (file_ < 0) return;
  const auto size = static_cast<uint32_t>(bytes.size());
  std::string record(reinterpret_cast<const char*>(&size), sizeof(size));
  record += bytes;
  // After a part of a record nothing could be read any more.
  const ssize_t written = write(file_, record.data(), record.size());
  if (written != static_cast<ssize_t>(record.size())) Close();
}

void RecordFile::Close() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

std::vector<std::string> RecordFile::Read(const std::string& path, int64_t most_bytes) {
  std::vector<std::string> records;
  // Whoever writes it may have fewer rights than who reads it: no way into other files.
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return records;
  std::ifstream file(path, std::ios::binary);
  uint32_t size = 0;
  while (file.read(reinterpret_cast<char*>(&size), sizeof(size)) &&
         int64_t{size} + int64_t{sizeof(size)} <= most_bytes) {
    most_bytes -= int64_t{size} + int64_t{sizeof(size)};
    std::string bytes(size, '\0');
    if (!file.read(bytes.data(), static_cast<std::streamsize>(size))) break;
    records.push_back(std::move(bytes));
  }
  return records;
}

}  // namespace tercio
