// NCCL's functions for emulated devices (include/nccl.h): their checks, and how work is passed on.
#include <nccl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <random>

#include "emulation/control.h"
#include "emulation/nccl_comm.h"

namespace tercio::emulation {
namespace {

constexpr char kPrefix[] = "/tercio-nccl-";
constexpr int kMaxRanks = 1024;

struct Handles {
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<ncclComm>> live;
};
Handles& TheHandles() {
  static Handles* handles = new Handles();  // threads may use them until the process ends
  return *handles;
}

std::string& LastError() {
  static thread_local std::string error;
  return error;
}

ncclResult_t Refuse(ncclResult_t result, std::string why) {
  LastError() = std::move(why);
  return result;
}

bool IsUsable(const ncclConfig_t* config) {
  return config != nullptr && config->size == sizeof(ncclConfig_t) && config->blocking == 0;
}
constexpr char kConfig[] = "only communicators whose configuration sets blocking = 0 are emulated";

std::shared_ptr<ncclComm> Take(ncclComm_t handle) {
  Handles& handles = TheHandles();
  std::lock_guard lock(handles.mutex);
  const auto found = handles.live.find(handle);
  if (found == handles.live.end()) return nullptr;
  std::shared_ptr<ncclComm> comm = std::move(found->second);
  handles.live.erase(found);
  return comm;
}

ncclResult_t Ready(const std::shared_ptr<ncclComm>& comm) {
  if (comm == nullptr) return Refuse(ncclInvalidArgument, "not a valid communicator");
  std::string message;
  const ncclResult_t state = comm->State(&message);
  if (state == ncclInProgress) {
    return Refuse(ncclInvalidArgument, "the communicator is still being made, split or connected");
  }
  return state == ncclSuccess ? ncclSuccess : Refuse(state, message);
}

// Whether buffers of these sizes share memory, unless `part` is at `place` in `whole`.
bool Collide(const std::byte* part, size_t part_bytes, const std::byte* whole, size_t whole_bytes,
             size_t place) {
  const bool apart = part + part_bytes <= whole || whole + whole_bytes <= part;
  return !apart && part != whole + place;
}

ncclResult_t CheckBuffers(const ncclComm& comm, const NcclWork& work) {
  const size_t bytes = work.count * NcclBytes(work.type);
  const auto ranks = static_cast<size_t>(comm.ranks());
  const size_t place = static_cast<size_t>(comm.rank()) * bytes;
  const bool scatters = work.operation == NcclOperation::kReduceScatter;
  const bool gathers = work.operation == NcclOperation::kAllGather;
  const size_t in_bytes = scatters ? ranks * bytes : bytes;
  const size_t out_bytes = gathers ? ranks * bytes : bytes;
  const bool reads = work.in != nullptr;
  const bool writes = work.out != nullptr;
  if ((reads && !LiesOnDevice(comm.device(), work.in, in_bytes, "NCCL")) ||
      (writes && !LiesOnDevice(comm.device(), work.out, out_bytes, "NCCL"))) {
    return Refuse(ncclInvalidArgument, "a buffer does not lie on the communicator's device");
  }
  if (reads && writes &&
      (scatters ? Collide(work.out, out_bytes, work.in, in_bytes, place)
                : Collide(work.in, in_bytes, work.out, out_bytes, gathers ? place : 0))) {
    return Refuse(ncclInvalidUsage, "the buffers overlap, but not as in an in-place call");
  }
  return ncclSuccess;
}

ncclResult_t Enqueue(const char* what, NcclWork work, ncclComm_t handle, cudaStream_t stream) {
  const std::shared_ptr<ncclComm> comm = FindNcclComm(handle);
  if (const ncclResult_t ready = Ready(comm); ready != ncclSuccess) return ready;
  if (NcclBytes(work.type) == 0) return Refuse(ncclInvalidArgument, "the type is not emulated");
  if (work.root < 0 || work.root >= comm->ranks()) {
    return Refuse(ncclInvalidArgument, "there is no rank " + std::to_string(work.root));
  }
  const bool message = work.operation == NcclOperation::kMessage;
  if (work.count == 0 && !message) return ncclSuccess;
  if (work.count > 0) {
    if ((work.in == nullptr && !message) || (work.out == nullptr && !message) ||
        (work.in == nullptr && work.out == nullptr)) {
      return Refuse(ncclInvalidArgument, "a buffer is null");
    }
    if (const ncclResult_t fine = CheckBuffers(*comm, work); fine != ncclSuccess) return fine;
  }
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess) {
    return Refuse(ncclUnhandledCudaError, "the stream cannot be used");
  }
  if (capture != cudaStreamCaptureStatusNone) {
    return Refuse(ncclInvalidUsage, "calls in a captured stream are not emulated");
  }
  auto begin = [comm, work, what, stream]() mutable {
    work.sequence = comm->Issue();
    const cudaError_t error =
        EnqueueWork(stream, what, [comm, work]() mutable { return comm->Step(work); });
    if (error == cudaSuccess) return ncclSuccess;
    return Refuse(ncclUnhandledCudaError, cudaGetErrorString(error));
  };
  if (message && comm->Connect(begin)) return ncclInProgress;
  return begin();
}

ncclResult_t Message(const char* what, bool sends, NcclWork work, int peer, ncclComm_t handle,
                     cudaStream_t stream) {
  const std::shared_ptr<ncclComm> comm = FindNcclComm(handle);
  if (comm == nullptr) return Refuse(ncclInvalidArgument, "not a valid communicator");
  if (comm->ranks() != 2 || peer != 1 - comm->rank()) {
    return Refuse(ncclInvalidUsage,
                  "messages are emulated only between the two ranks of a communicator of two");
  }
  work.root = sends ? comm->rank() : peer;
  return Enqueue(what, work, handle, stream);
}

const std::byte* Bytes(const void* pointer) { return static_cast<const std::byte*>(pointer); }
std::byte* Bytes(void* pointer) { return static_cast<std::byte*>(pointer); }

}  // namespace

