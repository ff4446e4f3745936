// The record of errors that CUDA's operations meet at their call. They have no result, so the first
// error is kept here, and the thread that synchronizes the stream reads it.
//
// Threads: thread-compatible; used by the thread that feeds the stream.
#pragma once

#include <optional>
#include <string>

namespace tercio::kernels::cuda {

struct OperationError {
  std::string operation;  // "MatmulBackwardWeight"; at which it was noticed
  std::string what;       // the library's name and words for it
};

class OperationErrors {
 public:
  void Report(const char* operation, std::string what) {
    if (!first_) first_ = OperationError{operation, std::move(what)};
  }
  const std::optional<OperationError>& first() const { return first_; }
  // Restores `before`, a copy of this.
  void Forget(const OperationErrors& before) { first_ = before.first_; }

 private:
  std::optional<OperationError> first_;
};

}  // namespace tercio::kernels::cuda
