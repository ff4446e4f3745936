#include "worker/collective/communicator.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "plan/reduction_scratch.h"

namespace tercio {
namespace {

// Collectives have tags of their own; those of Send and Receive come after them.
constexpr uint32_t kScatterTag = 0;
constexpr uint32_t kGatherTag = 1;
constexpr uint32_t kDoubleTag = 2;
constexpr uint32_t kBroadcastTag = 3;
constexpr uint32_t kFirstFreeTag = 16;

int64_t FloatBytes(int64_t count) { return count * static_cast<int64_t>(sizeof(float)); }

// Adds slices[begin, end) in a balanced tree into slices[begin].
void AddTree(kernels::Ops& ops, const std::vector<float*>& slices, size_t begin, size_t end,
             int64_t count) {
  if (end - begin < 2) return;
  const size_t middle = begin + (end - begin + 1) / 2;
  AddTree(ops, slices, begin, middle, count);
  AddTree(ops, slices, middle, end, count);
  ops.Add(slices[begin], slices[middle], count);
}

class RealCommunicator : public Communicator {
 public:
  RealCommunicator(std::string group, std::unique_ptr<Transport> transport, absl::Duration timeout)
      : group_(std::move(group)), transport_(std::move(transport)), timeout_(timeout) {}

  const std::string& group() const override { return group_; }
  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }

  void AllReduceSum(Stream& stream, float* data, int64_t count, SumOrder order,
                    float* scratch) override {
    if (size() == 1 || count == 0) return;
    stream.RunOnHost([=, this, &stream] {
      return Named("all-reduce", count, SumFloats(stream.ops(), data, count, order, scratch));
    });
  }

  void ReduceScatterSum(Stream& stream, const float* in, float* out, int64_t count,
                        float* scratch) override {
    stream.RunOnHost([=, this, &stream] {
      return Named("reduce-scatter", count, ScatterFloats(stream.ops(), in, out, count, scratch));
    });
  }

  void AllReduceSum(Stream& stream, double* data, int64_t count) override {
    if (size() == 1 || count == 0) return;
    stream.RunOnHost([=, this] { return Named("all-reduce", count, SumDoubles(data, count)); });
  }

  void AllGather(Stream& stream, const float* in, float* out, int64_t count) override {
    stream.RunOnHost([=, this, &stream] {
      stream.ops().Copy(out + rank() * count, in, count);
      return Named("all-gather", count, Exchange(kGatherTag, out, count));
    });
  }

  void Broadcast(Stream& stream, void* data, int64_t bytes, int root) override {
    if (size() == 1) return;
    stream.RunOnHost(
        [=, this] { return Named("broadcast", bytes, BroadcastNow(data, bytes, root)); });
  }

  void Barrier(Stream& stream) override {
    if (size() == 1) return;
    stream.RunOnHost([this] {
      double nothing = 0;
      return Named("barrier", 1, SumDoubles(&nothing, 1));
    });
  }

  std::unique_ptr<Transfer> Send(const void* data, int64_t bytes, int peer, uint32_t tag) override {
    return transport_->Send(data, bytes, peer, kFirstFreeTag + tag);
  }
  std::unique_ptr<Transfer> Receive(void* data, int64_t bytes, int peer, uint32_t tag) override {
    return transport_->Receive(data, bytes, peer, kFirstFreeTag + tag);
  }
  absl::Status Wait(Transfer& transfer) override {
    const absl::Time start = absl::Now();
    const absl::Status status = transfer.Wait(timeout_);
    waited_nanoseconds_ += absl::ToInt64Nanoseconds(absl::Now() - start);
    return status;
  }

  void Abort() override { transport_->Abort(); }
  double WaitSeconds() const override {
    return static_cast<double>(waited_nanoseconds_.load()) * 1e-9;
  }

 private:
  using Transfers = std::vector<std::unique_ptr<Transfer>>;

  // Waits for all, also after an error: buffers must stay valid until Wait returns.
  absl::Status WaitAll(Transfers& transfers) {
    absl::Status first;
    for (auto& transfer : transfers) {
      const absl::Status status = Wait(*transfer);
      if (status.ok() || !first.ok()) continue;
      first = status;
      transport_->Abort();  // the rest must not wait for their own timeouts
    }
    transfers.clear();
    return first;
  }

  absl::Status Named(const char* operation, int64_t count, absl::Status status) {
    const int64_t sequence = sequence_++;
    if (status.ok()) return status;
    return absl::Status(
        status.code(),
        absl::StrCat("group ", group_, ", rank ", rank(), " of ", size(), ", call ", sequence, ", ",
                     operation, " of ", count, ": ", std::string(status.message())));
  }

