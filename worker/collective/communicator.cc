#include "worker/collective/communicator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "plan/reduction_scratch.h"
#include "worker/collective/call_identity.h"

namespace tercio::collective {
namespace {

// Tags of data (DataTag); those of Send and Receive come after them.
constexpr uint32_t kScatterTag = 0;
constexpr uint32_t kGatherTag = 1;
constexpr uint32_t kDoubleTag = 2;
constexpr uint32_t kBroadcastTag = 3;
constexpr uint32_t kAllToAllTag = 4;
constexpr uint32_t kFirstFreeTag = 16;
constexpr uint32_t kMostMessageTags = 1 << 12;
// Tags of identities, which differ from all tags of data.
constexpr uint64_t kIdentityTag = uint64_t{0xffff} << 48;
constexpr uint64_t kMessageIdentityTag = uint64_t{0xfffe} << 48;

int64_t FloatBytes(int64_t count) { return count * static_cast<int64_t>(sizeof(float)); }

// The sum of all slices ends in the first one.
void AddSlices(kernels::Ops& ops, const std::vector<float*>& slices, const plan::SumTree& tree,
               int64_t count) {
  for (const plan::Addition& addition : tree) {
    ops.Add(slices[static_cast<size_t>(addition.into)], slices[static_cast<size_t>(addition.from)],
            count);
  }
}

// Bounds of the ranks' parts, one more than ranks.
using Parts = std::vector<int64_t>;
int64_t BeginOf(const Parts& parts, int r) { return parts[static_cast<size_t>(r)]; }
int64_t LengthOf(const Parts& parts, int r) { return BeginOf(parts, r + 1) - BeginOf(parts, r); }

class RealCommunicator;

// A message and its identity.
class Message : public Transfer {
 public:
  Message(RealCommunicator& owner, bool is_send) : owner_(owner), is_send_(is_send) {}
  ~Message() override;
  absl::Status Wait(absl::Duration timeout) override;

 private:
  friend class RealCommunicator;
  RealCommunicator& owner_;
  const bool is_send_;
  CallIdentity mine_;
  CallIdentity theirs_;
  progress::CollectivePosition position_;
  std::unique_ptr<Transfer> identity_;
  std::unique_ptr<Transfer> data_;  // until it has been waited for
};

// The transfers of a call are started before one of them is waited for, those of
// an all-reduce in two rounds: so no order in which ranks wait can block them.
class RealCommunicator : public Communicator {
 public:
  RealCommunicator(CommunicatorOptions options, std::unique_ptr<Transport> transport)
      : options_(std::move(options)),
        transport_(std::move(transport)),
        trees_{plan::SumTreeOf(SumOrder::kRanks, transport_->size()),
               plan::SumTreeOf(SumOrder::kTree, transport_->size())},
        theirs_(static_cast<size_t>(transport_->size())) {
    position_.group = options_.group;
    if (!options_.ranks.empty()) return;
    for (int r = 0; r < size(); ++r) options_.ranks.push_back(r);
  }

  const std::string& group() const override { return options_.group; }
  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  int64_t sent_bytes() const override { return sent_bytes_.load(std::memory_order_relaxed); }

  void AllToAll(device::Stream& stream, absl::Span<const Part> send,
                absl::Span<const MutablePart> receive) override {
    TERCIO_CHECK(static_cast<int>(send.size()) == size() &&
                 static_cast<int>(receive.size()) == size());
    const CallPurpose purpose = TakePurpose();
    if (size() == 1) return;
    // The lists are the caller's, and the stream may come to this later.
    stream.RunOnHost([this, purpose, send = std::vector<Part>(send.begin(), send.end()),
                      receive = std::vector<MutablePart>(receive.begin(), receive.end())] {
      // Ranks have parts of different sizes, so that there is no count to compare.
      Begin(Operation::kAllToAll, DataType::kBytes, 0, 0, purpose);
      Transfers transfers = StartAllToAll(kAllToAllTag, send, receive);
      return End(WaitAll(transfers));
    });
  }

