// The memory that the ranks of one emulated NCCL communicator share, threads and processes alike.
// It begins as zeros, which is its first state, so no rank has to prepare it for the others; its
// name is removed as soon as all ranks have it.
//
// Threads: members that are not atomic are written by one rank, and read by others after they have
// seen the counter that the rank has raised afterwards. Internal to the emulation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tercio::emulation {

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// The call of one rank; equal on all, except for which end of a message it is.
struct NcclCall {
  int32_t operation;
  int32_t type;
  int32_t root;  // the sender of a message
  uint64_t count;
  uint64_t sequence;

  bool operator==(const NcclCall&) const = default;
};

struct NcclSlot {
  static constexpr size_t kBytes = 64 << 10;

  std::atomic<uint32_t> claimed;
  int32_t process;
  int32_t device;

  // Pieces of calls, counted over all calls: those that it has laid out, and those that it has read
  // of all others.
  std::atomic<uint64_t> published;
  std::atomic<uint64_t> read;
  NcclCall call;
  alignas(64) std::byte data[kBytes];

  // Whether it has reached its first message.
  std::atomic<uint32_t> sends_messages;

  // Splits of the communicator: how many it has requested; its arguments for the last two, since
  // others may not have seen the last but one.
  std::atomic<uint64_t> splits;
  struct {
    int32_t color;
    int32_t key;
  } wishes[2];
};

struct NcclHeader {
  std::atomic<uint32_t> ranks;
  std::atomic<uint32_t> arrived;
  enum : uint32_t { kNone, kBeingWritten, kWritten };
  std::atomic<uint32_t> fault;
  char message[384];  // text of the fault
};

class NcclSegment {
 public:
  // Rank `rank` of the segment `name`. Null: `error` holds the reason.
  static std::unique_ptr<NcclSegment> Open(const std::string& name, int rank, int ranks, int device,
                                           std::string* error);
  ~NcclSegment();
  NcclSegment(const NcclSegment&) = delete;
  NcclSegment& operator=(const NcclSegment&) = delete;

  bool Complete() const;  // all ranks have joined
  NcclHeader& header() { return *header_; }
  NcclSlot& slot(int rank) { return slots_[rank]; }

  // The first fault of all ranks stays.
  void Fail(const std::string& message);

 private:
  NcclSegment(std::string name, void* memory, size_t bytes);

  const std::string name_;
  void* const memory_;
  const size_t bytes_;
  NcclHeader* const header_;
  NcclSlot* const slots_;
};

}  // namespace tercio::emulation
