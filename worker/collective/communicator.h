// Collectives of one process group, in stream order and in a fixed order of summation: for given
// inputs and group size the result has always the same bits, and the same on every rank.
//
// Data is memory of the device. Sums of values are rounded once, at the end. Counts are elements,
// never bytes. Every rank of the group issues the same sequence of calls. Each call has an identity
// (call_identity.h: group, sequence number, operation, type, count), which each rank sends to rank
// 0 of the group beside its data, and which a message carries to its receiver: where ranks are at
// different calls, the call ends with an error that names both (INTERNAL) instead of a deadlock,
// and no rank reads data of another call. A call that does not finish within the timeout ends with
// an error that names the call and the peer.
//
// Sent bytes are counted where a call is made. Between memories of hosts they are those of the
// messages of our own collectives, without the identities beside them; with n elements of b bytes
// (4; doubles have 8) on r ranks, where slice(k) is the part of rank k:
//   sum of values            b * (n - slice(k) + (r - 1) * slice(k))
//   sum of doubles           rank 0: (r - 1) * n * b, the others n * b; a barrier is one of n = 1
//   scatter of a sum         (r - 1) * n * b, n elements for each rank; gathering: the same
//   scatter of a sum in place, gathering of parts
//                            b * (n - slice(k)); b * (r - 1) * slice(k)
//   all to all               the parts for others
//   broadcast                the root (r - 1) * bytes, the others 0
//   message                  its bytes
// NCCL chooses its own messages: its bytes are computed, those of a ring (ring_bytes.h).
//
// Threads: one communicator is used through one stream at a time; Abort and sent_bytes from any
// thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "plan/reduction_scratch.h"
#include "plan/sum_tree.h"
#include "worker/collective/transport.h"
#include "worker/device/device.h"
#include "worker/progress/whereabouts.h"

namespace tercio::collective {

using plan::SumOrder;

// What one rank has for another, or wants from it.
struct Part {
  const void* data;
  int64_t bytes;
};
struct MutablePart {
  void* data;
  int64_t bytes;
};

// What a call is for, in reports of ranks that wait: "sum of layers.7, round 2".
struct CallPurpose {
  const char* what = nullptr;  // a literal; null: the operation's name is enough
  const char* unit = nullptr;  // outlives the call
  int round = -1;              // -1: none

  std::string Text(const char* operation) const;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual const std::string& group() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Bytes that this rank has sent to the others since the communicator was made.
  virtual int64_t sent_bytes() const = 0;

  // Those of AllGatherParts, from its call on.
  int64_t gathered_bytes() const { return gathered_bytes_.load(std::memory_order_relaxed); }

  // Names the next call of ReduceScatterParts, AllGatherParts or AllToAll.
  virtual void SetPurpose(CallPurpose purpose) { purpose_ = purpose; }

  // Moves parts between all ranks, without arithmetic: send[r] goes to rank r, receive[r] comes
  // from it. A rank's own part is not moved. REQUIRES: size() parts each; what one rank sends
  // another is as long as what that one expects.
  virtual void AllToAll(device::Stream& stream, absl::Span<const Part> send,
                        absl::Span<const MutablePart> receive) = 0;

  // Every rank ends with the sum over ranks, added in `order`. On the CPU `scratch` holds
  // ScratchElements(count) floats; it must not overlap `data` nor be used by another stream
  // meanwhile. Communicators for memory of a GPU use none. So for ReduceScatterSum.
  virtual void AllReduceSum(device::Stream& stream, kernels::Values data, int64_t count,
                            SumOrder order, float* scratch) = 0;
  int64_t ScratchElements(int64_t count) const { return plan::AllReduceScratch(count, size()); }
  // in: size() blocks of `count`; out becomes the sum over ranks of this rank's block, in rank
  // order. `scratch` holds size() * count floats.
  virtual void ReduceScatterSum(device::Stream& stream, kernels::ConstValues in,
                                kernels::Values out, int64_t count, float* scratch) = 0;
  // Rank r's part of `data`, elements [bounds[r], bounds[r + 1]), becomes the sum over ranks, added
  // in `order`, on rank r only: as AllReduceSum does it. The other parts stay as they are.
  // REQUIRES: size() + 1 bounds, ascending from 0, the same on all ranks; `scratch` holds
  // plan::PartsScratch floats.
  virtual void ReduceScatterParts(device::Stream& stream, float* data,
                                  absl::Span<const int64_t> bounds, SumOrder order,
                                  float* scratch) = 0;
  // Rank r's part of `data`, elements [bounds[r], bounds[r + 1]) of `element_bytes` each, goes to
  // all other ranks.
  void AllGatherParts(device::Stream& stream, std::byte* data, absl::Span<const int64_t> bounds,
                      int64_t element_bytes);
  // For vectors in which each element has one contributor (any order is exact).
  virtual void AllReduceSum(device::Stream& stream, double* data, int64_t count) = 0;
  // out: size() blocks of `count`, in rank order; this rank's block is in[0, count). With a single
  // rank it is an operation of the stream, so on the CPU the stream must be a compute stream.
  virtual void AllGather(device::Stream& stream, kernels::ConstValues in, kernels::Values out,
                         int64_t count) = 0;
  virtual void Broadcast(device::Stream& stream, void* data, int64_t bytes, int root) = 0;
  virtual void Barrier(device::Stream& stream) = 0;

  // Messages between neighbours (pipeline), with tags below 2^12: begun in stream order, and in
  // flight beside the stream's later work until Wait. The returned transfer must not outlive the
  // communicator; if a message is not waited for (the stream has failed), it ends with the
  // communicator, as by Abort: nothing writes to its buffer after that.
  virtual std::shared_ptr<Transfer> Send(device::Stream& stream, const void* data, int64_t bytes,
                                         int peer, uint32_t tag) = 0;
  virtual std::shared_ptr<Transfer> Receive(device::Stream& stream, void* data, int64_t bytes,
                                            int peer, uint32_t tag) = 0;

  // Makes later work of the stream wait until the message has arrived, or the sent buffer may be
  // overwritten; after the communicator's timeout the stream fails.
  virtual void Wait(device::Stream& stream, std::shared_ptr<Transfer> transfer) = 0;

  // Ends running and later calls with an error. Any thread.
  virtual void Abort() = 0;

 protected:
  CallPurpose TakePurpose() { return std::exchange(purpose_, {}); }

 private:
  CallPurpose purpose_;
  std::atomic<int64_t> gathered_bytes_{0};
};

// The name of a communicator, its limits, and where it reports what it waits for.
struct CommunicatorOptions {
  std::string group;
  absl::Duration timeout;       // the longest that one call may wait for a peer
  std::vector<int> ranks = {};  // ranks of the job, by rank in the group; empty: the same numbers
  progress::Whereabouts* whereabouts = nullptr;  // not owned; may be null
};

std::unique_ptr<Communicator> CreateCommunicator(CommunicatorOptions options,
                                                 std::unique_ptr<Transport> transport);

}  // namespace tercio::collective
