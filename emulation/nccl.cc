// NCCL's functions for emulated devices (include/nccl.h): their checks, and how work is passed on.
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "emulation/control.h"
#include "emulation/nccl_comm.h"

namespace tercio::emulation {
namespace {

// The id is the name of shared memory, which all ranks open.
constexpr char kPrefix[] = "/tercio-nccl-";
// Far more ranks than a test has; a larger number is a mistake.
constexpr int kMaxRanks = 1024;

std::atomic<size_t> buffer_bytes = 0;

struct Handles {
  // Communicators are looked up from several threads.
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

// The reason is kept for ncclGetLastError, which callers put into their messages.
ncclResult_t Refuse(ncclResult_t result, std::string why) {
  LastError() = std::move(why);
  return result;
}

// Tercio makes only communicators that never block, as it has to notice ranks that die.
bool IsUsable(const ncclConfig_t* config) {
  const auto is_unset = [](int value) { return value == NCCL_CONFIG_UNDEF_INT; };
  return config != nullptr && config->size == sizeof(ncclConfig_t) && config->blocking == 0 &&
         is_unset(config->splitShare) && is_unset(config->minCTAs) &&
         (is_unset(config->maxCTAs) || config->maxCTAs > 0);
}
constexpr char kConfig[] =
    "only communicators are emulated whose configuration sets blocking = 0, and at most maxCTAs";

// The handle is gone from here on, while work that still runs keeps the communicator.
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
  // A communicator reports its state only when it is asked, and progresses meanwhile.
  const ncclResult_t state = comm->State(&message);
  if (state == ncclInProgress) {
    return Refuse(ncclInvalidArgument, "the communicator is still being made, split or connected");
  }
  return state == ncclSuccess ? ncclSuccess : Refuse(state, message);
}

// Whether buffers of these sizes share memory, unless `part` is at `place` in `whole`.
bool Collide(const std::byte* part, size_t part_bytes, const std::byte* whole, size_t whole_bytes,
             size_t place) {
  // Buffers may share memory only where NCCL documents a call in place.
  const bool apart = part + part_bytes <= whole || whole + whole_bytes <= part;
  return !apart && part != whole + place;
}

ncclResult_t CheckBuffers(const ncclComm& comm, const NcclWork& work) {
  // The count of a reduce-scatter or all-gather is that of one rank.
  const size_t bytes = work.count * NcclBytes(work.type);
  const auto ranks = static_cast<size_t>(comm.ranks());
  const size_t place = static_cast<size_t>(comm.rank()) * bytes;
  const bool scatters = work.operation == NcclOperation::kReduceScatter;
  const bool gathers = work.operation == NcclOperation::kAllGather;
  const size_t in_bytes = scatters ? ranks * bytes : bytes;
  const size_t out_bytes = gathers ? ranks * bytes : bytes;
  const bool reads = work.in != nullptr;
  const bool writes = work.out != nullptr;
  // A buffer on another device would work in the emulation, whose memory is the host's.
  if ((reads && !LiesOnDevice(comm.device(), work.in, in_bytes, "NCCL")) ||
      (writes && !LiesOnDevice(comm.device(), work.out, out_bytes, "NCCL"))) {
    return Refuse(ncclInvalidArgument, "a buffer does not lie on the communicator's device");
  }
  if (reads && writes &&
      // The smaller buffer may be this rank's part of the larger one, and nothing else.
      (scatters ? Collide(work.out, out_bytes, work.in, in_bytes, place)
                : Collide(work.in, in_bytes, work.out, out_bytes, gathers ? place : 0))) {
    return Refuse(ncclInvalidUsage, "the buffers overlap, but not as in an in-place call");
  }
  return ncclSuccess;
}

ncclResult_t CheckStream(cudaStream_t stream) {
  // NCCL can be captured; Tercio does not do so, and nothing here could tell the order of ranks.
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess) {
    return Refuse(ncclUnhandledCudaError, "the stream cannot be used");
  }
  if (capture != cudaStreamCaptureStatusNone) {
    return Refuse(ncclInvalidUsage, "calls in a captured stream are not emulated");
  }
  return ncclSuccess;
}

ncclResult_t Begin(const char* what, const std::shared_ptr<ncclComm>& comm, NcclWork work,
                   cudaStream_t stream) {
  // NCCL connects ranks, and allocates, when the first call needs it.
  if (!comm->TakeBuffers()) {
    return Refuse(ncclUnhandledCudaError,
                  "Failed to CUDA calloc " + std::to_string(NcclBufferBytes()) + " bytes");
  }
  // The number is taken when the call begins, so that ranks agree on the order of calls.
  work.sequence = comm->Issue();
  const cudaError_t error =
      EnqueueWork(stream, what, [comm, work]() mutable { return comm->Step(work); });
  if (error == cudaSuccess) return ncclSuccess;
  return Refuse(ncclUnhandledCudaError, cudaGetErrorString(error));
}

ncclResult_t Enqueue(const char* what, NcclWork work, ncclComm_t handle, cudaStream_t stream) {
  const std::shared_ptr<ncclComm> comm = FindNcclComm(handle);
  if (const ncclResult_t ready = Ready(comm); ready != ncclSuccess) return ready;
  if (NcclBytes(work.type) == 0) return Refuse(ncclInvalidArgument, "the type is not emulated");
  if (work.root < 0 || work.root >= comm->ranks()) {
    return Refuse(ncclInvalidArgument, "there is no rank " + std::to_string(work.root));
  }
  const bool message = work.operation == NcclOperation::kMessage;
  // NCCL does nothing for an empty collective, but an empty message still meets its other side.
  if (work.count == 0 && !message) return ncclSuccess;
  if (work.count > 0) {
    // A message has one buffer, a collective two.
    if ((work.in == nullptr && !message) || (work.out == nullptr && !message) ||
        (work.in == nullptr && work.out == nullptr)) {
      return Refuse(ncclInvalidArgument, "a buffer is null");
    }
    if (const ncclResult_t fine = CheckBuffers(*comm, work); fine != ncclSuccess) return fine;
  }
  if (const ncclResult_t fine = CheckStream(stream); fine != ncclSuccess) return fine;
  const auto begin = [comm, work, what, stream] { return Begin(what, comm, work, stream); };
  // The first message connects two ranks, during which NCCL has not begun it yet.
  if (message && comm->Connect(begin)) return ncclInProgress;
  return begin();
}

// The messages since ncclGroupStart.
struct Group {
  bool open = false;
  ncclComm_t handle = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<NcclPart> parts;
  ncclResult_t result = ncclSuccess;  // the first error
};
Group& TheGroup() {
  static thread_local Group group;
  return group;
}

ncclResult_t CheckPart(const ncclComm& comm, const NcclWork& work, int peer) {
  if (peer < 0 || peer >= comm.ranks() || peer == comm.rank()) {
    return Refuse(ncclInvalidArgument, "there is no other rank " + std::to_string(peer));
  }
  for (const NcclPart& part : TheGroup().parts) {
    if (part.peer != peer || (part.in == nullptr) != (work.in == nullptr)) continue;
    return Refuse(ncclInvalidUsage, "two messages the same way are not emulated");
  }
  return CheckBuffers(comm, work);
}

ncclResult_t AddToGroup(const ncclComm& comm, const NcclWork& work, int peer, ncclComm_t handle,
                        cudaStream_t stream) {
  Group& group = TheGroup();
  ncclResult_t result = CheckPart(comm, work, peer);
  if (!group.parts.empty() && (group.handle != handle || group.stream != stream)) {
    result = Refuse(ncclInvalidUsage, "groups of several communicators are not emulated");
  }
  // The first error is the group's.
  if (group.result == ncclSuccess) group.result = result;
  group.handle = handle;
  group.stream = stream;
  group.parts.push_back({peer, work.in, work.out, work.count * NcclBytes(work.type)});
  return result;
}

ncclResult_t EndGroup() {
  const Group group = std::exchange(TheGroup(), {});
  if (!group.open) return Refuse(ncclInvalidUsage, "no group was begun");
  if (group.result != ncclSuccess || group.parts.empty()) return group.result;
  const std::shared_ptr<ncclComm> comm = FindNcclComm(group.handle);
  if (const ncclResult_t ready = Ready(comm); ready != ncclSuccess) return ready;
  if (const ncclResult_t fine = CheckStream(group.stream); fine != ncclSuccess) return fine;
  NcclWork work = {NcclOperation::kExchange, ncclUint8, nullptr, nullptr, 0};
  work.parts = group.parts;
  for (const NcclPart& part : work.parts) work.count = std::max(work.count, part.bytes);
  return Begin("a group of messages", comm, work, group.stream);
}

ncclResult_t Message(const char* what, bool sends, NcclWork work, int peer, ncclComm_t handle,
                     cudaStream_t stream) {
  const std::shared_ptr<ncclComm> comm = FindNcclComm(handle);
  // The handle may be wrong, so it is checked before the peer is.
  if (comm == nullptr) return Refuse(ncclInvalidArgument, "not a valid communicator");
  if (TheGroup().open) return AddToGroup(*comm, work, peer, handle, stream);
  if (comm->ranks() != 2 || peer != 1 - comm->rank()) {
    return Refuse(ncclInvalidUsage,
                  "messages are emulated only between the two ranks of a communicator of two");
  }
  // The sender counts as the root, as with a broadcast to one rank.
  work.root = sends ? comm->rank() : peer;
  return Enqueue(what, work, handle, stream);
}

// Both overloads keep the constness of what they are given.
const std::byte* Bytes(const void* pointer) { return static_cast<const std::byte*>(pointer); }
std::byte* Bytes(void* pointer) { return static_cast<std::byte*>(pointer); }

}  // namespace

