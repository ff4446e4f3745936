#include "emulation/nccl_comm.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "emulation/control.h"

using tercio::emulation::NcclBytes;
using tercio::emulation::NcclCall;
using tercio::emulation::NcclHeader;
using tercio::emulation::NcclOperation;
using tercio::emulation::NcclSegment;
using tercio::emulation::NcclSlot;

namespace {

// The names are for messages about ranks that disagree.
const char* NameOf(NcclOperation operation) {
  switch (operation) {
    case NcclOperation::kAllReduce:
      return "all-reduce";
    case NcclOperation::kReduceScatter:
      return "reduce-scatter";
    case NcclOperation::kAllGather:
      return "all-gather";
    case NcclOperation::kBroadcast:
      return "broadcast";
    case NcclOperation::kMessage:
      return "message";
    case NcclOperation::kExchange:
      return "group of messages";
  }
  return "?";
}

const char* NameOfType(int32_t type) {
  switch (type) {
    case ncclUint8:
      return "u8";
    case ncclFloat16:
      return "f16";
    case ncclFloat32:
      return "f32";
    case ncclFloat64:
      return "f64";
    case ncclBfloat16:
      return "bf16";
  }
  return "?";
}

std::string Describe(const NcclCall& call) {
  const auto operation = static_cast<NcclOperation>(call.operation);
  // Only these two have a root, and naming one elsewhere would confuse.
  const bool has_root =
      operation == NcclOperation::kBroadcast || operation == NcclOperation::kMessage;
  return std::string(NameOf(operation)) + " #" + std::to_string(call.sequence) + " of " +
         NameOfType(call.type) + " x " + std::to_string(call.count) +
         (has_root ? " from rank " + std::to_string(call.root) : "");
}

template <typename Number, typename Sum>
void SumOverRanks(const std::vector<const std::byte*>& parts, size_t elements, size_t first,
                  size_t block, std::byte* out, const Sum& sum) {
  const size_t ranks = parts.size();
  for (size_t i = 0; i < elements; ++i) {
    // NCCL's rings begin each part with another rank, so its sums differ from those in rank order.
    const size_t begin = (first + i) / block + 1;
    const auto part = [&](size_t k) {
      Number number;
      // The parts lie in shared memory at any alignment.
      std::memcpy(&number, parts[(begin + k) % ranks] + i * sizeof(Number), sizeof(Number));
      return number;
    };
    // Rounding after each addition is what makes the order show in 16-bit formats.
    Number total = part(0);
    for (size_t k = 1; k < ranks; ++k) total = sum(total, part(k));
    std::memcpy(out + i * sizeof(Number), &total, sizeof(Number));
  }
}

// Sums elements first, first + 1, ... of which `block` begin with the same rank.
void SumOverRanks(ncclDataType_t type, const std::vector<const std::byte*>& parts, size_t elements,
                  size_t first, size_t block, std::byte* out) {
  switch (type) {
    case ncclUint8:
      return SumOverRanks<uint8_t>(parts, elements, first, block, out, [](uint8_t a, uint8_t b) {
        return static_cast<uint8_t>(a + b);
      });
    case ncclFloat16:
      return SumOverRanks<__half>(parts, elements, first, block, out, [](__half a, __half b) {
        return __float2half_rn(__half2float(a) + __half2float(b));
      });
    case ncclBfloat16:
      return SumOverRanks<__nv_bfloat16>(
          parts, elements, first, block, out, [](__nv_bfloat16 a, __nv_bfloat16 b) {
            return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
          });
    case ncclFloat32:
      return SumOverRanks<float>(parts, elements, first, block, out,
                                 [](float a, float b) { return a + b; });
    case ncclFloat64:
      return SumOverRanks<double>(parts, elements, first, block, out,
                                  [](double a, double b) { return a + b; });
  }
}

}  // namespace

size_t tercio::emulation::NcclBytes(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
      return 4;
    case ncclFloat64:
      return 8;
  }
  return 0;
}

std::shared_ptr<ncclComm> ncclComm::Open(const std::string& name, int rank, int ranks, int device,
                                         const ncclConfig_t& config, std::string* error) {
  std::shared_ptr<ncclComm> comm(new ncclComm());
  if (config.commName != nullptr) comm->label_ = config.commName;
  if (config.maxCTAs != NCCL_CONFIG_UNDEF_INT) comm->channels_ = config.maxCTAs;
  comm->name_ = name;
  comm->rank_ = rank;
  comm->ranks_ = ranks;
  comm->device_ = device;
  comm->segment_ = NcclSegment::Open(name, rank, ranks, device, error);
  return comm->segment_ == nullptr ? nullptr : comm;
}

