// Notes for people on how operations are computed: which library is used, and which of its results
// were not trusted. The thread that synchronizes the stream logs them.
//
// Threads: thread-compatible; used by the thread that feeds the stream.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tercio::kernels::cuda {

struct OperationNote {
  bool warning;
  std::string text;
};

class OperationNotes {
 public:
  void Info(std::string text) { notes_.push_back({false, std::move(text)}); }
  void Warn(std::string text) { notes_.push_back({true, std::move(text)}); }
  // The notes since the last call.
  std::vector<OperationNote> Take() { return std::exchange(notes_, {}); }

 private:
  std::vector<OperationNote> notes_;
};

}  // namespace tercio::kernels::cuda
