// Standard output of the verbs, with errors of writing it.
#pragma once

#include <streambuf>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/format.h"
#include "cli/global_options.h"

namespace tercio::cli {

// std::cout goes through this object during its lifetime. It remembers the error of a write, so
// that no output is lost unnoticed. One at a time.
class StandardOutput : public std::streambuf {
 public:
  explicit StandardOutput(int descriptor = 1);
  ~StandardOutput() override;
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;

  // Writes the rest of the buffer. RESOURCE_EXHAUSTED: the disk is full; FAILED_PRECONDITION: the
  // output cannot be written. A reader that has gone is no error.
  absl::Status Flush();

 protected:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* bytes, std::streamsize count) override;
  int sync() override;

 private:
  const int descriptor_;
  std::streambuf* const before_;
  std::string waiting_;
  int error_ = 0;  // errno of the first write that failed; what follows is dropped
};

// Prints one value: indented for json; for jsonl on one line, or one line per element of an array.
// Bytes that are not UTF-8 are replaced.
void PrintJson(const Json& json, Output format);

// Prints to standard error, a line each, what a user should know about a verb that did what it was
// asked.
void PrintNotices(const std::vector<std::string>& notices);

// Prints the messages of a stream as they come: for jsonl one line each, for json the elements of
// one array.
class JsonStream {
 public:
  explicit JsonStream(Output format) : format_(format) {}

  void Add(const Json& json);
  // Ends the output. Without this call an array stays open, and if nothing was added nothing is
  // printed.
  void Finish();

 private:
  const Output format_;
  bool any_ = false;
};

}  // namespace tercio::cli
