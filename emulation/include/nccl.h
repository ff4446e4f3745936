// The part of NCCL that Tercio uses, with its names and numbers, for programs without CUDA. Ranks
// are threads, each with an emulated device, or processes; a unique id names memory that they share
// (nccl_segment.h). Calls run in the order of the communicator, on the emulated streams, and like
// NCCL's they wait without end for ranks that do not come: only ncclCommAbort helps.
//
// As in NCCL, the first message between two ranks connects them, and is ncclInProgress until both
// have reached it: a rank that waits for that has not enqueued it, nor anything after it.
//
// Sums are those of a ring: the block i of n begins with rank i + 1 and ends with rank i, and is
// rounded to its type after each addition.
//
// Stricter than NCCL, always towards finding errors:
//   - Ranks at different calls, where NCCL hangs or mixes up data, get ncclInvalidUsage, all of
//     them, as an asynchronous error; the message names both calls.
//   - Buffers must lie on the communicator's device, and overlap only where NCCL allows it.
//   - A communicator that is destroyed with work left ends that work, and reports it on stderr.
//   - Only non-blocking calls, and not in a captured stream; messages only between two ranks that
//     have the communicator to themselves. Anything else is refused: ncclInvalidUsage.
//
// Threads: as NCCL's, any; calls on one communicator one after the other, except ncclCommAbort.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstddef>

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_VERSION_CODE 22809
#define NCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_CONFIG_UNDEF_INT INT_MIN

using ncclComm_t = struct ncclComm*;
struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};
enum ncclDataType_t {
  ncclUint8 = 1,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};
enum ncclRedOp_t { ncclSum = 0 };

struct ncclConfig_t {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
  int trafficClass;
  const char* commName;
};
#define NCCL_CONFIG_INITIALIZER                                                       \
  {                                                                                   \
    sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT,       \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, nullptr, \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, nullptr                         \
  }

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
// A description of the last error of this thread; the communicator does not matter.
const char* ncclGetLastError(ncclComm_t comm);

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
// ncclInProgress; ncclCommGetAsyncError reports when all ranks have joined.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
// ncclInProgress; *made is written when ncclCommGetAsyncError of `comm` reports that it is done,
// and must stay valid until then.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommAbort(ncclComm_t comm);
// As for all non-blocking communicators: it is in progress until ncclCommGetAsyncError returns
// ncclSuccess, and precedes ncclCommDestroy, which reports on stderr if it is missing.
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);
// ncclInProgress for the first message of a communicator; ncclCommGetAsyncError reports when it is
// enqueued.
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
// Messages in between, of one communicator and one stream, proceed together; all of its ranks
// exchange such a group. Other calls are not grouped.
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
