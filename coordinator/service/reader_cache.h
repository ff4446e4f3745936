// The checkpoints from which jobs load now: each is opened once for all ranks of its job.
//
// A reader holds the files of its checkpoint open, so that those keep their place on the disk as
// long as it lives, also when the checkpoint is removed. So readers are kept no longer than they
// are needed: until the job saves, and of a few jobs only.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/reader.h"
#include "common/mutex.h"

namespace tercio::coordinator {

class ReaderCache {
 public:
  // The reader of what is at `path` now; what is read of it is verified then. Errors are those
  // of checkpoint::Reader.
  absl::StatusOr<std::shared_ptr<checkpoint::Reader>> Open(const std::string& job,
                                                           const std::string& path);
  // The job has loaded.
  void Forget(const std::string& job);

 private:
  static constexpr size_t kMostJobs = 4;
  struct Entry {
    std::string path;
    // Identity of the manifest, which is another file where another attempt has saved the same
    // step.
    uint64_t inode = 0;
    int64_t changed = 0;  // nanoseconds since 1970
    std::shared_ptr<checkpoint::Reader> reader;
    uint64_t used = 0;
  };

  // Null: none of the same files.
  std::shared_ptr<checkpoint::Reader> Known(const std::string& job, const Entry& now);

  Mutex mutex_;
  std::map<std::string, Entry> entries_ TERCIO_GUARDED_BY(mutex_);  // by job
  uint64_t uses_ TERCIO_GUARDED_BY(mutex_) = 0;
};

}  // namespace tercio::coordinator