  void AllReduceSum(device::Stream& stream, kernels::Values data, int64_t count, SumOrder order,
                    float* scratch) override {
    if (size() == 1 || count == 0) return;
    stream.RunOnHost([=, this, &stream] {
      // The order belongs to the identity: two orders would give the ranks different bits.
      Begin(Operation::kAllReduce, DataType::kFloat32, count, static_cast<int>(order));
      return End(SumFloats(stream.ops(), data, count, order, scratch));
    });
  }

  void ReduceScatterParts(device::Stream& stream, float* data, absl::Span<const int64_t> bounds,
                          SumOrder order, float* scratch) override {
    TERCIO_CHECK_EQ(static_cast<int>(bounds.size()), size() + 1);
    const CallPurpose purpose = TakePurpose();
    if (size() == 1 || bounds.back() == 0) return;
    stream.RunOnHost([=, this, &stream, parts = Parts(bounds.begin(), bounds.end())] {
      Begin(Operation::kReduceScatter, DataType::kFloat32, parts.back(), static_cast<int>(order),
            purpose);
      return End(SumParts(stream.ops(), data, parts, order, scratch).status());
    });
  }

  void ReduceScatterSum(device::Stream& stream, kernels::ConstValues in, kernels::Values out,
                        int64_t count, float* scratch) override {
    stream.RunOnHost([=, this, &stream] {
      Begin(Operation::kReduceScatter, DataType::kFloat32, count);
      return End(ScatterFloats(stream.ops(), in, out, count, scratch));
    });
  }

  void AllReduceSum(device::Stream& stream, double* data, int64_t count) override {
    if (size() == 1 || count == 0) return;
    stream.RunOnHost([=, this] {
      Begin(Operation::kAllReduce, DataType::kFloat64, count);
      return End(SumDoubles(data, count));
    });
  }

  void AllGather(device::Stream& stream, kernels::ConstValues in, kernels::Values out,
                 int64_t count) override {
    if (size() == 1) return stream.ops().Copy(out, in, count);
    stream.RunOnHost([=, this, &stream] {
      // Operations of a communication stream run when they are called, so this one must be in here.
      stream.ops().Copy(out + rank() * count, in, count);
      Begin(Operation::kAllGather, DataType::kFloat32, count);
      return End(GatherFloats(out, count));
    });
  }

  void Broadcast(device::Stream& stream, void* data, int64_t bytes, int root) override {
    if (size() == 1) return;
    stream.RunOnHost([=, this] {
      Begin(Operation::kBroadcast, DataType::kBytes, bytes, root);
      return End(BroadcastNow(data, bytes, root));
    });
  }

  void Barrier(device::Stream& stream) override {
    if (size() == 1) return;
    stream.RunOnHost([this] {
      // Rank 0 answers when it has heard of all others.
      double nothing = 0;
      Begin(Operation::kBarrier, DataType::kFloat64, 1);
      return End(SumDoubles(&nothing, 1));
    });
  }

