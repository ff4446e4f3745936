#include "common/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/check.h"
#include "common/file.h"
#include "common/status_macros.h"

namespace tercio {
namespace {

constexpr size_t kBlockBytes = size_t{2} << 20;
// A disk that gets the next block before it has finished the last one is never idle.
constexpr size_t kWriters = 2;
// The most writer threads in this process; far fewer keep a disk busy.
constexpr int kMostWriters = 64;
// The alignment that O_DIRECT requires of addresses, offsets and sizes on any disk.
constexpr size_t kAlignment = 4096;

char* NewBlock() {
  void* block = std::aligned_alloc(kAlignment, kBlockBytes);
  TERCIO_CHECK(block != nullptr);
  return static_cast<char*>(block);
}

size_t RoundUp(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

WriterThreads::WriterThreads(int most, Start start)
    // Tests replace threads to see what happens when there are none.
    : most_(most), start_(start != nullptr ? std::move(start) : [](std::function<void()> run) {
        return std::thread(std::move(run));
      }) {}

WriterThreads& WriterThreads::Shared() {
  // The object is never freed: threads may return to it while the process ends.
  static auto* const shared = new WriterThreads(kMostWriters);
  return *shared;
}

bool WriterThreads::TryStart(std::function<void()> run, std::vector<std::thread>* threads) {
  // Counting before comparing keeps two files from taking the last place together.
  if (running_.fetch_add(1) >= most_) {
    --running_;
    return false;
  }
  try {
    threads->push_back(start_(std::move(run)));
  } catch (const std::system_error&) {
    // A system without threads left still writes, in the caller's thread.
    --running_;
    return false;
  }
  return true;
}

void WriterThreads::Return(size_t threads) { running_ -= static_cast<int>(threads); }

void AppendFile::Free::operator()(char* block) const { std::free(block); }

absl::StatusOr<std::unique_ptr<AppendFile>> AppendFile::Create(std::string path, Existing existing,
                                                               PageCache cache,
                                                               int64_t expected_bytes,
                                                               WriterThreads& threads) {
  const int flags =
      O_WRONLY | O_CREAT | O_CLOEXEC | (existing == Existing::kReplace ? O_TRUNC : O_EXCL);
  const int descriptor = open(path.c_str(), flags, 0644);
  if (descriptor < 0) return FileError(errno, "cannot create", path);
  // A file system without O_DIRECT fails here or at the first write.
  const bool direct = cache == PageCache::kBypass && fcntl(descriptor, F_SETFL, O_DIRECT) == 0;
  std::unique_ptr<AppendFile> file(new AppendFile(path, descriptor, direct, threads));
  // The room is reserved at once, so that a full disk is
  // found before the upload and not at its end.
  if (expected_bytes > 0 && fallocate(descriptor, 0, 0, expected_bytes) != 0 && errno == ENOSPC) {
    return FileError(errno, "cannot reserve", path);
  }
  return file;
}

AppendFile::~AppendFile() {
  // Writers use the descriptor.
  StopWriters();
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status AppendFile::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    if (filling_ == nullptr) filling_.reset(NewBlock());
    const size_t taken = std::min(bytes.size(), kBlockBytes - filled_);
    std::memcpy(filling_.get() + filled_, bytes.data(), taken);
    filled_ += taken;
    bytes.remove_prefix(taken);
    if (filled_ == kBlockBytes) TERCIO_RETURN_IF_ERROR(HandOver());
  }
  return absl::OkStatus();
}

absl::Status AppendFile::HandOver() {
  // Writers are started when there is a whole block: small files need none.
  if (writers_.size() < kWriters) threads_.TryStart([this] { WriteBlocks(); }, &writers_);
  if (writers_.empty()) return WriteHere();
  MutexLock lock(mutex_);
  full_.push_back({std::move(filling_), offset_});
  offset_ += static_cast<int64_t>(kBlockBytes);
  filled_ = 0;
  ++busy_;
  changed_.NotifyAll();
  // A caller that is faster than the disk waits here, which bounds the memory.
  while (busy_ > static_cast<int>(kWriters)) changed_.Wait(mutex_);
  // Blocks are used again, as new ones would have to be cleared by the kernel.
  if (!empty_.empty()) {
    filling_ = std::move(empty_.back());
    empty_.pop_back();
  }
  return status_;
}

absl::Status AppendFile::WriteHere() {
  TERCIO_RETURN_IF_ERROR(Write(filling_.get(), kBlockBytes, offset_));
  offset_ += static_cast<int64_t>(kBlockBytes);
  filled_ = 0;
  return absl::OkStatus();
}

absl::Status AppendFile::AwaitWriters() {
  MutexLock lock(mutex_);
  // A block that is being written may still fail.
  while (busy_ != 0) changed_.Wait(mutex_);
  return status_;
}

void AppendFile::WriteBlocks() {
  MutexLock lock(mutex_);
  while (true) {
    while (full_.empty() && !stop_) changed_.Wait(mutex_);
    if (full_.empty()) return;
    FullBlock full = std::move(full_.front());
    full_.pop_front();
    // The disk is written without the lock, so that the next block can be filled.
    lock.Unlock();
    const absl::Status status = Write(full.block.get(), kBlockBytes, full.offset);
    lock.Lock();
    // The first error is kept: later ones follow from it.
    status_.Update(status);
    empty_.push_back(std::move(full.block));
    --busy_;
    changed_.NotifyAll();
  }
}

absl::Status AppendFile::Write(const char* bytes, size_t size, int64_t offset) {
  while (size > 0) {
    const ssize_t written = pwrite(descriptor_, bytes, size, offset);
    if (written < 0 && errno == EINTR) continue;
    // This is how a file system without O_DIRECT answers: the block is written again without it.
    if (written < 0 && errno == EINVAL && direct_.exchange(false)) {
      if (fcntl(descriptor_, F_SETFL, 0) == 0) continue;
      return FileError(EINVAL, "cannot write", path_);
    }
    if (written < 0) return FileError(errno, "cannot write", path_);
    // Lets the disk start immediately. Only a hint: errors are those of fsync.
    if (!direct_) (void)sync_file_range(descriptor_, offset, written, SYNC_FILE_RANGE_WRITE);
    bytes += written;
    size -= static_cast<size_t>(written);
    offset += written;
  }
  return absl::OkStatus();
}

// Direct writes are whole multiples of the alignment, so the file is truncated to its size
// afterwards, as is space that was reserved in excess.
absl::Status AppendFile::WriteRest() {
  if (filled_ > 0) {
    const size_t padded = direct_ ? RoundUp(filled_) : filled_;
    // The padding must not contain what the memory held before.
    std::memset(filling_.get() + filled_, 0, padded - filled_);
    TERCIO_RETURN_IF_ERROR(Write(filling_.get(), padded, offset_));
  }
  if (ftruncate(descriptor_, offset_ + static_cast<int64_t>(filled_)) != 0) {
    return FileError(errno, "cannot truncate", path_);
  }
  return absl::OkStatus();
}

absl::Status AppendFile::Close() {
  TERCIO_RETURN_IF_ERROR(AwaitWriters());
  TERCIO_RETURN_IF_ERROR(WriteRest());
  // The writes may have returned before the disk had them.
  if (fsync(descriptor_) != 0) return FileError(errno, "cannot sync", path_);
  if (close(std::exchange(descriptor_, -1)) != 0) return FileError(errno, "cannot close", path_);
  return absl::OkStatus();
}

void AppendFile::StopWriters() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& writer : writers_) writer.join();
  threads_.Return(writers_.size());
}

}  // namespace tercio
