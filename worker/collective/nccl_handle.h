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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tercio {

absl::Status NcclStatus(ncclResult_t result, std::string_view what);

// Threads: any; Abort also while another thread waits.
class NcclHandle {
 public:
  // Rank `rank` of `size` of a new communicator. DEADLINE_EXCEEDED when others do not come.
  static absl::StatusOr<std::unique_ptr<NcclHandle>> Join(const ncclUniqueId& id, int rank,
                                                          int size, const std::string& name,
                                                          absl::Duration timeout);
  // As MPI_Comm_split; collective over this one. Null for ranks with color NCCL_SPLIT_NOCOLOR.
  absl::StatusOr<std::unique_ptr<NcclHandle>> Split(int color, int key, const std::string& name,
                                                    absl::Duration timeout);
  ~NcclHandle();
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  // Makes a call of NCCL with the communicator and waits until it is enqueued.
  absl::Status Enqueue(std::string_view what, absl::Duration timeout,
                       const std::function<ncclResult_t(ncclComm_t)>& call);

  // OK while all that was enqueued goes well.
  absl::Status AsyncError();

  // Ends what is under way, on the GPU too; later calls fail. Once.
  void Abort();
  bool aborted() const { return aborted_; }

 private:
  explicit NcclHandle(ncclComm_t comm) : comm_(comm) {}
  absl::Status Settle(ncclResult_t result, std::string_view what, absl::Duration timeout);

  ncclComm_t comm_;
  std::mutex mutex_;  // of calls with the communicator
  std::atomic<bool> aborted_{false};
};

}  // namespace tercio