  std::shared_ptr<Transfer> Send(device::Stream& stream, const void* data, int64_t bytes, int peer,
                                 uint32_t tag) override {
    auto message = std::make_shared<Message>(*this, /*is_send=*/true);
    stream.RunOnHost([=, this] {
      BeginMessage(*message, bytes, peer, tag);
      // The data's tag follows from the call, so data of a wrong
      // call never arrives. The identity does, and names both calls.
      message->identity_ = transport_->Send(&message->mine_, sizeof(message->mine_), peer,
                                            kMessageIdentityTag + tag);
      message->data_ =
          transport_->Send(data, bytes, peer, DataTag(kFirstFreeTag + tag, message->mine_));
      CountSent(bytes);
      return absl::OkStatus();
    });
    return message;
  }
  std::shared_ptr<Transfer> Receive(device::Stream& stream, void* data, int64_t bytes, int peer,
                                    uint32_t tag) override {
    auto message = std::make_shared<Message>(*this, /*is_send=*/false);
    stream.RunOnHost([=, this] {
      BeginMessage(*message, bytes, peer, tag);
      message->identity_ = transport_->Receive(&message->theirs_, sizeof(message->theirs_), peer,
                                               kMessageIdentityTag + tag);
      message->data_ =
          transport_->Receive(data, bytes, peer, DataTag(kFirstFreeTag + tag, message->mine_));
      return absl::OkStatus();
    });
    return message;
  }
  void Wait(device::Stream& stream, std::shared_ptr<Transfer> transfer) override {
    stream.RunOnHost([this, transfer = std::move(transfer)]() -> absl::Status {
      const absl::Status status = transfer->Wait(options_.timeout);
      if (status.ok()) return status;
      return absl::Status(status.code(), absl::StrCat("group ", group(), ", rank ", rank(), " of ",
                                                      size(), ": ", std::string(status.message())));
    });
  }

  void Abort() override { transport_->Abort(); }

 private:
  friend class Message;

  struct Started {
    int peer;
    bool is_send;
    std::unique_ptr<Transfer> transfer;
  };
  using Transfers = std::vector<Started>;

  CallIdentity Identity(Operation operation, DataType dtype, int64_t count, int detail) const {
    CallIdentity call;
    call.operation = operation;
    call.dtype = dtype;
    call.detail = detail;
    call.rank = GlobalRank(rank());
    call.count = count;
    if (options_.whereabouts == nullptr) return call;
    // The place is for the report of a mismatch and is not compared.
    call.step = options_.whereabouts->step();
    const std::string action = options_.whereabouts->action();
    std::memcpy(call.action, action.data(), std::min(action.size(), sizeof(call.action)));
    return call;
  }
  int GlobalRank(int r) const { return options_.ranks[static_cast<size_t>(r)]; }

  // Each rank sends its identity to rank 0, which compares: two ranks that differ cannot both agree
  // with it. Nothing blocks here; rank 0 waits in CheckIdentities, once the data is on its way,
  // too.
  void Begin(Operation operation, DataType dtype, int64_t count, int detail = 0,
             const CallPurpose& purpose = {}) {
    mine_ = Identity(operation, dtype, count, detail);
    mine_.sequence = sequence_++;
    position_.sequence = mine_.sequence;
    position_.operation = purpose.Text(NameOf(operation));
    position_.dtype = NameOf(dtype);
    position_.count = count;
    // The first wait of the call checks, which is when rank 0 would block (WaitAll).
    unchecked_ = true;
    if (rank() != 0) {
      sends_.push_back({0, true, transport_->Send(&mine_, sizeof(mine_), 0, kIdentityTag)});
      return;
    }
    for (int r = 1; r < size(); ++r) {
      auto& theirs = theirs_[static_cast<size_t>(r)];
      receives_.push_back(
          {r, false, transport_->Receive(&theirs, sizeof(theirs), r, kIdentityTag)});
    }
  }

  absl::Status CheckIdentities() {
    if (!unchecked_) return absl::OkStatus();
    unchecked_ = false;
    for (const Started& started : receives_) {
      TERCIO_RETURN_IF_ERROR(Await(*started.transfer, started.peer));
      TERCIO_RETURN_IF_ERROR(CheckSame(mine_, theirs_[static_cast<size_t>(started.peer)], group()));
    }
    return absl::OkStatus();
  }

  // Every transfer is waited for, even after an error.
  absl::Status End(absl::Status status) {
    unchecked_ = false;  // or the call ended before it came to that
    if (!status.ok()) {
      transport_->Abort();
      WaitAll(receives_).IgnoreError();
    }
    receives_.clear();  // on success they have been waited for
    const absl::Status sent = WaitAll(sends_);
    if (status.ok()) status = sent;
    if (status.ok()) return status;
    return absl::Status(
        status.code(),
        absl::StrCat("group ", group(), ", rank ", rank(), " of ", size(), ", ",
                     position_.operation, " #", mine_.sequence, " of ", NameOf(mine_.dtype), " x ",
                     mine_.count, ": ", std::string(status.message())));
  }

