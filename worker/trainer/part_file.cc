#include "worker/trainer/part_file.h"

#include <unistd.h>

#include <optional>
#include <string_view>
#include <utility>

#include "checkpoint/part_writer.h"
#include "common/mutex.h"
#include "common/status_macros.h"

namespace tercio::trainer {
namespace {

// A file system that answers ends a write, or removes a file, within this time.
constexpr absl::Duration kEndTime = absl::Seconds(2);

}  // namespace

absl::StatusOr<v1::UploadEnd> WritePartFile(const std::string& path,
                                            const std::vector<v1::TensorSlice>& slices,
                                            const ValueParts& values,
                                            const std::function<bool(int64_t bytes)>& wrote) {
  const checkpoint::Slices all(slices.begin(), slices.end());
  TERCIO_ASSIGN_OR_RETURN(auto writer, checkpoint::PartWriter::Create(path, all));
  for (const std::string_view chunk : ChunksOf(values)) {
    TERCIO_RETURN_IF_ERROR(writer->Append(chunk));
    // After each chunk, so that a part that is no longer wanted ends soon.
    if (!wrote(writer->written_bytes())) return absl::CancelledError(path + " is no longer wanted");
  }
  return writer->Close();
}

struct PartFile::Shared {
  enum class Fate { kOpen, kKept, kRemoved };

  void Run() {
    absl::StatusOr<v1::UploadEnd> written = write(path, slices, values, [this](int64_t so_far) {
      MutexLock lock(mutex);
      bytes = so_far;
      return fate != Fate::kRemoved;
    });
    MutexLock lock(mutex);
    // A file that is cut short is of no use to anyone.
    if (!written.ok()) fate = Fate::kRemoved;
    result = std::move(written);
    changed.NotifyAll();
    // The coordinator's answer decides, or the end of the object.
    while (fate == Fate::kOpen) changed.Wait(mutex);
    const bool removes = fate == Fate::kRemoved;
    lock.Unlock();
    // Removing may hang like writing, so it is done by this thread, without the lock.
    if (removes) unlink(path.c_str());
    lock.Lock();
    gone = true;
    changed.NotifyAll();
  }

  void Decide(Fate decided) {
    MutexLock lock(mutex);
    // The first decision counts: a file that is to be kept may be committed by now.
    if (fate == Fate::kOpen) fate = decided;
    changed.NotifyAll();
  }

  std::string path;
  std::vector<v1::TensorSlice> slices;
  ValueParts values;
  WritePart write;
  Mutex mutex;
  ConditionVariable changed;
  int64_t bytes TERCIO_GUARDED_BY(mutex) = 0;
  Fate fate TERCIO_GUARDED_BY(mutex) = Fate::kOpen;
  std::optional<absl::StatusOr<v1::UploadEnd>> result TERCIO_GUARDED_BY(mutex);
  bool gone TERCIO_GUARDED_BY(mutex) = false;  // the thread is about to end
};

PartFile::PartFile(std::string path, std::vector<v1::TensorSlice> slices, ValueParts values,
                   WritePart write)
    : shared_(std::make_shared<Shared>()) {
  shared_->path = std::move(path);
  shared_->slices = std::move(slices);
  // These only refer to the snapshot, which stays as it is until Ended().
  shared_->values = std::move(values);
  shared_->write = std::move(write);
  // The thread has a share of its data, and needs nothing of this object.
  thread_ = std::thread([shared = shared_] { shared->Run(); });
}

PartFile::~PartFile() {
  Remove();
  MutexLock lock(shared_->mutex);
  const bool gone =
      shared_->changed.WaitFor(shared_->mutex, absl::ToChronoMilliseconds(kEndTime),
                               [this]() TERCIO_REQUIRES(shared_->mutex) { return shared_->gone; });
  lock.Unlock();
  // A thread in the kernel cannot be ended. It is left
  // alone, and removes the file when it comes back.
  if (gone) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

int64_t PartFile::bytes() const {
  MutexLock lock(shared_->mutex);
  return shared_->bytes;
}

bool PartFile::Ended(absl::Duration patience) const {
  MutexLock lock(shared_->mutex);
  return shared_->changed.WaitFor(
      shared_->mutex, absl::ToChronoMilliseconds(patience),
      [this]() TERCIO_REQUIRES(shared_->mutex) { return shared_->result.has_value(); });
}

absl::StatusOr<v1::UploadEnd> PartFile::result() const {
  MutexLock lock(shared_->mutex);
  return *shared_->result;
}

void PartFile::Keep() { shared_->Decide(Shared::Fate::kKept); }

void PartFile::Remove() { shared_->Decide(Shared::Fate::kRemoved); }

}  // namespace tercio::trainer
