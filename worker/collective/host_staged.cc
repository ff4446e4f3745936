#include "worker/collective/host_staged.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/status_macros.h"
#include "worker/device/cpu_device.h"

namespace tercio::collective {
namespace {

using kernels::ConstValues;
using kernels::Format;
using kernels::Values;

template <typename Number>
void Widen(const std::byte* from, int64_t count, float (*widen)(Number), float* to) {
  for (int64_t i = 0; i < count; ++i) {
    // The bytes are copied, since they must not be read through a pointer to another type.
    Number number;
    std::memcpy(&number, from + i * static_cast<int64_t>(sizeof(Number)), sizeof(Number));
    to[i] = widen(number);
  }
}

template <typename Number>
void Narrow(const float* from, int64_t count, Number (*narrow)(float), std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {
    const Number number = narrow(from[i]);
    std::memcpy(to + i * static_cast<int64_t>(sizeof(Number)), &number, sizeof(Number));
  }
}

// Values of a device on the host: as they are stored there, and as the CPU stores them.
class Staged {
 public:
  Staged(int64_t count, ConstValues like) : count_(count), like_(like) {
    stored_.resize(static_cast<size_t>(like.BytesFor(count)));
    // The CPU's communicator adds floats, which hold every value of 16 bits exactly.
    if (like.stored() != Format::kFloat32) floats_.resize(static_cast<size_t>(count));
  }

  std::byte* bytes() { return stored_.data(); }
  int64_t size_bytes() const { return static_cast<int64_t>(stored_.size()); }
  Values values() {
    float* floats = floats_.empty() ? reinterpret_cast<float*>(stored_.data()) : floats_.data();
    return {floats, like_.format()};
  }

  void Widen() {
    if (like_.stored() == Format::kBfloat16) {
      collective::Widen<__nv_bfloat16>(
          bytes(), count_, [](__nv_bfloat16 x) { return __bfloat162float(x); }, floats_.data());
    } else if (like_.stored() == Format::kFloat16) {
      collective::Widen<__half>(
          bytes(), count_, [](__half x) { return __half2float(x); }, floats_.data());
    }
  }
  void Narrow() {
    if (like_.stored() == Format::kBfloat16) {
      // The CPU's communicator has rounded to this format already, so nothing is lost here.
      collective::Narrow<__nv_bfloat16>(
          floats_.data(), count_, [](float x) { return __float2bfloat16_rn(x); }, bytes());
    } else if (like_.stored() == Format::kFloat16) {
      collective::Narrow<__half>(
          floats_.data(), count_, [](float x) { return __float2half_rn(x); }, bytes());
    }
  }

 private:
  int64_t count_;
  ConstValues like_;
  std::vector<std::byte> stored_;
  std::vector<float> floats_;  // if they are not stored as floats
};

// A message whose data lies on the host until it is copied to the device.
struct StagedMessage : Transfer {
  absl::Status Wait(absl::Duration timeout) override { return inner->Wait(timeout); }

  std::vector<std::byte> bytes;  // outlives what writes to it
  void* device = nullptr;        // destination of a received one
  std::shared_ptr<Transfer> inner;
};

// A GPU's stream runs a function before RunOnHost returns (worker/device/cuda_device.h).
// So functions may refer to locals, and what was copied to the host before is there.
class HostStagedCommunicator : public Communicator {
 public:
  // With one thread this stream runs its work inline, in the thread that feeds the GPU's stream.
  explicit HostStagedCommunicator(std::unique_ptr<Communicator> inner)
      : inner_(std::move(inner)),
        cpu_(device::CreateCpuDevice(1)),
        host_(*cpu_->CreateStream(device::Device::StreamKind::kCompute)) {}

