#include "worker/agent/snapshots/snapshot_store.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checksum.h"
#include "common/status_macros.h"

namespace tercio::agent {
namespace {

// This is more than any machine has, and far from where sums overflow.
constexpr int64_t kMostBytes = int64_t{1} << 50;
constexpr double kMiB = 1 << 20;

// The attempt comes first, since a later one may go back to an earlier step.
std::pair<int, int64_t> AgeOf(const v1::SnapshotBegin& begin) {
  return {begin.run().attempt(), begin.step()};
}

// -1 if the sizes are inconsistent.
int64_t BytesOf(const v1::SnapshotBegin& begin) {
  int64_t bytes = 0;
  for (const v1::TensorSlice& slice : begin.slices()) {
    // The limits come from another machine: they are compared before they are subtracted.
    if (slice.row_begin() < 0 || slice.row_end() <= slice.row_begin()) return -1;
    if (slice.column_begin() < 0 || slice.column_end() <= slice.column_begin()) return -1;
    // The numbers come from other processes: each product is bounded before it is computed.
    const int64_t rows = slice.row_end() - slice.row_begin();
    const int64_t columns = slice.column_end() - slice.column_begin();
    if (rows > kMostBytes / columns / static_cast<int64_t>(sizeof(float))) return -1;
    bytes += rows * columns * static_cast<int64_t>(sizeof(float));
    if (bytes > kMostBytes) return -1;
  }
  return bytes;
}

void Describe(const SnapshotCopy& copy, v1::SnapshotsHeld* held) {
  v1::SnapshotHeld* out = held->add_snapshots();
  *out->mutable_run() = copy.begin.run();
  out->set_rank(copy.begin.rank());
  out->set_step(copy.begin.step());
  *out->mutable_steps() = copy.begin.steps();
}

}  // namespace

// The sender's side of a copy. It has an id, since a rank may begin another before this one ends.
struct SnapshotStore::Incoming::State {
  uint64_t id = 0;
  std::shared_ptr<SnapshotCopy> copy;
  size_t filled = 0;
  Checksum checksum;
};

SnapshotStore::Incoming::Incoming(SnapshotStore& store, std::unique_ptr<State> state)
    : store_(store), state_(std::move(state)) {}

SnapshotStore::Incoming::~Incoming() { store_.Release(*state_); }

absl::Status SnapshotStore::Incoming::Append(std::string_view bytes) {
  if (bytes.size() > state_->copy->size - state_->filled) {
    return absl::InvalidArgumentError("more bytes than announced");
  }
  // No lock is held: until it is complete, only its sender knows of the copy.
  std::memcpy(state_->copy->data.get() + state_->filled, bytes.data(), bytes.size());
  state_->filled += bytes.size();
  state_->checksum.Update(bytes);
  MutexLock lock(store_.mutex_);
  store_.unfilled_bytes_ -= static_cast<int64_t>(bytes.size());
  const v1::SnapshotBegin& begin = state_->copy->begin;
  const auto rank = store_.ranks_.find({begin.run().job_id(), begin.rank()});
  // A rank that begins another copy has given up this one.
  if (rank != store_.ranks_.end() && rank->second.incoming == state_->id) return absl::OkStatus();
  return absl::AbortedError("a later copy has begun, or the job has ended");
}

absl::Status SnapshotStore::Incoming::Finish(const v1::UploadEnd& end) {
  const SnapshotCopy& copy = *state_->copy;
  if (state_->filled != copy.size || end.bytes() != static_cast<int64_t>(copy.size)) {
    return absl::DataLossError(
        absl::StrCat("the copy has ", state_->filled, " bytes of ", copy.size));
  }
  if (state_->checksum.Hex() != end.checksum()) {
    return absl::DataLossError("the checksum of the copy does not match");
  }
  state_->copy->checksum = end.checksum();
  return store_.Complete(*state_);
}

absl::StatusOr<std::unique_ptr<SnapshotStore::Incoming>> SnapshotStore::Begin(
    v1::SnapshotBegin begin) {
  // The copy is given out later, with its begin: the token must not be.
  begin.clear_token();
  if (begin.step() <= 0 || begin.rank() < 0 || begin.bytes() <= 0 ||
      begin.bytes() != BytesOf(begin)) {
    return absl::InvalidArgumentError("the sizes of the snapshot are inconsistent");
  }
  auto state = std::make_unique<Incoming::State>();
  {
    MutexLock lock(mutex_);
    TERCIO_RETURN_IF_ERROR(MakeRoom(begin));
    state->copy = std::make_shared<SnapshotCopy>();
    state->copy->size = static_cast<size_t>(begin.bytes());
    // Nothing is zeroed here, since all of it will be received. A
    // failure must not end the agent, which other jobs depend on.
    state->copy->data.reset(new (std::nothrow) char[state->copy->size]);
    if (state->copy->data == nullptr) {
      return absl::ResourceExhaustedError("out of memory for a copy of a snapshot");
    }
    state->id = ++last_id_;
    ranks_[{begin.run().job_id(), begin.rank()}].incoming = state->id;
    // Room is taken when a copy begins, so that two of them do not count on the same memory.
    incoming_bytes_ += begin.bytes();
    unfilled_bytes_ += begin.bytes();
    state->copy->begin = std::move(begin);
  }
  options_.on_bytes(bytes());
  return std::unique_ptr<Incoming>(new Incoming(*this, std::move(state)));
}

// Drops the copies that the new one replaces, and checks whether there is room.
absl::Status SnapshotStore::MakeRoom(const v1::SnapshotBegin& begin) {
  const std::string& job = begin.run().job_id();
  // The second snapshot of a new attempt shows that nobody will go back to those of the old one.
  bool later_attempt = false;  // has an earlier snapshot
  for (auto entry = ranks_.lower_bound({job, 0}); entry != ranks_.end(); ++entry) {
    if (entry->first.first != job) break;
    for (const CopyPtr& copy : entry->second.complete) {
      later_attempt |=
          copy->begin.run().attempt() == begin.run().attempt() && copy->begin.step() < begin.step();
    }
  }
  std::vector<CopyPtr>& own = ranks_[{job, begin.rank()}].complete;
  if (!own.empty() && AgeOf(own.back()->begin) > AgeOf(begin)) {
    return absl::AbortedError(absl::StrCat("there is a later copy of rank ", begin.rank()));
  }
  // This comes before the new copy arrives, so that there are never three.
  if (own.size() > 1) own.erase(own.begin(), own.end() - 1);
  for (auto entry = ranks_.lower_bound({job, 0}); later_attempt && entry != ranks_.end(); ++entry) {
    if (entry->first.first != job) break;
    std::erase_if(entry->second.complete, [&](const CopyPtr& copy) {
      return copy->begin.run().attempt() < begin.run().attempt();
    });
  }
  // Allocated pages that were never written still count as available to the machine.
  const int64_t free = options_.available_bytes() - unfilled_bytes_ - reserve_bytes_;
  if (begin.bytes() <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "not enough memory for a copy of %.1f MiB: %.1f MiB are free beyond the reserve of %.1f MiB",
      static_cast<double>(begin.bytes()) / kMiB,
      static_cast<double>(std::max<int64_t>(0, free)) / kMiB,
      static_cast<double>(reserve_bytes_) / kMiB));
}

