// Copies of snapshots of ranks, of this node and of others, in this process's memory: volatile.
//
// There are at most two copies of each rank at any time: the newest complete one, and either the
// previous one or the one that is being received. Thus a snapshot of all ranks is always complete
// somewhere while the next is on its way, as no rank begins to send one before all have sent the
// last. Copies of an older attempt are dropped when a rank begins to send the second snapshot of a
// later one.
//
// A copy counts once its checksum has been verified. Room for it is reserved when it begins; it is
// refused if the machine would have less than a reserve left.
//
// Threads: all methods from any thread; an Incoming from one at a time, not beyond the store's
// life. Callbacks come without a lock held, from the thread that made the change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"
#include "proto/tercio/v1/node_service.pb.h"
#include "proto/tercio/v1/snapshot_service.pb.h"

namespace tercio::agent {

// Immutable once it is complete.
struct SnapshotCopy {
  v1::SnapshotBegin begin;  // without token
  std::unique_ptr<char[]> data;
  size_t size = 0;
  std::string checksum;
  std::string_view bytes() const { return {data.get(), size}; }
};

class SnapshotStore {
 public:
  struct Options {
    int64_t reserve_bytes = 0;
    std::function<int64_t()> available_bytes;  // available memory of the machine
    // Called when a copy is complete.
    std::function<void(v1::SnapshotsHeld)> on_held = [](v1::SnapshotsHeld) {};
    std::function<void(int64_t bytes)> on_bytes = [](int64_t) {};
  };

  // A copy that is being received; releases its room if it is destroyed unfinished.
  class Incoming {
   public:
    ~Incoming();
    Incoming(const Incoming&) = delete;
    Incoming& operator=(const Incoming&) = delete;

    // INVALID_ARGUMENT beyond the announced size, ABORTED when a later copy of this rank has begun.
    absl::Status Append(std::string_view bytes);
    // Makes it visible. DATA_LOSS when size or checksum differ, ABORTED as above.
    absl::Status Finish(const v1::UploadEnd& end);

   private:
    friend class SnapshotStore;
    struct State;
    Incoming(SnapshotStore& store, std::unique_ptr<State> state);
    SnapshotStore& store_;
    std::unique_ptr<State> state_;
  };

  explicit SnapshotStore(Options options)
      : options_(std::move(options)), reserve_bytes_(options_.reserve_bytes) {}

  // INVALID_ARGUMENT: inconsistent sizes. ABORTED: there is a later copy of the rank.
  // RESOURCE_EXHAUSTED: no room; the message names what is free.
  absl::StatusOr<std::unique_ptr<Incoming>> Begin(v1::SnapshotBegin begin) TERCIO_EXCLUDES(mutex_);

  // A complete copy, null if there is none. It lives as long as it is held.
  std::shared_ptr<const SnapshotCopy> Find(const std::string& job, int attempt, int rank,
                                           int64_t step) const TERCIO_EXCLUDES(mutex_);

  // Drops the copies of the job, which are of no further use.
  void Drop(const std::string& job) TERCIO_EXCLUDES(mutex_);

  // All complete copies.
  v1::SnapshotsHeld Inventory() const TERCIO_EXCLUDES(mutex_);

  // Bytes of all copies, complete or not.
  int64_t bytes() const TERCIO_EXCLUDES(mutex_);

  // Applies to copies that begin from now on.
  void SetReserve(int64_t bytes) TERCIO_EXCLUDES(mutex_);

 private:
  using CopyPtr = std::shared_ptr<const SnapshotCopy>;
  using Key = std::pair<std::string, int>;  // job, rank
  struct Rank {
    std::vector<CopyPtr> complete;  // oldest first
    uint64_t incoming = 0;          // the newest one on its way; 0: none
  };

  absl::Status MakeRoom(const v1::SnapshotBegin& begin) TERCIO_REQUIRES(mutex_);
  absl::Status Complete(Incoming::State& state) TERCIO_EXCLUDES(mutex_);
  void Release(const Incoming::State& state) TERCIO_EXCLUDES(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  int64_t reserve_bytes_ TERCIO_GUARDED_BY(mutex_);  // from the options, until it is set
  std::map<Key, Rank> ranks_ TERCIO_GUARDED_BY(mutex_);
  int64_t incoming_bytes_ TERCIO_GUARDED_BY(mutex_) = 0;
  // The part of these that the machine does not count as used yet.
  int64_t unfilled_bytes_ TERCIO_GUARDED_BY(mutex_) = 0;
  uint64_t last_id_ TERCIO_GUARDED_BY(mutex_) = 0;
};

}  // namespace tercio::agent