  void BeginMessage(Message& message, int64_t bytes, int peer, uint32_t tag) {
    TERCIO_CHECK(tag < kMostMessageTags);
    message.mine_ = Identity(Operation::kMessage, DataType::kBytes, bytes, static_cast<int>(tag));
    // Messages of a tag arrive in order, so both sides count alike.
    message.mine_.sequence = messages_[{message.is_send_, peer, tag}]++;
    message.position_ = {group(),
                         message.mine_.sequence,
                         message.is_send_ ? "pipeline send" : "pipeline receive",
                         NameOf(DataType::kBytes),
                         bytes,
                         GlobalRank(peer)};
  }

  absl::Status Await(Transfer& transfer, int peer) {
    position_.peer = GlobalRank(peer);
    return Await(transfer, position_);
  }
  absl::Status Await(Transfer& transfer, const progress::CollectivePosition& position) {
    // An agent finds the rank that others wait for by what each of them waits for.
    if (options_.whereabouts != nullptr) options_.whereabouts->BeginWait(position);
    const absl::Time start = SteadyNow();
    const absl::Status status = transfer.Wait(options_.timeout);
    if (options_.whereabouts != nullptr) {
      options_.whereabouts->EndWait(absl::ToDoubleSeconds(SteadyNow() - start));
    }
    return status;
  }

  // Waits for all, even after an error: buffers must stay valid until Wait returns. Receives come
  // first: they always notice a peer's end, while Gloo may forget a send to it.
  absl::Status WaitAll(Transfers& transfers) {
    absl::Status first = CheckIdentities();
    if (!first.ok()) transport_->Abort();
    for (const bool sends : {false, true}) {
      for (const Started& started : transfers) {
        if (started.is_send != sends) continue;
        const absl::Status status = Await(*started.transfer, started.peer);
        if (status.ok() || !first.ok()) continue;
        first = status;
        transport_->Abort();  // the rest must not wait for their own timeouts
      }
    }
    transfers.clear();
    return first;
  }

  // Nothing depends on the order in which other threads see the sum.
  void CountSent(int64_t bytes) { sent_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

  Started SendTo(int r, const void* data, int64_t bytes, uint32_t tag) {
    CountSent(bytes);
    return {r, true, transport_->Send(data, bytes, r, DataTag(tag, mine_))};
  }
  Started ReceiveFrom(int r, void* data, int64_t bytes, uint32_t tag) {
    return {r, false, transport_->Receive(data, bytes, r, DataTag(tag, mine_))};
  }

  // Starts to move parts between all ranks: what every collective of floats is made of.
  Transfers StartAllToAll(uint32_t tag, absl::Span<const Part> send,
                          absl::Span<const MutablePart> receive) {
    Transfers transfers;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      const Part& out = send[static_cast<size_t>(r)];
      const MutablePart& in = receive[static_cast<size_t>(r)];
      transfers.push_back(ReceiveFrom(r, in.data, in.bytes, tag));
      transfers.push_back(SendTo(r, out.data, out.bytes, tag));
    }
    return transfers;
  }

