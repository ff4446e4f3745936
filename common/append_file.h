// A new file that is written from its beginning to its end, for files of gigabytes: appended bytes
// are gathered in blocks, which threads of the file write to the disk while the next block is
// filled. The process has a bounded number of such threads: a file that gets none, because many
// files are open or the system has no threads left, is written by the thread that appends to it. A
// file that fits into one block needs none. Holds at most 6 MiB with threads, 2 MiB without.
//
// Threads: one at a time.
// Errors: as of common/file.h (RESOURCE_EXHAUSTED: the disk is full). They come late, at the latest
// from Close.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"

namespace tercio {

// The limit of threads that write files at a time. Threads: any.
class WriterThreads {
 public:
  // Throws std::system_error where the system has no thread left, as std::thread does.
  using Start = std::function<std::thread(std::function<void()>)>;
  explicit WriterThreads(int most, Start start = nullptr);
  // The threads that all files of this process share.
  static WriterThreads& Shared();

  // False if no thread is available.
  bool TryStart(std::function<void()> run, std::vector<std::thread>* threads);
  // Returns `threads` that have ended.
  void Return(size_t threads);

 private:
  const int most_;
  const Start start_;
  std::atomic<int> running_ = 0;
};

class AppendFile {
 public:
  enum class Existing { kReplace, kRefuse };
  enum class PageCache {
    // The kernel caches what was written: for files that are read soon.
    kKeep,
    // Blocks bypass the kernel's cache if the file system supports that: less work for the
    // processor, and cached data of others stays cached.
    kBypass,
  };

  // `expected_bytes` are reserved in advance if the file system supports that; the final size may
  // differ. `threads` must outlive the file.
  static absl::StatusOr<std::unique_ptr<AppendFile>> Create(
      std::string path, Existing existing, PageCache cache, int64_t expected_bytes = 0,
      WriterThreads& threads = WriterThreads::Shared());
  // A file that was not closed keeps what was written so far.
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  absl::Status Append(std::string_view bytes);
  // Writes the rest, and waits until all of it is on disk. Called once, last.
  absl::Status Close();

 private:
  struct Free {
    void operator()(char* block) const;
  };
  using Block = std::unique_ptr<char, Free>;

  struct FullBlock {
    Block block;
    int64_t offset = 0;
  };

  AppendFile(std::string path, int descriptor, bool direct, WriterThreads& threads)
      : path_(std::move(path)), descriptor_(descriptor), threads_(threads), direct_(direct) {}
  absl::Status HandOver();
  absl::Status WriteHere();
  absl::Status AwaitWriters();
  void WriteBlocks();
  absl::Status Write(const char* bytes, size_t size, int64_t offset);
  absl::Status WriteRest();
  void StopWriters();

  const std::string path_;
  int descriptor_;
  WriterThreads& threads_;
  std::atomic<bool> direct_;  // bypasses the page cache
  Block filling_;
  size_t filled_ = 0;
  int64_t offset_ = 0;  // offset of the block being filled

  std::vector<std::thread> writers_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<FullBlock> full_ TERCIO_GUARDED_BY(mutex_);
  std::vector<Block> empty_ TERCIO_GUARDED_BY(mutex_);
  int busy_ TERCIO_GUARDED_BY(mutex_) = 0;  // blocks that are full, or being written
  bool stop_ TERCIO_GUARDED_BY(mutex_) = false;
  absl::Status status_ TERCIO_GUARDED_BY(mutex_);  // first failure of the writers
};

}  // namespace tercio
