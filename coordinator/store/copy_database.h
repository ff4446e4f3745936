// A copy of a SQLite database that others may be writing to: all of what is committed when it
// begins, or no change of the copy that was there before.
//
// Threads: any; blocks for as long as the copying takes.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tercio::coordinator {

struct CopyOptions {
  // Asked before every step; true ends the copying. Null: it is never stopped.
  std::function<bool()> stop;
  // How long another connection may keep a lock on either file.
  absl::Duration patience = absl::Seconds(5);
  int pages_per_step = 256;
};

// Writes `to`.partial, and puts it in the place of `to` in one rename when it is complete and on
// the disk. Errors, each of which leaves `to` as it was: CANCELLED (`stop`), ABORTED (locked for
// longer than `patience`), RESOURCE_EXHAUSTED (disk full), FAILED_PRECONDITION (cannot be opened,
// damaged), INTERNAL.
absl::Status CopyDatabase(const std::string& from, const std::string& to,
                          const CopyOptions& options);

}  // namespace tercio::coordinator
