// An NCCL communicator that is owned, and NCCL's errors as absl::Status.
//
// All communicators are non-blocking (NCCL 2.14 and later): a call may still be under way when it
// returns, and is polled for with a deadline, so that a peer that does not come is an error.
#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tercio {

// UNAVAILABLE for faults of the network or another rank, else INTERNAL; with NCCL's own message.
absl::Status NcclStatus(ncclResult_t result, std::string_view what);

// Threads: any; Abort also while another thread waits.
class NcclHandle {
 public:
  // Rank `rank` of `size` of a new communicator, on the calling thread's GPU. DEADLINE_EXCEEDED
  // when others do not come.
  static absl::StatusOr<std::unique_ptr<NcclHandle>> Join(const ncclUniqueId& id, int rank,
                                                          int size, const std::string& name,
                                                          absl::Duration timeout);
  // As MPI_Comm_split; collective over this one. Null for ranks with color NCCL_SPLIT_NOCOLOR.
  // After an error this one is aborted: NCCL may still be at work on it.
  absl::StatusOr<std::unique_ptr<NcclHandle>> Split(int color, int key, const std::string& name,
                                                    absl::Duration timeout);
  // REQUIRES: what was enqueued has been waited for, or was aborted.
  ~NcclHandle();
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  // Makes a call of NCCL with the communicator and waits until it is enqueued.
  absl::Status Enqueue(std::string_view what, absl::Duration timeout,
                       const std::function<ncclResult_t(ncclComm_t)>& call);

  // OK while all that was enqueued goes well.
  absl::Status AsyncError();

  // Ends what is under way, on the GPU too; later calls fail. Again: nothing.
  void Abort();

 private:
  explicit NcclHandle(std::string name) : name_(std::move(name)) {}
  ncclConfig_t Config() const;
  absl::Status Settle(ncclResult_t result, std::string_view what, absl::Duration timeout);
  absl::Status AwaitMade(absl::Duration timeout);

  const std::string name_;  // in NCCL's own log, too, which may read it at any time
  ncclComm_t comm_ = nullptr;
  bool made_ = false;
  std::unique_ptr<NcclHandle> abandoned_;  // a split that failed may still write to it
  std::timed_mutex mutex_;                 // of calls with the communicator
  std::atomic<bool> aborted_{false};
};

}  // namespace tercio