void SnapshotStore::SetReserve(int64_t bytes) {
  MutexLock lock(mutex_);
  reserve_bytes_ = bytes;
}

absl::Status SnapshotStore::Complete(Incoming::State& state) {
  v1::SnapshotsHeld held;
  {
    MutexLock lock(mutex_);
    const v1::SnapshotBegin& begin = state.copy->begin;
    const auto rank = ranks_.find({begin.run().job_id(), begin.rank()});
    if (rank == ranks_.end() || rank->second.incoming != state.id) {
      return absl::AbortedError("a later copy has begun, or the job has ended");
    }
    std::vector<CopyPtr>& complete = rank->second.complete;
    std::erase_if(complete, [&](const CopyPtr& copy) {
      return AgeOf(copy->begin) == AgeOf(begin);  // sent again
    });
    complete.push_back(state.copy);
    rank->second.incoming = 0;
    incoming_bytes_ -= begin.bytes();
    Describe(*state.copy, &held);
    // Release then has nothing to give back.
    state.copy = nullptr;
  }
  // The lock is free by now: callbacks may look into the store.
  options_.on_held(std::move(held));
  return absl::OkStatus();
}

void SnapshotStore::Release(const Incoming::State& state) {
  if (state.copy == nullptr) return;  // complete
  {
    MutexLock lock(mutex_);
    const v1::SnapshotBegin& begin = state.copy->begin;
    incoming_bytes_ -= begin.bytes();
    // Append has subtracted what did arrive.
    unfilled_bytes_ -= begin.bytes() - static_cast<int64_t>(state.filled);
    const auto rank = ranks_.find({begin.run().job_id(), begin.rank()});
    if (rank != ranks_.end() && rank->second.incoming == state.id) rank->second.incoming = 0;
  }
  options_.on_bytes(bytes());
}

std::shared_ptr<const SnapshotCopy> SnapshotStore::Find(const std::string& job, int attempt,
                                                        int rank, int64_t step) const {
  MutexLock lock(mutex_);
  const auto found = ranks_.find({job, rank});
  if (found == ranks_.end()) return nullptr;
  for (const CopyPtr& copy : found->second.complete) {
    if (AgeOf(copy->begin) == std::make_pair(attempt, step)) return copy;
  }
  return nullptr;
}

void SnapshotStore::Drop(const std::string& job) {
  {
    MutexLock lock(mutex_);
    // A copy that is being given out lives until its reader lets go of it.
    std::erase_if(ranks_, [&](const auto& entry) { return entry.first.first == job; });
  }
  options_.on_bytes(bytes());
}

v1::SnapshotsHeld SnapshotStore::Inventory() const {
  MutexLock lock(mutex_);
  v1::SnapshotsHeld held;
  // The coordinator forgets what it is not told here.
  held.set_all(true);
  for (const auto& [key, rank] : ranks_) {
    for (const CopyPtr& copy : rank.complete) Describe(*copy, &held);
  }
  return held;
}

int64_t SnapshotStore::bytes() const {
  MutexLock lock(mutex_);
  int64_t bytes = incoming_bytes_;
  for (const auto& [key, rank] : ranks_) {
    for (const CopyPtr& copy : rank.complete) bytes += static_cast<int64_t>(copy->size);
  }
  return bytes;
}

}  // namespace tercio::agent
