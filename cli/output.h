// What verbs print on standard output, and whether it has arrived there.
#pragma once

#include <streambuf>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/format.h"
#include "cli/options.h"

namespace tercio::cli {

// std::cout goes through it while it lives: the error of a write is remembered, so that no output
// is lost unnoticed. One at a time.
class StandardOutput : public std::streambuf {
 public:
  explicit StandardOutput(int descriptor = 1);
  ~StandardOutput() override;
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;

  // Writes what is left. RESOURCE_EXHAUSTED: the disk is full; FAILED_PRECONDITION: nothing can be
  // written there. That nobody reads any more is no error.
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

// One value: for json indented, for jsonl a line, and of an array a line for each element. Bytes
// that are not UTF-8 are replaced.
void PrintJson(const Json& json, Output format);

// On standard error, a line each: what a person should know of a verb that does what it was asked.
void PrintNotices(const std::vector<std::string>& notices);

// Messages of a stream as they come: for jsonl a line each, for json the elements of one array.
class JsonStream {
 public:
  explicit JsonStream(Output format) : format_(format) {}

  void Add(const Json& json);
  // The stream has come to its end; without it an array stays open, and if nothing was added
  // nothing is printed.
  void Finish();

 private:
  const Output format_;
  bool any_ = false;
};

}  // namespace tercio::cli
