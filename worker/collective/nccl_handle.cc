#include "worker/collective/nccl_handle.h"

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio::collective {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(50);
// A call has usually started within this many rounds.
constexpr int kEagerRounds = 200;
// The longest that Abort waits for a call of another thread to return.
constexpr auto kCallPatience = std::chrono::seconds(5);
// The longest that a communicator is waited for at its end.
constexpr absl::Duration kFinalizePatience = absl::Seconds(30);

absl::Status Aborted(std::string_view what) {
  return absl::AbortedError(absl::StrCat("NCCL, ", std::string(what), ": aborted"));
}

// NCCL has one code for all errors of CUDA: only its words tell this one from others.
bool IsLackOfMemory(const char* detail) {
  const std::string_view words = detail == nullptr ? "" : detail;
  return words.find("out of memory") != std::string_view::npos ||
         words.find("Failed to CUDA") != std::string_view::npos;
}

std::string AdviceOnMemory(int64_t reserve_bytes) {
  std::string advice =
      "; NCCL allocates the buffers of a group at its first call, in memory of the GPU that the "
      "plan leaves free";
  if (reserve_bytes > 0) absl::StrAppend(&advice, " (", reserve_bytes >> 20, " MiB)");
  absl::StrAppend(&advice,
                  ": lower training.micro_batch, let parallelism.recompute keep less, or make NCCL "
                  "take less (NCCL_NVLS_ENABLE=0, a smaller NCCL_BUFFSIZE); nvidia-smi shows "
                  "whether other processes use the GPU");
  return advice;
}

}  // namespace

absl::Status NcclStatus(ncclResult_t result, std::string_view what, int64_t reserve_bytes) {
  if (result == ncclSuccess) return absl::OkStatus();
  // NCCL's words name the connection or file that failed; the code does not.
  const char* detail = ncclGetLastError(nullptr);
  const std::string message =
      absl::StrCat("NCCL, ", std::string(what), ": ", ncclGetErrorString(result),
                   detail == nullptr || *detail == 0 ? "" : absl::StrCat(" (", detail, ")"));
  // These come from another rank or the network: this process and its GPU may be sound.
  if (result == ncclRemoteError || result == ncclSystemError) {
    return absl::UnavailableError(message);
  }
  if (result == ncclUnhandledCudaError && IsLackOfMemory(detail)) {
    return absl::ResourceExhaustedError(absl::StrCat(message, AdviceOnMemory(reserve_bytes)));
  }
  return absl::InternalError(message);
}

ncclConfig_t NcclHandle::Config() const {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  // A call that blocks would wait for ever for a rank that does not join.
  config.blocking = 0;
  config.commName = setup_.name.c_str();
  if (setup_.channels > 0) config.maxCTAs = setup_.channels;
  return config;
}

absl::StatusOr<std::unique_ptr<NcclHandle>> NcclHandle::Join(const ncclUniqueId& id, int rank,
                                                             int size, const NcclSetup& setup,
                                                             absl::Duration timeout) {
  std::unique_ptr<NcclHandle> handle(new NcclHandle(setup));
  ncclConfig_t config = handle->Config();
  const ncclResult_t result = ncclCommInitRankConfig(&handle->comm_, size, id, rank, &config);
  // In progress is the usual answer: the other ranks have yet to join.
  if (result != ncclSuccess && result != ncclInProgress) {
    return NcclStatus(result, "joining group " + setup.name, setup.reserve_bytes);
  }
  TERCIO_RETURN_IF_ERROR(handle->AwaitMade(timeout));
  return handle;
}

absl::StatusOr<std::unique_ptr<NcclHandle>> NcclHandle::Split(int color, int key,
                                                              const NcclSetup& setup,
                                                              absl::Duration timeout) {
  std::unique_ptr<NcclHandle> handle(new NcclHandle(setup));
  ncclConfig_t config = handle->Config();
  const absl::Status split =
      Enqueue("splitting into " + setup.name, timeout, [&](ncclComm_t parent) {
        return ncclCommSplit(parent, color, key, &handle->comm_, &config);
      });
  if (!split.ok()) {
    Abort();
    // NCCL may still write the address of the new communicator into the handle.
    abandoned_ = std::move(handle);
    return split;
  }
  if (handle->comm_ == nullptr) return nullptr;
  TERCIO_RETURN_IF_ERROR(handle->AwaitMade(timeout));
  return handle;
}

NcclHandle::~NcclHandle() {
  if (comm_ == nullptr || aborted_) return;
  // NCCL finishes outstanding work, which after an error may take for ever.
  if (made_ && AsyncError().ok() && Finalize().ok()) {
    ncclCommDestroy(comm_);
  } else {
    Abort();
  }
}

// Destroying does in the background what is left to do, which must not outlive the device. The
// other ranks of the node finalize theirs, too, unless they have failed.
absl::Status NcclHandle::Finalize() {
  return Enqueue("finalizing " + setup_.name, kFinalizePatience,
                 [](ncclComm_t comm) { return ncclCommFinalize(comm); });
}

absl::Status NcclHandle::AwaitMade(absl::Duration timeout) {
  TERCIO_RETURN_IF_ERROR(
      Settle(ncclInProgress, absl::StrCat("joining group ", setup_.name), timeout));
  made_ = true;
  return absl::OkStatus();
}

absl::Status NcclHandle::Enqueue(std::string_view what, absl::Duration timeout,
                                 const std::function<ncclResult_t(ncclComm_t)>& call) {
  ncclResult_t result = ncclSuccess;
  {
    TimedMutexLock lock(mutex_);
    if (aborted_) return Aborted(what);
    // Abort frees the communicator, so it has to wait until the call has returned.
    result = call(comm_);
  }
  return Settle(result, what, timeout);
}

absl::Status NcclHandle::Settle(ncclResult_t result, std::string_view what,
                                absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  for (int round = 0; result == ncclInProgress; ++round) {
    {
      TimedMutexLock lock(mutex_);
      if (aborted_) return Aborted(what);
      // The lock is held for one query at a time, so that Abort gets it.
      TERCIO_RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(comm_, &result), "querying errors"));
    }
    if (result != ncclInProgress) break;
    if (SteadyNow() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("NCCL, ", std::string(what),
                                                      ": not all ranks have joined within ",
                                                      absl::FormatDuration(timeout)));
    }
    if (round < kEagerRounds) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
  return NcclStatus(result, what, setup_.reserve_bytes);
}

absl::Status NcclHandle::AsyncError() {
  TimedMutexLock lock(mutex_);
  if (aborted_) return Aborted("a call in progress");
  ncclResult_t state = ncclSuccess;
  TERCIO_RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(comm_, &state), "querying errors"));
  // Another thread may be enqueuing a call.
  if (state == ncclInProgress) return absl::OkStatus();
  return NcclStatus(state, "a call in progress", setup_.reserve_bytes);
}

void NcclHandle::Abort() {
  // This comes before the lock, so that threads which poll leave at their next round.
  if (aborted_.exchange(true)) return;
  // A call that does not return waits for room on the GPU, behind work that only the abort ends.
  const bool locked = mutex_.TryLockFor(kCallPatience);
  if (comm_ != nullptr) ncclCommAbort(comm_);
  if (locked) mutex_.Unlock();
}

}  // namespace tercio::collective