  // Rank r owns slice r: it receives that slice from all, adds, and sends the sum to all.
  absl::Status SumFloats(kernels::Ops& ops, float* data, int64_t count, SumOrder order,
                         float* scratch) {
    const int64_t slice = plan::AllReduceSlice(count, size());
    const auto begin = [&](int r) { return std::min(count, r * slice); };
    const auto length = [&](int r) { return std::min(count, (r + 1) * slice) - begin(r); };
    const int64_t mine = length(rank());
    Transfers transfers;
    std::vector<float*> slices;
    for (int r = 0; r < size(); ++r) {
      slices.push_back(scratch + r * slice);
      if (r == rank()) continue;
      transfers.push_back(transport_->Receive(slices.back(), FloatBytes(mine), r, kScatterTag));
      transfers.push_back(transport_->Send(data + begin(r), FloatBytes(length(r)), r, kScatterTag));
    }
    ops.Copy(slices[static_cast<size_t>(rank())], data + begin(rank()), mine);
    TERCIO_RETURN_IF_ERROR(WaitAll(transfers));
    if (order == SumOrder::kTree) {
      AddTree(ops, slices, 0, slices.size(), mine);
    } else {
      for (size_t r = 1; r < slices.size(); ++r) ops.Add(slices[0], slices[r], mine);
    }
    ops.Copy(data + begin(rank()), slices[0], mine);
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      transfers.push_back(
          transport_->Receive(data + begin(r), FloatBytes(length(r)), r, kGatherTag));
      transfers.push_back(transport_->Send(data + begin(rank()), FloatBytes(mine), r, kGatherTag));
    }
    return WaitAll(transfers);
  }

  absl::Status ScatterFloats(kernels::Ops& ops, const float* in, float* out, int64_t count,
                             float* scratch) {
    Transfers transfers;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      transfers.push_back(
          transport_->Receive(scratch + r * count, FloatBytes(count), r, kScatterTag));
      transfers.push_back(transport_->Send(in + r * count, FloatBytes(count), r, kScatterTag));
    }
    TERCIO_RETURN_IF_ERROR(WaitAll(transfers));
    const auto block = [&](int r) { return r == rank() ? in + r * count : scratch + r * count; };
    ops.Copy(out, block(0), count);
    for (int r = 1; r < size(); ++r) ops.Add(out, block(r), count);
    return absl::OkStatus();
  }

  // out holds this rank's block already.
  absl::Status Exchange(uint32_t tag, float* out, int64_t count) {
    Transfers transfers;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      transfers.push_back(transport_->Receive(out + r * count, FloatBytes(count), r, tag));
      transfers.push_back(transport_->Send(out + rank() * count, FloatBytes(count), r, tag));
    }
    return WaitAll(transfers);
  }

  // To rank 0, which adds in rank order, and back: two messages per rank, however many ranks.
  absl::Status SumDoubles(double* data, int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(double));
    Transfers transfers;
    if (rank() == 0) {
      double_scratch_.resize(static_cast<size_t>(count * (size() - 1)));
      for (int r = 1; r < size(); ++r) {
        transfers.push_back(
            transport_->Receive(double_scratch_.data() + (r - 1) * count, bytes, r, kDoubleTag));
      }
      TERCIO_RETURN_IF_ERROR(WaitAll(transfers));
      for (int r = 1; r < size(); ++r) {
        const double* other = double_scratch_.data() + (r - 1) * count;
        for (int64_t i = 0; i < count; ++i) data[i] += other[i];
      }
    } else {
      transfers.push_back(transport_->Send(data, bytes, 0, kDoubleTag));
      TERCIO_RETURN_IF_ERROR(WaitAll(transfers));
    }
    return BroadcastNow(data, bytes, 0);
  }

  absl::Status BroadcastNow(void* data, int64_t bytes, int root) {
    Transfers transfers;
    if (rank() == root) {
      for (int r = 0; r < size(); ++r) {
        if (r != root) transfers.push_back(transport_->Send(data, bytes, r, kBroadcastTag));
      }
    } else {
      transfers.push_back(transport_->Receive(data, bytes, root, kBroadcastTag));
    }
    return WaitAll(transfers);
  }

  std::string group_;
  std::unique_ptr<Transport> transport_;
  absl::Duration timeout_;
  int64_t sequence_ = 0;
  std::vector<double> double_scratch_;
  std::atomic<int64_t> waited_nanoseconds_{0};
};

}  // namespace

std::unique_ptr<Communicator> CreateCommunicator(std::string group,
                                                 std::unique_ptr<Transport> transport,
                                                 absl::Duration timeout) {
  return std::make_unique<RealCommunicator>(std::move(group), std::move(transport), timeout);
}

}  // namespace tercio