ncclResult_t ncclComm::State(std::string* message) {
  std::unique_lock lock(mutex_);
  // Whoever asks for the state also lets the communicator progress, as nothing runs in between.
  if (!ended_ && !joined_) Join();
  if (!ended_ && splitting_) FinishSplit();
  // The first message begins when its other side has been called, too.
  if (first_message_ != nullptr && segment_->slot(1 - rank_).sends_messages != 0) {
    const auto begin = std::exchange(first_message_, nullptr);
    connected_ = true;
    lock.unlock();  // a full stream runs its work
    const ncclResult_t begun = begin();
    lock.lock();
    state_ = begun;
  }
  SeeFault();
  *message = message_;
  if (state_ == ncclSuccess && until_finalized_ > 0) {
    --until_finalized_;
    return ncclInProgress;
  }
  return state_;
}

void ncclComm::Finalize() {
  std::lock_guard lock(mutex_);
  until_finalized_ = 3;  // callers have to ask again
}

bool ncclComm::IsFinalized() {
  std::lock_guard lock(mutex_);
  return until_finalized_ == 0;
}

// Called under the lock, like all functions that follow except Issue, Step, End and Busy.
void ncclComm::Join() {
  // Ranks may arrive in any order and at any time.
  if (!segment_->Complete()) return;
  joined_ = true;
  state_ = ncclSuccess;
  for (int a = 0; a < ranks_; ++a) {
    for (int b = a + 1; b < ranks_; ++b) {
      const NcclSlot& one = segment_->slot(a);
      const NcclSlot& other = segment_->slot(b);
      // NCCL refuses two ranks on one device as well.
      if (one.process != other.process || one.device != other.device) continue;
      Fail("Duplicate GPU detected: ranks " + std::to_string(a) + " and " + std::to_string(b) +
           " are both on device " + std::to_string(one.device) + " of process " +
           std::to_string(one.process));
    }
  }
}

void ncclComm::Split(int color, int key, const ncclConfig_t& config, ncclComm_t* made) {
  std::lock_guard lock(mutex_);
  NcclSlot& mine = segment_->slot(rank_);
  // Two wishes are enough, since no rank can be more than one split ahead of another.
  mine.wishes[splits_ % 2] = {color, key};
  // The counter is raised last, so that whoever sees it sees the wish, too.
  mine.splits = ++splits_;
  splitting_ = true;
  // The caller's structure and name are its own; NCCL copies them, too.
  split_label_ = config.commName == nullptr ? "" : config.commName;
  split_channels_ = config.maxCTAs;
  split_into_ = made;
  state_ = ncclInProgress;
}

void ncclComm::FinishSplit() {
  const int color = segment_->slot(rank_).wishes[(splits_ - 1) % 2].color;
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int r = 0; r < ranks_; ++r) {
    const NcclSlot& slot = segment_->slot(r);
    // A rank that has not asked yet decides on the groups as well.
    if (slot.splits < splits_) return;
    const auto& wish = slot.wishes[(splits_ - 1) % 2];
    if (wish.color == color) members.emplace_back(wish.key, r);
  }
  splitting_ = false;
  state_ = ncclSuccess;
  // A rank without a color gets no communicator.
  *split_into_ = nullptr;
  if (color == NCCL_SPLIT_NOCOLOR) return;
  // Ranks are ordered by key, and by their old number where keys are equal.
  std::sort(members.begin(), members.end());
  const auto place = std::find_if(members.begin(), members.end(),
                                  [this](const auto& member) { return member.second == rank_; });
  std::string error;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = split_label_.c_str();
  config.maxCTAs = split_channels_;
  // The name is the same on all members, and differs from that of any other group.
  auto child = Open(name_ + "." + std::to_string(splits_) + "." + std::to_string(color),
                    static_cast<int>(place - members.begin()), static_cast<int>(members.size()),
                    device_, config, &error);
  if (child == nullptr) {
    state_ = ncclSystemError;
    message_ = error;
    return;
  }
  *split_into_ = tercio::emulation::KeepNcclComm(std::move(child));
}

// The message goes to the shared memory, so that all ranks report the same fault.
bool ncclComm::Fail(const std::string& message) {
  segment_->Fail(message);
  return SeeFault();
}

// Returns whether there is a fault.
bool ncclComm::SeeFault() {
  // A message is read only after it was written to its end.
  if (segment_->header().fault != NcclHeader::kWritten) return false;
  state_ = ncclInvalidUsage;
  message_ = segment_->header().message;
  return true;
}