std::shared_ptr<ncclComm> FindNcclComm(ncclComm_t handle) {
  Handles& handles = TheHandles();
  std::lock_guard lock(handles.mutex);
  const auto found = handles.live.find(handle);
  return found == handles.live.end() ? nullptr : found->second;
}

ncclComm_t KeepNcclComm(std::shared_ptr<ncclComm> comm) {
  Handles& handles = TheHandles();
  std::lock_guard lock(handles.mutex);
  const ncclComm_t handle = comm.get();
  handles.live[handle] = std::move(comm);
  return handle;
}

}  // namespace tercio::emulation

using tercio::emulation::Bytes;
using tercio::emulation::Enqueue;
using tercio::emulation::FindNcclComm;
using tercio::emulation::kConfig;
using tercio::emulation::NcclOperation;
using tercio::emulation::Ready;
using tercio::emulation::Refuse;

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "a call of CUDA failed";
    case ncclSystemError:
      return "a call of the system failed";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "another rank failed, or the network";
    case ncclInProgress:
      return "still in progress";
  }
  return "unknown result";
}

const char* ncclGetLastError(ncclComm_t) { return tercio::emulation::LastError().c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "%s%d-%08x%08x", tercio::emulation::kPrefix,
                static_cast<int>(getpid()), random(), random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  using tercio::emulation::kPrefix;
  if (!tercio::emulation::IsUsable(config)) return Refuse(ncclInvalidUsage, kConfig);
  if (ranks < 1 || ranks > tercio::emulation::kMaxRanks || rank < 0 || rank >= ranks) {
    return Refuse(ncclInvalidArgument,
                  "there is no rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  }
  const std::string name(id.internal, strnlen(id.internal, sizeof(id.internal)));
  if (name.size() == sizeof(id.internal) || name.compare(0, strlen(kPrefix), kPrefix) != 0) {
    return Refuse(ncclInvalidArgument, "not a unique id");
  }
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    return Refuse(ncclUnhandledCudaError, "the device cannot be used");
  }
  std::string error;
  auto made = ncclComm::Open(name, rank, ranks, device, &error);
  if (made == nullptr) return Refuse(ncclInvalidArgument, error);
  *comm = tercio::emulation::KeepNcclComm(std::move(made));
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  const std::shared_ptr<ncclComm> parent = FindNcclComm(comm);
  if (const ncclResult_t ready = Ready(parent); ready != ncclSuccess) return ready;
  if (!tercio::emulation::IsUsable(config)) return Refuse(ncclInvalidUsage, kConfig);
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
    return Refuse(ncclInvalidArgument, "there is no color " + std::to_string(color));
  }
  parent->Split(color, key, made);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const std::shared_ptr<ncclComm> found = FindNcclComm(comm);
  if (found == nullptr) return Refuse(ncclInvalidArgument, "not a valid communicator");
  std::string message;
  *error = found->State(&message);
  if (*error != ncclSuccess && *error != ncclInProgress) Refuse(*error, message);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::shared_ptr<ncclComm> taken = tercio::emulation::Take(comm);
  if (taken == nullptr) return Refuse(ncclInvalidArgument, "not a valid communicator");
  taken->End();
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::shared_ptr<ncclComm> taken = tercio::emulation::Take(comm);
  if (taken == nullptr) return Refuse(ncclInvalidArgument, "not a valid communicator");
  if (!taken->Busy()) return ncclSuccess;
  taken->End();
  std::fprintf(stderr, "NCCL: a communicator was destroyed while calls are in progress\n");
  return Refuse(ncclInvalidUsage, "destroyed while calls are in progress");
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  return Enqueue("ncclAllReduce", {NcclOperation::kAllReduce, type, Bytes(in), Bytes(out), count},
                 comm, stream);
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  return Enqueue("ncclReduceScatter",
                 {NcclOperation::kReduceScatter, type, Bytes(in), Bytes(out), count}, comm, stream);
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return Enqueue("ncclAllGather", {NcclOperation::kAllGather, type, Bytes(in), Bytes(out), count},
                 comm, stream);
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return Enqueue("ncclBroadcast",
                 {NcclOperation::kBroadcast, type, Bytes(in), Bytes(out), count, root}, comm,
                 stream);
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return tercio::emulation::Message("ncclSend", true,
                                    {NcclOperation::kMessage, type, Bytes(in), nullptr, count},
                                    peer, comm, stream);
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return tercio::emulation::Message("ncclRecv", false,
                                    {NcclOperation::kMessage, type, nullptr, Bytes(out), count},
                                    peer, comm, stream);
}
