// Where an exception would end the process: at the bottom of a thread that does other people's
// work.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tercio {

// What `work` returns; INTERNAL with its words when it throws.
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
