// A rank's part of a checkpoint as a file that the rank writes itself (checkpoint.path).
//
// It is written, and removed if it is not wanted, by a thread of its own, which may hang in the
// kernel for as long as the file system does. No wait for it is unbounded: it shares its data with
// this object, and is abandoned if it hangs when that is destroyed. The values must stay unchanged
// until Ended().
//
// Threads: methods from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"
#include "worker/trainer/chunks.h"

namespace tercio::trainer {

// Writes the file, including its directories, and makes it durable. Calls `wrote` with the bytes so
// far; if that returns false the file is no longer wanted.
using WritePart = std::function<absl::StatusOr<v1::UploadEnd>(
    const std::string& path, const std::vector<v1::TensorSlice>& slices, const ValueParts& values,
    const std::function<bool(int64_t bytes)>& wrote)>;

// Uses checkpoint/part_writer.h.
absl::StatusOr<v1::UploadEnd> WritePartFile(const std::string& path,
                                            const std::vector<v1::TensorSlice>& slices,
                                            const ValueParts& values,
                                            const std::function<bool(int64_t bytes)>& wrote);

class PartFile {
 public:
  // Starts writing. Unless Keep is called the file is removed, at destruction at the latest.
  PartFile(std::string path, std::vector<v1::TensorSlice> slices, ValueParts values,
           WritePart write);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  int64_t bytes() const;
  // Waits at most `patience`, and returns whether the values are no longer read.
  bool Ended(absl::Duration patience) const;
  // REQUIRES: it has ended. The file's data for the manifest, or why there is no file.
  absl::StatusOr<v1::UploadEnd> result() const;

  // Leaves the file in place: the coordinator may have committed it.
  void Keep();
  // Removes the file as soon as possible.
  void Remove();

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace tercio::trainer
