#include "worker/collective/nccl_handle.h"

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace tercio {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(50);

// Communicators carry their name into NCCL's own log.
ncclConfig_t Config(const std::string& name) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = name.c_str();
  return config;
}

// Polls a communicator that is being made.
absl::Status AwaitMade(ncclComm_t comm, const std::string& name, absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  while (true) {
    ncclResult_t state = ncclSuccess;
    TERCIO_RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(comm, &state), "asking for errors"));
    if (state != ncclInProgress) return NcclStatus(state, absl::StrCat("joining group ", name));
    if (SteadyNow() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("joining NCCL group ", name,
                                                      ": not all ranks have come within ",
                                                      absl::FormatDuration(timeout)));
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

}  // namespace

absl::Status NcclStatus(ncclResult_t result, std::string_view what) {
  if (result == ncclSuccess) return absl::OkStatus();
  const char* detail = ncclGetLastError(nullptr);
  const std::string message =
      absl::StrCat("NCCL, ", std::string(what), ": ", ncclGetErrorString(result),
                   detail == nullptr || *detail == 0 ? "" : absl::StrCat(" (", detail, ")"));
  if (result == ncclRemoteError || result == ncclSystemError) {
    return absl::UnavailableError(message);
  }
  return absl::InternalError(message);
}

absl::StatusOr<std::unique_ptr<NcclHandle>> NcclHandle::Join(const ncclUniqueId& id, int rank,
                                                             int size, const std::string& name,
                                                             absl::Duration timeout) {
  ncclConfig_t config = Config(name);
  ncclComm_t comm = nullptr;
  const ncclResult_t result = ncclCommInitRankConfig(&comm, size, id, rank, &config);
  if (result != ncclSuccess && result != ncclInProgress)
    return NcclStatus(result, "joining " + name);
  std::unique_ptr<NcclHandle> handle(new NcclHandle(comm));
  const absl::Status made = AwaitMade(comm, name, timeout);
  if (!made.ok()) handle->Abort();
  TERCIO_RETURN_IF_ERROR(made);
  return handle;
}

absl::StatusOr<std::unique_ptr<NcclHandle>> NcclHandle::Split(int color, int key,
                                                              const std::string& name,
                                                              absl::Duration timeout) {
  ncclConfig_t config = Config(name);
  ncclComm_t comm = nullptr;
  TERCIO_RETURN_IF_ERROR(Enqueue("splitting into " + name, timeout, [&](ncclComm_t parent) {
    return ncclCommSplit(parent, color, key, &comm, &config);
  }));
  if (comm == nullptr) return nullptr;
  std::unique_ptr<NcclHandle> handle(new NcclHandle(comm));
  const absl::Status made = AwaitMade(comm, name, timeout);
  if (!made.ok()) handle->Abort();
  TERCIO_RETURN_IF_ERROR(made);
  return handle;
}

NcclHandle::~NcclHandle() {
  if (aborted_) return;
  // Without an error everything has been waited for: there is nothing left to finish.
  if (AsyncError().ok()) {
    ncclCommDestroy(comm_);
  } else {
    Abort();
  }
}

absl::Status NcclHandle::Enqueue(std::string_view what, absl::Duration timeout,
                                 const std::function<ncclResult_t(ncclComm_t)>& call) {
  ncclResult_t result = ncclSuccess;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return absl::AbortedError(absl::StrCat("NCCL, ", std::string(what), ": aborted"));
    result = call(comm_);
  }
  return Settle(result, what, timeout);
}

absl::Status NcclHandle::Settle(ncclResult_t result, std::string_view what,
                                absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  while (result == ncclInProgress) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (aborted_) break;
      TERCIO_RETURN_IF_ERROR(
          NcclStatus(ncclCommGetAsyncError(comm_, &result), "asking for errors"));
    }
    if (result != ncclInProgress) break;
    if (SteadyNow() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "NCCL, ", std::string(what), ": not begun within ", absl::FormatDuration(timeout)));
    }
    std::this_thread::yield();
  }
  if (aborted_) return absl::AbortedError(absl::StrCat("NCCL, ", std::string(what), ": aborted"));
  return NcclStatus(result, what);
}

absl::Status NcclHandle::AsyncError() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_) return absl::AbortedError("NCCL: aborted");
  ncclResult_t state = ncclSuccess;
  TERCIO_RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(comm_, &state), "asking for errors"));
  if (state == ncclInProgress) return absl::OkStatus();
  return NcclStatus(state, "a call under way");
}

void NcclHandle::Abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_.exchange(true)) return;
  ncclCommAbort(comm_);
}

}  // namespace tercio
