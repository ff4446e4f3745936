// Catches exceptions where they would end the process: at the bottom of a thread that runs work for
// others.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tercio {

// Returns `work()`; INTERNAL with the exception's message if it throws.
inline absl::Status CatchAll(const std::function<absl::Status()>& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("exception: ", error.what()));
  } catch (...) {
    return absl::InternalError("exception of an unknown kind");
  }
}

}  // namespace tercio
