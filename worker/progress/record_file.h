// A file of byte strings, one after another: the messages that a trainer could not send to any
// agent, for the agent that finds it. Each is written immediately, so that a killed writer leaves
// whole ones and at most the beginning of another, which is not read.
//
// Not thread-safe. Errors: writes to a file that cannot be written are dropped; one that cannot be
// read holds nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tercio::progress {

class RecordFile {
 public:
  RecordFile() = default;
  ~RecordFile() { Close(); }
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  // Starts an empty file.
  void Create(const std::string& path);
  void Append(const std::string& bytes);
  bool is_open() const { return file_ >= 0; }
  void Close();

  // Reads at most `most_bytes` of the file. Its writer may have fewer rights than the caller:
  // nothing is read through a link or from a FIFO (common/untrusted_file.h).
  static std::vector<std::string> Read(const std::string& path, int64_t most_bytes);

 private:
  int file_ = -1;
};

}  // namespace tercio::progress
