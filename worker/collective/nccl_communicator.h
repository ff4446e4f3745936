// Collectives of GPU ranks by NCCL, enqueued on the stream they are given.
//
// Sums of values run in the order of NCCL's rings and trees, in their own format; the order is the
// same for every repetition with the same ranks and versions. Calls carry no identities: ranks at
// different calls wait for each other until the watchdog, which compares where they are
// (worker/progress), or the timeout ends them.
//
// Sent bytes are computed: those of a ring (ring_bytes.h), whichever algorithm NCCL chooses; those
// of messages are exact.
//
// Messages between pipeline stages go over communicators of two ranks, one for each direction of
// each edge, on streams of their own: a message never waits behind one of another kind. They are
// connected when the group is made, so that starting a message waits for no other rank.
//
// A thread that waits for a stream polls the communicators that have work on it: an error of one, a
// peer that has gone, a call that takes longer than the timeout or Abort ends the wait, and aborts
// all communicators of the stream, so that the GPU does not wait either. A call's time begins when
// the GPU reaches it; that of a message when its stream has nothing to do but wait for it. A thread
// that enqueues more than the driver accepts is blocked there, and polls nothing: only Abort by
// another thread ends that.
#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collective/communicator.h"
#include "worker/collective/gloo_transport.h"
#include "worker/collective/nccl_handle.h"
#include "worker/collective/pipeline_edges.h"
#include "worker/device/device.h"

namespace tercio::collective {

// What a group is for: sums and copies over all of its ranks, or messages between neighbours. One
// for messages makes other calls only if it has all ranks of the job.
enum class NcclMessages { kNone, kNeighbours };

struct NcclOptions {
  int world_channels = 0;  // at most, of the communicator of all ranks; 0: as many as NCCL wants
  int edge_channels = 0;   // likewise of each edge
  PipelineEdges edges;
  int64_t reserve_bytes = 0;  // memory of the GPU that the job leaves free; 0: not known
};

// One direction of one edge between pipeline stages.
struct NcclLink {
  std::unique_ptr<NcclHandle> handle;
  std::unique_ptr<device::Stream> stream;
  std::unique_ptr<device::Event> ready;  // the work before the message
  int64_t messages = 0;
};
// Their keys: whether the edge sends, the peer, the tag.
using NcclLinks = std::map<std::tuple<bool, int, uint32_t>, NcclLink>;

// The communicators of one rank. A group of all ranks has the world's, so that groups of the same
// ranks share one; others are split from it. None shares NCCL's resources with another
// (splitShare): such communicators run one after the other on the GPU.
class NcclGroups {
 public:
  // Joins all ranks of the job, by a unique id that rank 0 puts at the rendezvous. The device must
  // outlive the groups.
  static absl::StatusOr<std::unique_ptr<NcclGroups>> Join(int rank, int world_size,
                                                          device::Device& device,
                                                          RendezvousStore& rendezvous,
                                                          absl::Duration timeout,
                                                          const NcclOptions& options = {});

  // The communicator of the group of options.ranks: collective over the whole job, so every rank
  // asks for its groups in the same order of kinds, before one of them is aborted.
  absl::StatusOr<std::unique_ptr<Communicator>> Group(NcclMessages messages,
                                                      CommunicatorOptions options);

 private:
  NcclGroups(std::shared_ptr<NcclHandle> world, std::shared_ptr<device::DeviceMemory> number,
             int rank, int world_size, device::Device& device, absl::Duration timeout,
             const NcclOptions& options)
      : world_(std::move(world)),
        number_(std::move(number)),
        rank_(rank),
        world_size_(world_size),
        device_(device),
        timeout_(timeout),
        options_(options) {}
  absl::StatusOr<NcclLinks> MakeLinks(const CommunicatorOptions& options, int index);

  const std::shared_ptr<NcclHandle> world_;
  const std::shared_ptr<device::DeviceMemory> number_;
  const int rank_;
  const int world_size_;
  device::Device& device_;
  const absl::Duration timeout_;
  const NcclOptions options_;
};

}  // namespace tercio::collective
