// An owned NCCL communicator, and NCCL's errors as absl::Status.
//
// All communicators are non-blocking (NCCL 2.14 and later): a call may still be in progress when it
// returns, and is polled with a deadline, so that a peer that does not join becomes an error.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace tercio::collective {

// UNAVAILABLE for faults of the network or another rank, RESOURCE_EXHAUSTED where memory of the GPU
// does not suffice, else INTERNAL; with NCCL's own message. `reserve_bytes` is what was left free.
absl::Status NcclStatus(ncclResult_t result, std::string_view what, int64_t reserve_bytes = 0);

// How a communicator is made.
struct NcclSetup {
  std::string name;
  int channels = 0;           // at most; 0: as many as NCCL wants
  int64_t reserve_bytes = 0;  // memory of the GPU that the job leaves free; 0: not known
};

// Threads: any; Abort also while another thread waits.
class NcclHandle {
 public:
  // Rank `rank` of `size` of a new communicator, on the calling thread's GPU. DEADLINE_EXCEEDED if
  // others do not join.
  static absl::StatusOr<std::unique_ptr<NcclHandle>> Join(const ncclUniqueId& id, int rank,
                                                          int size, const NcclSetup& setup,
                                                          absl::Duration timeout);
  // Like MPI_Comm_split; collective over this one. Null for ranks with color NCCL_SPLIT_NOCOLOR.
  // After an error this one is aborted: NCCL may still be working on it.
  absl::StatusOr<std::unique_ptr<NcclHandle>> Split(int color, int key, const NcclSetup& setup,
                                                    absl::Duration timeout);
  // REQUIRES: all enqueued work has been waited for, or was aborted.
  ~NcclHandle();
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  // Makes a call of NCCL with the communicator and waits until it is enqueued.
  absl::Status Enqueue(std::string_view what, absl::Duration timeout,
                       const std::function<ncclResult_t(ncclComm_t)>& call);

  // OK while all enqueued work succeeds.
  absl::Status AsyncError();

  // Ends the work in progress, on the GPU too; later calls fail. Further calls have no effect.
  void Abort();

 private:
  explicit NcclHandle(NcclSetup setup) : setup_(std::move(setup)) {}
  ncclConfig_t Config() const;
  absl::Status Settle(ncclResult_t result, std::string_view what, absl::Duration timeout);
  absl::Status AwaitMade(absl::Duration timeout);
  absl::Status Finalize();

  const NcclSetup setup_;  // NCCL's own log may read the name at any time
  ncclComm_t comm_ = nullptr;
  bool made_ = false;
  std::unique_ptr<NcclHandle> abandoned_;  // a failed split may still write to it
  TimedMutex mutex_;                       // guards calls with the communicator
  std::atomic<bool> aborted_{false};
};

}  // namespace tercio::collective