  const std::string& group() const override { return inner_->group(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int64_t sent_bytes() const override { return inner_->sent_bytes(); }

  void SetPurpose(CallPurpose purpose) override { inner_->SetPurpose(purpose); }

  void AllToAll(device::Stream& stream, absl::Span<const Part> send,
                absl::Span<const MutablePart> receive) override {
    if (size() == 1) return;
    std::vector<std::vector<std::byte>> sent, received;
    std::vector<Part> from;
    std::vector<MutablePart> to;
    for (size_t r = 0; r < send.size(); ++r) {
      // A rank's own part is not moved.
      const bool mine = r == static_cast<size_t>(rank());
      sent.emplace_back(mine ? 0 : send[r].bytes);
      received.emplace_back(mine ? 0 : receive[r].bytes);
      from.push_back({sent[r].data(), static_cast<int64_t>(sent[r].size())});
      to.push_back({received[r].data(), static_cast<int64_t>(received[r].size())});
      if (from[r].bytes > 0) stream.CopyToHost(sent[r].data(), send[r].data, from[r].bytes);
    }
    stream.RunOnHost([&] {
      inner_->AllToAll(*host_, from, to);
      return host_->Synchronize();
    });
    for (size_t r = 0; r < to.size(); ++r) {
      if (to[r].bytes > 0) stream.CopyFromHost(receive[r].data, to[r].data, to[r].bytes);
    }
  }

  void AllReduceSum(device::Stream& stream, Values data, int64_t count, SumOrder order,
                    float*) override {
    if (size() == 1 || count == 0) return;
    // The caller has no memory of the host to offer: communicators of GPUs use no scratch.
    std::vector<float> scratch(static_cast<size_t>(ScratchElements(count)));
    OverHost(stream, data, count, data, count, [&](Values values, Values sum) {
      // The sum is made in place, so there must be one copy on the host, not two.
      TERCIO_CHECK(values == sum);
      inner_->AllReduceSum(*host_, sum, count, order, scratch.data());
    });
  }

  void ReduceScatterParts(device::Stream& stream, float* data, absl::Span<const int64_t> bounds,
                          SumOrder order, float*) override {
    if (size() == 1 || bounds.back() == 0) return;
    int64_t largest = 0;
    for (size_t r = 1; r < bounds.size(); ++r) {
      largest = std::max(largest, bounds[r] - bounds[r - 1]);
    }
    std::vector<float> scratch(static_cast<size_t>(plan::PartsScratch(largest, size())));
    std::vector<float> all(static_cast<size_t>(bounds.back()));
    const auto bytes = [](int64_t count) { return count * static_cast<int64_t>(sizeof(float)); };
    stream.CopyToHost(all.data(), data, bytes(bounds.back()));
    stream.RunOnHost([&] {
      inner_->ReduceScatterParts(*host_, all.data(), bounds, order, scratch.data());
      return host_->Synchronize();
    });
    const int64_t begin = bounds[static_cast<size_t>(rank())];
    const int64_t end = bounds[static_cast<size_t>(rank()) + 1];
    stream.CopyFromHost(data + begin, all.data() + begin, bytes(end - begin));
  }

  void ReduceScatterSum(device::Stream& stream, ConstValues in, Values out, int64_t count,
                        float*) override {
    if (size() == 1) return stream.ops().Copy(out, in, count);
    std::vector<float> scratch(static_cast<size_t>(count * size()));
    OverHost(stream, in, count * size(), out, count, [&](Values all, Values sum) {
      inner_->ReduceScatterSum(*host_, all, sum, count, scratch.data());
    });
  }

  void AllGather(device::Stream& stream, ConstValues in, Values out, int64_t count) override {
    if (size() == 1) return stream.ops().Copy(out, in, count);
    OverHost(stream, in, count, out, count * size(),
             [&](Values mine, Values all) { inner_->AllGather(*host_, mine, all, count); });
  }

  void AllReduceSum(device::Stream& stream, double* data, int64_t count) override {
    if (size() == 1 || count == 0) return;
    // These are exact sums, which need neither an order nor rounding.
    std::vector<double> numbers(static_cast<size_t>(count));
    const int64_t bytes = count * static_cast<int64_t>(sizeof(double));
    stream.CopyToHost(numbers.data(), data, bytes);
    stream.RunOnHost([&] {
      inner_->AllReduceSum(*host_, numbers.data(), count);
      return host_->Synchronize();
    });
    stream.CopyFromHost(data, numbers.data(), bytes);
  }

  void Broadcast(device::Stream& stream, void* data, int64_t bytes, int root) override {
    if (size() == 1 || bytes == 0) return;
    std::vector<std::byte> copy(static_cast<size_t>(bytes));
    stream.CopyToHost(copy.data(), data, bytes);
    stream.RunOnHost([&] {
      inner_->Broadcast(*host_, copy.data(), bytes, root);
      return host_->Synchronize();
    });
    stream.CopyFromHost(data, copy.data(), bytes);
  }

  void Barrier(device::Stream& stream) override {
    if (size() == 1) return;
    stream.RunOnHost([&] {
      inner_->Barrier(*host_);
      return host_->Synchronize();
    });
  }

  std::shared_ptr<Transfer> Send(device::Stream& stream, const void* data, int64_t bytes, int peer,
                                 uint32_t tag) override {
    auto message = std::make_shared<StagedMessage>();
    message->bytes.resize(static_cast<size_t>(bytes));
    // From here on the sender's buffer on the device
    // is free: only the copy has to wait for the peer.
    stream.CopyToHost(message->bytes.data(), data, bytes);
    stream.RunOnHost([&] {
      message->inner = inner_->Send(*host_, message->bytes.data(), bytes, peer, tag);
      return host_->Synchronize();
    });
    return message;
  }

  std::shared_ptr<Transfer> Receive(device::Stream& stream, void* data, int64_t bytes, int peer,
                                    uint32_t tag) override {
    auto message = std::make_shared<StagedMessage>();
    message->bytes.resize(static_cast<size_t>(bytes));
    // Nothing reaches the device before Wait, since messages arrive beside the work of its stream.
    message->device = data;
    stream.RunOnHost([&] {
      message->inner = inner_->Receive(*host_, message->bytes.data(), bytes, peer, tag);
      return host_->Synchronize();
    });
    return message;
  }

  void Wait(device::Stream& stream, std::shared_ptr<Transfer> transfer) override {
    auto message = std::static_pointer_cast<StagedMessage>(std::move(transfer));
    stream.RunOnHost([&] {
      // There is no inner message only if the stream had failed, and then this does not run.
      inner_->Wait(*host_, message->inner);
      return host_->Synchronize();
    });
    if (message->device == nullptr) return;
    stream.CopyFromHost(message->device, message->bytes.data(),
                        static_cast<int64_t>(message->bytes.size()));
  }

  void Abort() override { inner_->Abort(); }

 private:
  // Runs body(in, out) on the host; if both are the same memory of the device, they are the same
  // there.
  void OverHost(device::Stream& stream, ConstValues in, int64_t in_count, Values out,
                int64_t out_count, const std::function<void(Values in, Values out)>& body) {
    const bool same = in == ConstValues(out) && in_count == out_count;
    Staged from(in_count, in);
    Staged to(same ? 0 : out_count, out);
    Staged& result = same ? from : to;
    stream.CopyToHost(from.bytes(), in.data(), from.size_bytes());
    stream.RunOnHost([&]() -> absl::Status {
      from.Widen();
      body(from.values(), result.values());
      // The host's error becomes the stream's, which the caller sees.
      TERCIO_RETURN_IF_ERROR(host_->Synchronize());
      result.Narrow();
      return absl::OkStatus();
    });
    // After an error the stream copies nothing.
    stream.CopyFromHost(out.data(), result.bytes(), result.size_bytes());
  }

  std::unique_ptr<Communicator> inner_;
  std::unique_ptr<device::Device> cpu_;
  std::unique_ptr<device::Stream> host_;
};

}  // namespace

std::unique_ptr<Communicator> CreateHostStagedCommunicator(
    std::unique_ptr<Communicator> over_host) {
  return std::make_unique<HostStagedCommunicator>(std::move(over_host));
}

}  // namespace tercio::collective