  // Rank r's part is [parts[r], parts[r + 1]): it receives that part from all, and adds. The sum is
  // in its own place and, unrounded, at the returned one.
  absl::StatusOr<const float*> SumParts(kernels::Ops& ops, float* data, const Parts& parts,
                                        SumOrder order, float* scratch) {
    const auto length = [&](int r) { return LengthOf(parts, r); };
    const int64_t mine = length(rank());
    int64_t slice = 0;
    for (int r = 0; r < size(); ++r) slice = std::max(slice, plan::PartSlice(length(r)));
    std::vector<float*> slices;
    std::vector<Part> send;
    std::vector<MutablePart> receive;
    for (int r = 0; r < size(); ++r) {
      slices.push_back(scratch + r * slice);
      send.push_back({data + BeginOf(parts, r), FloatBytes(length(r))});
      receive.push_back({slices.back(), FloatBytes(mine)});
    }
    Transfers scatter = StartAllToAll(kScatterTag, send, receive);
    // This overlaps with the transfers.
    float* const own = data + BeginOf(parts, rank());
    ops.Copy(slices[static_cast<size_t>(rank())], own, mine);
    TERCIO_RETURN_IF_ERROR(WaitAll(scatter));
    AddSlices(ops, slices, trees_[static_cast<size_t>(order)], mine);
    ops.Copy(own, slices[0], mine);
    return slices[0];
  }

  // Each rank sums its slice, and sends the sum to all.
  absl::Status SumFloats(kernels::Ops& ops, kernels::Values data, int64_t count, SumOrder order,
                         float* scratch) {
    const int64_t slice = plan::AllReduceSlice(count, size());
    Parts parts;
    for (int r = 0; r <= size(); ++r) parts.push_back(std::min(count, r * slice));
    float* const floats = data.floats();
    TERCIO_ASSIGN_OR_RETURN(const float* const sum, SumParts(ops, floats, parts, order, scratch));
    // The only rounding is done by the slice's owner, so that all ranks get its bits.
    if (data.format() != kernels::Format::kFloat32) {
      ops.Copy(data + BeginOf(parts, rank()), sum, LengthOf(parts, rank()));
    }
    std::vector<Part> send;
    std::vector<MutablePart> receive;
    for (int r = 0; r < size(); ++r) {
      send.push_back({floats + BeginOf(parts, rank()), FloatBytes(LengthOf(parts, rank()))});
      receive.push_back({floats + BeginOf(parts, r), FloatBytes(LengthOf(parts, r))});
    }
    Transfers gather = StartAllToAll(kGatherTag, send, receive);
    return WaitAll(gather);
  }

  absl::Status ScatterFloats(kernels::Ops& ops, const float* in, kernels::Values out, int64_t count,
                             float* scratch) {
    std::vector<Part> send;
    std::vector<MutablePart> receive;
    for (int r = 0; r < size(); ++r) {
      send.push_back({in + r * count, FloatBytes(count)});
      receive.push_back({scratch + r * count, FloatBytes(count)});
    }
    Transfers transfers = StartAllToAll(kScatterTag, send, receive);
    TERCIO_RETURN_IF_ERROR(WaitAll(transfers));
    // This rank's block is added from where it lies, in its place in the order.
    const auto block = [&](int r) { return r == rank() ? in + r * count : scratch + r * count; };
    float* sum = out.floats();
    ops.Copy(sum, block(0), count);
    for (int r = 1; r < size(); ++r) ops.Add(sum, block(r), count);
    ops.Copy(out, sum, count);  // rounds
    return absl::OkStatus();
  }

  // `out` already holds this rank's block.
  absl::Status GatherFloats(float* out, int64_t count) {
    std::vector<Part> send(static_cast<size_t>(size()), {out + rank() * count, FloatBytes(count)});
    std::vector<MutablePart> receive;
    for (int r = 0; r < size(); ++r) receive.push_back({out + r * count, FloatBytes(count)});
    Transfers transfers = StartAllToAll(kGatherTag, send, receive);
    return WaitAll(transfers);
  }

  // Sends to rank 0, which adds in rank order, and back: two messages per rank, however many ranks.
  absl::Status SumDoubles(double* data, int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(double));
    Transfers transfers;
    if (rank() == 0) {
      // It is kept, since the same few vectors are summed in every step.
      double_scratch_.resize(static_cast<size_t>(count * (size() - 1)));
      for (int r = 1; r < size(); ++r) {
        transfers.push_back(
            ReceiveFrom(r, double_scratch_.data() + (r - 1) * count, bytes, kDoubleTag));
      }
      TERCIO_RETURN_IF_ERROR(WaitAll(transfers));
      for (int r = 1; r < size(); ++r) {
        const double* other = double_scratch_.data() + (r - 1) * count;
        for (int64_t i = 0; i < count; ++i) data[i] += other[i];
      }
    } else {
      transfers.push_back(SendTo(0, data, bytes, kDoubleTag));
      TERCIO_RETURN_IF_ERROR(WaitAll(transfers));
    }
    return BroadcastNow(data, bytes, 0);
  }