std::shared_ptr<ncclComm> FindNcclComm(ncclComm_t handle) {
  Handles& handles = TheHandles();
  std::lock_guard lock(handles.mutex);
  const auto found = handles.live.find(handle);
  return found == handles.live.end() ? nullptr : found->second;
}

void SetNcclBufferBytes(size_t bytes) { buffer_bytes = bytes; }
size_t NcclBufferBytes() { return buffer_bytes; }

std::vector<NcclFacts> NcclCommunicators() {
  Handles& handles = TheHandles();
  std::lock_guard lock(handles.mutex);
  std::vector<NcclFacts> all;
  for (const auto& [handle, comm] : handles.live) all.push_back(comm->facts());
  std::sort(all.begin(), all.end(),
            [](const NcclFacts& a, const NcclFacts& b) { return a.name < b.name; });
  return all;
}

ncclComm_t KeepNcclComm(std::shared_ptr<ncclComm> comm) {
  Handles& handles = TheHandles();
  std::lock_guard lock(handles.mutex);
  // The address is unique while the communicator lives, and is used as a name only.
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

// NCCL accepts null here, and so does this.
const char* ncclGetLastError(ncclComm_t) { return tercio::emulation::LastError().c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  // Processes on one machine must not meet in the same memory.
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
  // The id may have come over a network, and need not end within its array.
  const std::string name(id.internal, strnlen(id.internal, sizeof(id.internal)));
  if (name.size() == sizeof(id.internal) || name.compare(0, strlen(kPrefix), kPrefix) != 0) {
    return Refuse(ncclInvalidArgument, "not a unique id");
  }
  // The device is that of the calling thread, as in NCCL.
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    return Refuse(ncclUnhandledCudaError, "the device cannot be used");
  }
  std::string error;
  auto made = ncclComm::Open(name, rank, ranks, device, *config, &error);
  if (made == nullptr) return Refuse(ncclInvalidArgument, error);
  *comm = tercio::emulation::KeepNcclComm(std::move(made));
  // Joining continues when the state is asked for.
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
  // The new communicator appears when all ranks have asked for theirs.
  parent->Split(color, key, *config, made);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const std::shared_ptr<ncclComm> found = FindNcclComm(comm);
  if (found == nullptr) return Refuse(ncclInvalidArgument, "not a valid communicator");
  std::string message;
  *error = found->State(&message);
  // The call itself succeeds even where it reports an error of the communicator.
  if (*error != ncclSuccess && *error != ncclInProgress) Refuse(*error, message);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::shared_ptr<ncclComm> taken = tercio::emulation::Take(comm);
  if (taken == nullptr) return Refuse(ncclInvalidArgument, "not a valid communicator");
  // Work that waits for other ranks ends now, instead of never.
  taken->End();
  taken->ReturnBuffers();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::shared_ptr<ncclComm> found = FindNcclComm(comm);
  if (const ncclResult_t ready = Ready(found); ready != ncclSuccess) return ready;
  found->Finalize();
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::shared_ptr<ncclComm> taken = tercio::emulation::Take(comm);
  if (taken == nullptr) return Refuse(ncclInvalidArgument, "not a valid communicator");
  // NCCL would finish it in the background, perhaps when the device is gone.
  if (!taken->IsFinalized()) {
    std::fprintf(stderr, "NCCL: a communicator was destroyed before it was finalized\n");
  }
  taken->ReturnBuffers();
  if (!taken->Busy()) return ncclSuccess;
  taken->End();
  // On a GPU such a call may hang or crash, which a test has to see.
  std::fprintf(stderr, "NCCL: a communicator was destroyed while calls are in progress\n");
  return Refuse(ncclInvalidUsage, "destroyed while calls are in progress");
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  // Only sums are emulated, so the operation has no name.
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

ncclResult_t ncclGroupStart() {
  if (tercio::emulation::TheGroup().open) {
    return Refuse(ncclInvalidUsage, "groups within groups are not emulated");
  }
  tercio::emulation::TheGroup().open = true;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return tercio::emulation::EndGroup(); }
