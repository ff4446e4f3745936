// A rank's part of a checkpoint as a file that the rank writes itself (checkpoint.path).
//
// It is written, and where it is not wanted removed, by a thread of its own, which may hang in the
// kernel for as long as the file system does. Nobody waits for it without bound: it shares what it
// uses with this object, and is left behind where it hangs when that is destroyed. The values must
// stay unchanged until Ended().
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

namespace tercio {

// Writes the file, its directories too, and makes it durable. Calls `wrote` with the bytes so far;
// where that returns false nobody wants the file any more.
using WritePart = std::function<absl::StatusOr<v1::UploadEnd>(
    const std::string& path, const std::vector<v1::TensorSlice>& slices, const ValueParts& values,
    const std::function<bool(int64_t bytes)>& wrote)>;

// By checkpoint/part_writer.h.
absl::StatusOr<v1::UploadEnd> WritePartFile(const std::string& path,
                                            const std::vector<v1::TensorSlice>& slices,
                                            const ValueParts& values,
                                            const std::function<bool(int64_t bytes)>& wrote);

class PartFile {
 public:
  // Begins to write. Unless Keep is called the file is removed, at destruction at the latest.
  PartFile(std::string path, std::vector<v1::TensorSlice> slices, ValueParts values,
           WritePart write);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  int64_t bytes() const;
  // Whether nobody reads the values any more; waits for it at most `patience`.
  bool Ended(absl::Duration patience) const;
  // REQUIRES: it has ended. What the manifest must know of the file, or why there is none.
  absl::StatusOr<v1::UploadEnd> result() const;

  // The file is another's now: the coordinator may have committed it.
  void Keep();
  // It is removed, as soon as that is possible.
  void Remove();

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace tercio