bool ncclComm::TakeBuffers() {
  const size_t bytes = tercio::emulation::NcclBufferBytes();
  std::lock_guard lock(mutex_);
  if (bytes == 0 || buffers_ != nullptr) return true;
  buffers_ = tercio::emulation::TakeMemory(device_, bytes);
  return buffers_ != nullptr;
}

void ncclComm::ReturnBuffers() {
  std::lock_guard lock(mutex_);
  if (buffers_ != nullptr)
    tercio::emulation::ReturnMemory(device_, std::exchange(buffers_, nullptr));
}

bool ncclComm::Connect(std::function<ncclResult_t()> first_message) {
  std::lock_guard lock(mutex_);
  // Later messages need no connection.
  if (connected_) return false;
  first_message_ = std::move(first_message);
  state_ = ncclInProgress;
  segment_->slot(rank_).sends_messages = 1;
  return true;
}

uint64_t ncclComm::Issue() {
  std::lock_guard lock(mutex_);
  // Numbers follow the order of calls, which may be on several streams.
  return issued_++;
}

void ncclComm::End() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  // A message that waits for its other side would keep the communicator alive.
  first_message_ = nullptr;
}

bool ncclComm::Busy() {
  std::lock_guard lock(mutex_);
  // A message that has not begun is in progress, too.
  return finished_ < issued_ || first_message_ != nullptr;
}

bool ncclComm::Step(NcclWork& work) {
  std::lock_guard lock(mutex_);
  // After a fault the work counts as done, so that streams do not wait for it.
  if (ended_ || SeeFault()) return true;
  if (work.sequence != finished_) return false;  // on another stream than the previous call
  while (true) {
    size_t elements = std::min(PieceElements(work), work.count - work.at);
    if (!work.laid_out) {
      // A rank's part may be overwritten only after all have read the previous one.
      for (int r = 0; r < ranks_; ++r) {
        if (segment_->slot(r).read < pieces_) return false;
      }
      LayOut(work, elements);
      // The counter is raised after the data, which readers see then.
      segment_->slot(rank_).published = pieces_ + 1;
      work.laid_out = true;
    }
    for (int r = 0; r < ranks_; ++r) {
      if (segment_->slot(r).published <= pieces_) return false;
    }
    // The calls are compared before anything is written to the result.
    if (!AllCalledTheSame()) return true;
    if (work.operation == NcclOperation::kExchange) {
      if (!PartsMatch(work)) return true;
      // Only here every rank knows the parts of all.
      work.count = LongestPart();
      elements = std::min(PieceElements(work), work.count - work.at);
    }
    Read(work, elements);
    // From here on others may overwrite what was read.
    segment_->slot(rank_).read = ++pieces_;
    work.laid_out = false;
    work.at += elements;
    if (work.at == work.count) {
      ++finished_;
      return true;
    }
  }
}

// REQUIRES: all have laid out a piece.
bool ncclComm::AllCalledTheSame() {
  const NcclCall& mine = segment_->slot(rank_).call;
  for (int r = 0; r < ranks_; ++r) {
    const NcclCall& other = segment_->slot(r).call;
    if (other == mine) continue;
    Fail("ranks are at different calls, where NCCL would hang: rank " + std::to_string(rank_) +
         " at " + Describe(mine) + ", rank " + std::to_string(r) + " at " + Describe(other));
    return false;
  }
  return true;
}

// The sizes of a rank's parts for each rank, and a piece of each, lie in its slot.
size_t ncclComm::PieceElements(const NcclWork& work) const {
  if (work.operation == NcclOperation::kExchange) {
    return NcclSlot::kBytes / static_cast<size_t>(ranks_) - sizeof(uint64_t);
  }
  // A piece is as large as a slot.
  const size_t elements = NcclSlot::kBytes / NcclBytes(work.type);
  // A part for every rank.
  return work.operation == NcclOperation::kReduceScatter ? elements / static_cast<size_t>(ranks_)
                                                         : elements;
}

void ncclComm::LayOut(const NcclWork& work, size_t elements) {
  NcclSlot& slot = segment_->slot(rank_);
  const bool exchange = work.operation == NcclOperation::kExchange;
  // The parts of an exchange have sizes of their own.
  slot.call = {static_cast<int32_t>(work.operation), work.type, work.root,
               exchange ? 0 : work.count, work.sequence};
  if (exchange) return LayOutParts(work);
  const size_t size = NcclBytes(work.type);
  const bool sends =
      (work.operation != NcclOperation::kBroadcast && work.operation != NcclOperation::kMessage) ||
      work.root == rank_;
  // Ranks that only receive lay out their call all the same, for the comparison.
  if (!sends || elements == 0) return;
  if (work.operation != NcclOperation::kReduceScatter) {
    std::memcpy(slot.data, work.in + work.at * size, elements * size);
    return;
  }
  for (size_t r = 0; r < static_cast<size_t>(ranks_); ++r) {
    std::memcpy(slot.data + r * elements * size, work.in + (r * work.count + work.at) * size,
                elements * size);
  }
}

