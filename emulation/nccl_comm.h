// One rank's side of an emulated NCCL communicator (include/nccl.h): joining, splitting, and the
// pieces in which its calls exchange their data. A piece proceeds in three steps, none of which
// ever blocks: a rank lays out its own part when all others have read the previous one, waits until
// all have laid out theirs, and reads them.
//
// Threads: any. Work of a stream holds the communicator, so it outlives its handle. Internal to the
// emulation.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "emulation/nccl_control.h"
#include "emulation/nccl_segment.h"

namespace tercio::emulation {

enum class NcclOperation : int32_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kMessage,
  kExchange,  // a group of messages between all ranks
};

// 0: the type is not emulated.
size_t NcclBytes(ncclDataType_t type);

// A message of a group: one of the pointers is null.
struct NcclPart {
  int peer;
  const std::byte* in;
  std::byte* out;
  size_t bytes;
};

struct NcclWork {
  NcclOperation operation;
  ncclDataType_t type;
  const std::byte* in;  // source of a message: null where it is received
  std::byte* out;       // null where it is sent
  size_t count;
  int root = 0;
  uint64_t sequence = 0;
  std::vector<NcclPart> parts = {};  // an exchange's; its count is that of the longest
  // Progress of the call.
  size_t at = 0;  // elements
  bool laid_out = false;
};

}  // namespace tercio::emulation

struct ncclComm : std::enable_shared_from_this<ncclComm> {
 public:
  using NcclWork = tercio::emulation::NcclWork;

  // Null: `error` holds the reason.
  static std::shared_ptr<ncclComm> Open(const std::string& name, int rank, int ranks, int device,
                                        const ncclConfig_t& config, std::string* error);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int device() const { return device_; }

  // ncclInProgress while ranks are missing or a split or the first message is in progress, and the
  // error, if there is one.
  ncclResult_t State(std::string* message);
  // REQUIRES: State is ncclSuccess. The new communicator is registered with the handles of nccl.cc.
  void Split(int color, int key, const ncclConfig_t& config, ncclComm_t* made);
  tercio::emulation::NcclFacts facts() const { return {label_, ranks_, channels_}; }

  // Takes memory of the device for the first call, as NCCL does; false: there is too little.
  bool TakeBuffers();
  void ReturnBuffers();

  // Two ranks are connected when both have reached their first message. Until then it is a call in
  // progress, which State starts then; false: they are connected, and it was not taken.
  bool Connect(std::function<ncclResult_t()> first_message);

  uint64_t Issue();           // the number of a call
  bool Step(NcclWork& work);  // whether it is done, or will never be
  void End();                 // ends the calls in progress, for this rank only
  bool Busy();                // whether calls are in progress
  // Begins; it is finished after some more queries of State.
  void Finalize();
  bool IsFinalized();

 private:
  ncclComm() = default;
  void Join();
  void FinishSplit();
  bool Fail(const std::string& message);  // for all ranks
  bool SeeFault();
  bool AllCalledTheSame();
  size_t PieceElements(const NcclWork& work) const;
  void LayOut(const NcclWork& work, size_t elements);
  void Read(const NcclWork& work, size_t elements);
  // For an exchange:
  void LayOutParts(const NcclWork& work);
  bool PartsMatch(const NcclWork& work);
  size_t SizeOfPart(int from, int to);
  size_t LongestPart();
  void ReadParts(const NcclWork& work);

  std::string name_;
  int rank_ = 0;
  int ranks_ = 0;
  int device_ = 0;
  std::string label_;
  int channels_ = 0;
  std::unique_ptr<tercio::emulation::NcclSegment> segment_;

  std::mutex mutex_;  // guards the members below
  ncclResult_t state_ = ncclInProgress;
  std::string message_;
  bool joined_ = false;
  bool ended_ = false;
  uint64_t splits_ = 0;
  ncclComm_t* split_into_ = nullptr;  // while a split is in progress
  bool splitting_ = false;
  std::string split_label_;
  int split_channels_ = 0;
  bool connected_ = false;
  void* buffers_ = nullptr;
  std::function<ncclResult_t()> first_message_;  // until it is started
  uint64_t issued_ = 0;
  uint64_t finished_ = 0;
  uint64_t pieces_ = 0;  // that are done, of all calls
  // Queries of State until it is finalized; -1: that was not asked for.
  int until_finalized_ = -1;
};

namespace tercio::emulation {

// The live communicator of a handle, or null.
std::shared_ptr<ncclComm> FindNcclComm(ncclComm_t handle);
ncclComm_t KeepNcclComm(std::shared_ptr<ncclComm> comm);

}  // namespace tercio::emulation
