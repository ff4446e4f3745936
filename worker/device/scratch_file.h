// Memory of the host that a file backs: state for which there is no room elsewhere. The kernel
// reads and writes its pages as they are used, and takes them back when memory is short, so that it
// is addressed as any other memory. The file has no name, so nothing of it stays when the process
// ends, however it ends.
//
// Threads: any, on ranges of their own.
// Failure: a disk that cannot be read or written ends the process (SIGBUS), after a line to stderr
// that says so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/device/device.h"

namespace tercio::device {

class ScratchFile : public DeviceMemory {
 public:
  // Zero-filled; all of its blocks are allocated. FAILED_PRECONDITION: the directory cannot be
  // used, or has no room for the bytes.
  static absl::StatusOr<std::unique_ptr<ScratchFile>> Create(const std::string& directory,
                                                             int64_t bytes);
  ~ScratchFile() override;
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  std::byte* data() override { return static_cast<std::byte*>(data_); }
  int64_t size_bytes() const override { return size_; }
  bool IsOnHost() const override { return true; }
  // Pages in memory are copies of the file's, which the kernel can take back.
  std::optional<int64_t> ResidentBytes(int64_t, int64_t) const override { return 0; }

  bool Contains(const void* place) const {
    const auto* at = static_cast<const std::byte*>(place);
    const auto* begin = static_cast<const std::byte*>(data_);
    return at >= begin && at < begin + size_;
  }
  // Hints about a range, in bytes from data(): it is read soon; it was written, and is not written
  // again soon.
  void ReadAhead(int64_t begin, int64_t bytes) const;
  void WriteBehind(int64_t begin, int64_t bytes) const;

 private:
  ScratchFile(int descriptor, void* data, int64_t size)
      : descriptor_(descriptor), data_(data), size_(size) {}

  const int descriptor_;
  void* const data_;
  const int64_t size_;
};

}  // namespace tercio::device