void ncclComm::LayOutParts(const NcclWork& work) {
  std::byte* const data = segment_->slot(rank_).data;
  const auto ranks = static_cast<size_t>(ranks_);
  std::memset(data, 0, ranks * sizeof(uint64_t));
  for (const tercio::emulation::NcclPart& part : work.parts) {
    if (part.in == nullptr) continue;
    const auto peer = static_cast<size_t>(part.peer);
    const uint64_t bytes = part.bytes;
    std::memcpy(data + peer * sizeof(bytes), &bytes, sizeof(bytes));
    if (work.at >= part.bytes) continue;
    std::memcpy(data + ranks * sizeof(bytes) + peer * PieceElements(work), part.in + work.at,
                std::min(PieceElements(work), part.bytes - work.at));
  }
}

// The size of the part that rank `from` has laid out for rank `to`.
size_t ncclComm::SizeOfPart(int from, int to) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, segment_->slot(from).data + static_cast<size_t>(to) * sizeof(bytes),
              sizeof(bytes));
  return bytes;
}

bool ncclComm::PartsMatch(const NcclWork& work) {
  for (int r = 0; r < ranks_; ++r) {
    size_t expected = 0;
    for (const tercio::emulation::NcclPart& part : work.parts) {
      if (part.out != nullptr && part.peer == r) expected = part.bytes;
    }
    if (SizeOfPart(r, rank_) == expected) continue;
    Fail("messages of a group do not match, where NCCL would hang: rank " + std::to_string(r) +
         " sends " + std::to_string(SizeOfPart(r, rank_)) + " bytes to rank " +
         std::to_string(rank_) + ", which receives " + std::to_string(expected));
    return false;
  }
  return true;
}

size_t ncclComm::LongestPart() {
  size_t longest = 0;
  for (int from = 0; from < ranks_; ++from) {
    for (int to = 0; to < ranks_; ++to) longest = std::max(longest, SizeOfPart(from, to));
  }
  return longest;
}

void ncclComm::ReadParts(const NcclWork& work) {
  const auto ranks = static_cast<size_t>(ranks_);
  for (const tercio::emulation::NcclPart& part : work.parts) {
    if (part.out == nullptr || work.at >= part.bytes) continue;
    const std::byte* data = segment_->slot(part.peer).data + ranks * sizeof(uint64_t) +
                            static_cast<size_t>(rank_) * PieceElements(work);
    std::memcpy(part.out + work.at, data, std::min(PieceElements(work), part.bytes - work.at));
  }
}

void ncclComm::Read(const NcclWork& work, size_t elements) {
  if (elements == 0) return;
  const size_t size = NcclBytes(work.type);
  const auto ranks = static_cast<size_t>(ranks_);
  std::byte* const out = work.out == nullptr ? nullptr : work.out + work.at * size;
  // Slots are read where they are, without another copy.
  std::vector<const std::byte*> parts;
  for (int r = 0; r < ranks_; ++r) parts.push_back(segment_->slot(r).data);
  switch (work.operation) {
    case NcclOperation::kAllReduce:
      // NCCL cuts an all-reduce into one part for each rank.
      return SumOverRanks(work.type, parts, elements, work.at, (work.count + ranks - 1) / ranks,
                          out);
    case NcclOperation::kReduceScatter: {
      const auto mine = static_cast<size_t>(rank_);
      // This rank's part begins at the same place in every slot.
      for (const std::byte*& part : parts) part += mine * elements * size;
      return SumOverRanks(work.type, parts, elements, mine * work.count + work.at, work.count, out);
    }
    case NcclOperation::kAllGather:
      for (size_t r = 0; r < ranks; ++r) {
        std::memcpy(out + r * work.count * size, parts[r], elements * size);
      }
      return;
    case NcclOperation::kBroadcast:
      std::memcpy(out, parts[static_cast<size_t>(work.root)], elements * size);
      return;
    case NcclOperation::kMessage:
      // The sender reads nothing, and has no output.
      if (out != nullptr) {
        std::memcpy(out, parts[static_cast<size_t>(work.root)], elements * size);
      }
      return;
    case NcclOperation::kExchange:
      return ReadParts(work);
  }
}