  absl::Status BroadcastNow(void* data, int64_t bytes, int root) {
    Transfers transfers;
    if (rank() == root) {
      for (int r = 0; r < size(); ++r) {
        if (r != root) transfers.push_back(SendTo(r, data, bytes, kBroadcastTag));
      }
    } else {
      transfers.push_back(ReceiveFrom(root, data, bytes, kBroadcastTag));
    }
    return WaitAll(transfers);
  }

  CommunicatorOptions options_;
  std::unique_ptr<Transport> transport_;
  const std::array<plan::SumTree, 2> trees_;  // by SumOrder
  // Identity of the current call.
  CallIdentity mine_;
  std::vector<CallIdentity> theirs_;  // by rank in the group; used by rank 0
  progress::CollectivePosition position_;
  Transfers receives_;  // receives of identities
  Transfers sends_;
  bool unchecked_ = false;
  // All ranks make the same calls in the same order, so a call has the same number on each.
  int64_t sequence_ = 0;
  // Sequence numbers of messages, by (whether sent, peer, tag).
  std::map<std::tuple<bool, int, uint32_t>, int64_t> messages_;
  std::vector<double> double_scratch_;
  std::atomic<int64_t> sent_bytes_{0};
};

Message::~Message() {
  if (data_ == nullptr) return;
  // The buffer may be freed right after this, so a message that nobody waited for has to end now.
  owner_.Abort();
  Wait(absl::InfiniteDuration()).IgnoreError();
}

// The message's data is waited for even after an error: see WaitAll.
absl::Status Message::Wait(absl::Duration) {
  if (data_ == nullptr) return absl::AbortedError("the message was not started: its stream failed");
  absl::Status status = owner_.Await(*identity_, position_);
  // Only a receiver knows both identities.
  if (status.ok() && !is_send_) status = CheckSame(mine_, theirs_, owner_.group());
  if (!status.ok()) owner_.Abort();
  const absl::Status data = owner_.Await(*data_, position_);
  // The destructor must not wait for it again.
  data_.reset();
  if (status.ok()) status = data;
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(position_.operation, " #", position_.sequence,
                                                  ": ", std::string(status.message())));
}

}  // namespace

std::string CallPurpose::Text(const char* operation) const {
  if (what == nullptr) return operation;
  return absl::StrCat(what, " of ", unit, round < 0 ? "" : absl::StrCat(", round ", round));
}

void Communicator::AllGatherParts(device::Stream& stream, std::byte* data,
                                  absl::Span<const int64_t> bounds, int64_t element_bytes) {
  TERCIO_CHECK_EQ(static_cast<int>(bounds.size()), size() + 1);
  if (size() == 1) return;
  std::vector<MutablePart> parts;
  for (size_t r = 0; r + 1 < bounds.size(); ++r) {
    parts.push_back(
        {data + bounds[r] * element_bytes, (bounds[r + 1] - bounds[r]) * element_bytes});
  }
  const MutablePart& own = parts[static_cast<size_t>(rank())];
  gathered_bytes_.fetch_add(own.bytes * (size() - 1), std::memory_order_relaxed);
  AllToAll(stream, std::vector<Part>(parts.size(), {own.data, own.bytes}), parts);
}

std::unique_ptr<Communicator> CreateCommunicator(CommunicatorOptions options,
                                                 std::unique_ptr<Transport> transport) {
  return std::make_unique<RealCommunicator>(std::move(options), std::move(transport));
}

}  // namespace tercio::collective
