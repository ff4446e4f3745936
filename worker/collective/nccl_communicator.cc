#include "worker/collective/nccl_communicator.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "worker/collective/pipeline_edges.h"
#include "worker/collective/ring_bytes.h"
#include "worker/device/cuda_device.h"
#include "worker/device/cuda_status.h"

namespace tercio::collective {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(50);
constexpr int64_t kDoubleBytes = sizeof(double);

using kernels::ConstValues;
using kernels::Format;
using kernels::Values;

ncclDataType_t TypeOf(ConstValues values) {
  switch (values.stored()) {
    case Format::kBfloat16:
      return ncclBfloat16;
    case Format::kFloat16:
      return ncclFloat16;
    case Format::kFloat32:
    case Format::kE4m3:  // no numbers of 8 bits are exchanged
    case Format::kE5m2:
      break;
  }
  return ncclFloat32;
}
const char* NameOfType(ncclDataType_t type) {
  switch (type) {
    case ncclBfloat16:
      return "bf16";
    case ncclFloat16:
      return "f16";
    case ncclFloat32:
      return "f32";
    case ncclFloat64:
      return "f64";
    default:
      return "bytes";
  }
}

// Calls that are enqueued and have not ended, oldest first: the ones that this rank may wait in.
// Threads: as the communicator.
class CallsUnderWay {
 public:
  CallsUnderWay() = default;
  ~CallsUnderWay() {
    for (const Call& call : calls_) Drop(call);
    for (const cudaEvent_t event : idle_) cudaEventDestroy(event);
  }
  CallsUnderWay(const CallsUnderWay&) = delete;
  CallsUnderWay& operator=(const CallsUnderWay&) = delete;

  absl::Status Begin(cudaStream_t stream, progress::CollectivePosition position) {
    calls_.push_back({std::move(position)});
    Call& call = calls_.back();
    absl::Status status = Take(&call.begin);
    if (status.ok()) status = Take(&call.end);
    if (status.ok())
      status = device::CudaStatus(cudaEventRecord(call.begin, stream), "recording an event");
    if (!status.ok()) Cancel();
    return status;
  }
  absl::Status End(cudaStream_t stream) {
    calls_.back().enqueued = true;
    return device::CudaStatus(cudaEventRecord(calls_.back().end, stream), "recording an event");
  }
  // Removes the last call, which was not enqueued.
  void Cancel() {
    Drop(calls_.back());
    calls_.pop_back();
  }

  // Whether no call is left on the GPU.
  bool Done() {
    // An event counts as reached if it was never recorded, hence `enqueued`.
    while (!calls_.empty() && calls_.front().enqueued && Reached(calls_.front().end)) {
      idle_.push_back(calls_.front().begin);
      idle_.push_back(calls_.front().end);
      calls_.pop_front();
    }
    return calls_.empty();
  }
  const progress::CollectivePosition& Last() const { return calls_.back().position; }
  // The call that the GPU is at; null: none. A call that its stream has not reached waits for no
  // rank.
  const progress::CollectivePosition* Running() {
    if (Done() || !Reached(calls_.front().begin)) return nullptr;
    return &calls_.front().position;
  }

 private:
  struct Call {
    progress::CollectivePosition position = {};
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    bool enqueued = false;
  };
  absl::Status Take(cudaEvent_t* event) {
    if (idle_.empty())
      return device::CudaStatus(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                                "creating an event");
    // Events are kept for later calls, so that a step makes none.
    *event = idle_.back();
    idle_.pop_back();
    return absl::OkStatus();
  }
  // An error of the device is reported by the thread that waits for the stream.
  static bool Reached(cudaEvent_t event) {
    const cudaError_t state = cudaEventQuery(event);
    return !device::IsUnderWay(state) && state == cudaSuccess;
  }
  static void Drop(const Call& call) {
    if (call.begin != nullptr) cudaEventDestroy(call.begin);
    if (call.end != nullptr) cudaEventDestroy(call.end);
  }

  std::deque<Call> calls_;
  std::vector<cudaEvent_t> idle_;
};

// A message on the stream of its link; `done` is recorded at its end. Null: it could not be
// started.
struct NcclMessage : Transfer {
  absl::Status Wait(absl::Duration timeout) override {
    const absl::Time deadline = SteadyNow() + timeout;
    while (true) {
      const cudaError_t state = cudaStreamQuery(device::HandleOf(*link->stream));
      if (!device::IsUnderWay(state)) return device::CudaStatus(state, "waiting for a message");
      TERCIO_RETURN_IF_ERROR(link->handle->AsyncError());
      if (SteadyNow() > deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat(position.operation, " of ", position.count, " bytes, rank ", position.peer,
                         ": not completed within ", absl::FormatDuration(timeout)));
      }
      std::this_thread::sleep_for(kPollInterval);
    }
  }
  NcclLink* link = nullptr;
  progress::CollectivePosition position;
  std::unique_ptr<device::Event> done;
};

// NCCL connects two ranks when both have reached their first message, and until then neither has
// started it: a rank would wait while it enqueues a step, perhaps for one that waits for it at
// another edge. So that message is sent when an edge is made, in the same order on all ranks.
// `peer` is its rank in the job; `number` is 8 bytes of the device, the same ones on both.
absl::Status ConnectEdge(NcclLink& link, bool sends, int peer, std::byte* number,
                         absl::Duration timeout) {
  constexpr size_t kBytes = sizeof(double);
  const cudaStream_t stream = device::HandleOf(*link.stream);
  NcclMessage message;
  message.link = &link;
  message.position.operation = "the first message";
  message.position.count = kBytes;
  message.position.peer = peer;
  absl::Status status =
      link.handle->Enqueue("connecting pipeline stages", timeout, [&](ncclComm_t comm) {
        return sends ? ncclSend(number, kBytes, ncclUint8, 1, comm, stream)
                     : ncclRecv(number, kBytes, ncclUint8, 0, comm, stream);
      });
  if (status.ok()) status = message.Wait(timeout);
  if (!status.ok()) link.handle->Abort();  // or the stream's end would wait for the other rank
  return status;
}

class NcclCommunicator : public Communicator, public device::StreamWatch {
 public:
  NcclCommunicator(CommunicatorOptions options, std::shared_ptr<NcclHandle> world,
                   std::shared_ptr<NcclHandle> handle, NcclLinks links, device::Device& device,
                   std::shared_ptr<device::DeviceMemory> number, int rank, int size)
      : options_(std::move(options)),
        world_(std::move(world)),
        handle_(std::move(handle)),
        links_(std::move(links)),
        device_(device),
        number_(std::move(number)),
        rank_(rank),
        size_(size) {}
  ~NcclCommunicator() override {
    // The remaining messages are no longer waited for, but the streams of the links would wait for
    // them for ever.
    bool done = calls_.Done();
    for (auto& [key, link] : links_) {
      done = done && !device::IsUnderWay(cudaStreamQuery(device::HandleOf(*link.stream)));
    }
    if (!done) Abort();
  }

  const std::string& group() const override { return options_.group; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int64_t sent_bytes() const override { return sent_bytes_.load(std::memory_order_relaxed); }

  void AllToAll(device::Stream& stream, absl::Span<const Part> send,
                absl::Span<const MutablePart> receive) override {
    const CallPurpose purpose = TakePurpose();
    if (size_ == 1) return;
    int64_t bytes = 0;
    for (int r = 0; r < size_; ++r) bytes += r == rank_ ? 0 : send[static_cast<size_t>(r)].bytes;
    CountSent(bytes);
    // Within a group of calls all messages proceed together, whatever their order.
    Call(stream, purpose.Text("all-to-all"), ncclUint8, bytes,
         [&](ncclComm_t comm, cudaStream_t handle) {
           ncclResult_t result = ncclGroupStart();
           const auto add = [&result](ncclResult_t next) {
             if (result == ncclSuccess || result == ncclInProgress) result = next;
           };
           for (int r = 0; r < size_; ++r) {
             const Part& out = send[static_cast<size_t>(r)];
             const MutablePart& in = receive[static_cast<size_t>(r)];
             if (r == rank_) continue;
             if (out.bytes > 0)
               add(ncclSend(out.data, static_cast<size_t>(out.bytes), ncclUint8, r, comm, handle));
             if (in.bytes > 0)
               add(ncclRecv(in.data, static_cast<size_t>(in.bytes), ncclUint8, r, comm, handle));
           }
           // The group is left even after an error.
           add(ncclGroupEnd());
           return result;
         });
  }

  // NCCL adds in an order of its own and brings its own memory.
  void AllReduceSum(device::Stream& stream, Values data, int64_t count, SumOrder, float*) override {
    if (size_ == 1 || count == 0) return;
    CountSent(RingAllReduceBytes(data.BytesFor(count), size_));
    Call(stream, "all-reduce", TypeOf(data), count, [&](ncclComm_t comm, cudaStream_t handle) {
      return ncclAllReduce(data.data(), data.data(), static_cast<size_t>(count), TypeOf(data),
                           ncclSum, comm, handle);
    });
  }
  void AllReduceSum(device::Stream& stream, double* data, int64_t count) override {
    if (size_ == 1 || count == 0) return;
    CountSent(RingAllReduceBytes(count * kDoubleBytes, size_));
    Call(stream, "all-reduce", ncclFloat64, count, [&](ncclComm_t comm, cudaStream_t handle) {
      return ncclAllReduce(data, data, static_cast<size_t>(count), ncclFloat64, ncclSum, comm,
                           handle);
    });
  }
  // Parts of different sizes, and in our order: NCCL only moves them.
  void ReduceScatterParts(device::Stream& stream, float* data, absl::Span<const int64_t> bounds,
                          SumOrder order, float* scratch) override {
    if (size_ == 1 || bounds.back() == 0) return;
    const auto begin = [&](int r) { return bounds[static_cast<size_t>(r)]; };
    const auto length = [&](int r) { return begin(r + 1) - begin(r); };
    const auto bytes = [](int64_t count) { return count * static_cast<int64_t>(sizeof(float)); };
    const int64_t mine = length(rank_);
    float* const own = data + begin(rank_);
    std::vector<float*> slices;
    std::vector<Part> send;
    std::vector<MutablePart> receive;
    for (int r = 0; r < size_; ++r) {
      slices.push_back(scratch + r * plan::PartSlice(mine));
      send.push_back({data + begin(r), bytes(length(r))});
      receive.push_back({slices.back(), bytes(mine)});
    }
    AllToAll(stream, send, receive);
    // The sum ends in the first part.
    slices[static_cast<size_t>(rank_)] = own;
    for (const plan::Addition& addition : plan::SumTreeOf(order, size_)) {
      stream.ops().Add(slices[static_cast<size_t>(addition.into)],
                       slices[static_cast<size_t>(addition.from)], mine);
    }
    if (rank_ != 0) stream.ops().Copy(own, slices[0], mine);
  }

  void ReduceScatterSum(device::Stream& stream, ConstValues in, Values out, int64_t count,
                        float*) override {
    if (size_ == 1) return stream.ops().Copy(out, in, count);
    TERCIO_CHECK(in.stored() == out.stored());
    CountSent(RingReduceScatterBytes(in.BytesFor(count), size_));
    Call(stream, "reduce-scatter", TypeOf(in), count, [&](ncclComm_t comm, cudaStream_t handle) {
      return ncclReduceScatter(in.data(), out.data(), static_cast<size_t>(count), TypeOf(in),
                               ncclSum, comm, handle);
    });
  }
  void AllGather(device::Stream& stream, ConstValues in, Values out, int64_t count) override {
    if (size_ == 1) return stream.ops().Copy(out, in, count);
    TERCIO_CHECK(in.stored() == out.stored());
    CountSent(RingAllGatherBytes(in.BytesFor(count), size_));
    Call(stream, "all-gather", TypeOf(in), count, [&](ncclComm_t comm, cudaStream_t handle) {
      return ncclAllGather(in.data(), out.data(), static_cast<size_t>(count), TypeOf(in), comm,
                           handle);
    });
  }
  void Broadcast(device::Stream& stream, void* data, int64_t bytes, int root) override {
    if (size_ == 1 || bytes == 0) return;
    CountSent(RingBroadcastBytes(bytes, rank_, root, size_));
    Call(stream, "broadcast", ncclUint8, bytes, [&](ncclComm_t comm, cudaStream_t handle) {
      return ncclBroadcast(data, data, static_cast<size_t>(bytes), ncclUint8, root, comm, handle);
    });
  }
  void Barrier(device::Stream& stream) override {
    if (size_ == 1) return;
    CountSent(RingAllReduceBytes(kDoubleBytes, size_));
    // NCCL has no barrier, but a sum ends only when every rank has begun it.
    auto* number = reinterpret_cast<double*>(number_->data());
    Call(stream, "barrier", ncclFloat64, 1, [&](ncclComm_t comm, cudaStream_t handle) {
      return ncclAllReduce(number, number, 1, ncclFloat64, ncclSum, comm, handle);
    });
  }

  std::shared_ptr<Transfer> Send(device::Stream& stream, const void* data, int64_t bytes, int peer,
                                 uint32_t tag) override {
    return Exchange(stream, true, bytes, peer, tag, [=](ncclComm_t comm, cudaStream_t handle) {
      // Between the two ranks of an edge the sender is 0 and the receiver 1 (NcclGroups::Group).
      return ncclSend(data, static_cast<size_t>(bytes), ncclUint8, 1, comm, handle);
    });
  }
  std::shared_ptr<Transfer> Receive(device::Stream& stream, void* data, int64_t bytes, int peer,
                                    uint32_t tag) override {
    return Exchange(stream, false, bytes, peer, tag, [=](ncclComm_t comm, cudaStream_t handle) {
      return ncclRecv(data, static_cast<size_t>(bytes), ncclUint8, 0, comm, handle);
    });
  }
  // The wait of the stream is recorded as a call of its own, so that a message which was started
  // early is not blamed before the stream needs it.
  void Wait(device::Stream& stream, std::shared_ptr<Transfer> transfer) override {
    const auto& message = static_cast<NcclMessage&>(*transfer);
    if (message.done == nullptr) return;
    device::Watch(stream, self_);
    Fail(stream, Enqueue(stream, message.position, [&] {
           stream.Wait(*message.done);
           return absl::OkStatus();
         }));
  }

  // The world's communicator is aborted, too: taking it down in order may wait for ranks that are
  // gone.
  void Abort() override {
    world_->Abort();
    if (handle_ != nullptr) handle_->Abort();
    for (auto& [key, link] : links_) link.handle->Abort();
  }

  absl::Status Poll() override;
  void EndWait() override;
  void GiveUp() override { Abort(); }

 private:
  using Function = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;

  // Nothing depends on the order in which other threads see the sum.
  void CountSent(int64_t bytes) { sent_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

  // Fails the stream. The other ranks cannot continue without this one, nor it without them.
  void Fail(device::Stream& stream, const absl::Status& status) {
    if (status.ok()) return;
    device::FailStream(stream, status);  // before the abort, which is not the cause
    Abort();
  }

  void Call(device::Stream& stream, const std::string& operation, ncclDataType_t type,
            int64_t count, const Function& call) {
    device::Watch(stream, self_);
    // Groups that exchange messages have no communicator of their own.
    TERCIO_CHECK(handle_ != nullptr);
    const cudaStream_t raw = device::HandleOf(stream);
    progress::CollectivePosition position{group(),          sequence_++, operation,
                                          NameOfType(type), count,       -1};
    Fail(stream, Enqueue(stream, std::move(position), [&] {
           return handle_->Enqueue(operation, options_.timeout,
                                   [&](ncclComm_t comm) { return call(comm, raw); });
         }));
  }

  // Enqueues the call that `enqueue` makes, at `position`.
  absl::Status Enqueue(device::Stream& stream, progress::CollectivePosition position,
                       const std::function<absl::Status()>& enqueue) {
    const cudaStream_t raw = device::HandleOf(stream);
    TERCIO_RETURN_IF_ERROR(calls_.Begin(raw, std::move(position)));
    const absl::Status status = enqueue();
    if (status.ok()) return calls_.End(raw);
    // The message needs the call, which Cancel removes.
    const absl::Status named = Named(&calls_.Last(), status);
    calls_.Cancel();
    return named;
  }

  std::shared_ptr<Transfer> Exchange(device::Stream& stream, bool sends, int64_t bytes, int peer,
                                     uint32_t tag, const Function& call) {
    auto message = std::make_shared<NcclMessage>();
    const auto found = links_.find({sends, peer, tag});
    TERCIO_CHECK(found != links_.end());
    NcclLink& link = found->second;
    message->link = &link;
    message->position = {group(), link.messages++, sends ? "pipeline send" : "pipeline receive",
                         "bytes", bytes,           GlobalRank(peer)};
    auto done = device_.CreateEvent();
    if (!done.ok()) {
      Fail(stream, done.status());
      return message;
    }
    device::Watch(stream, self_);
    // The link's stream must not touch the buffer before the work that fills it, or still reads it.
    stream.Record(*link.ready);
    link.stream->Wait(*link.ready);
    const absl::Status begun = link.handle->Enqueue(
        message->position.operation, options_.timeout,
        [&](ncclComm_t comm) { return call(comm, device::HandleOf(*link.stream)); });
    if (!begun.ok()) {
      Fail(stream, Named(&message->position, begun));
      return message;
    }
    // Without `done` the message counts as not started,
    // so it is set when nothing can fail any more.
    message->done = *std::move(done);
    link.stream->Record(*message->done);
    if (sends) CountSent(bytes);
    return message;
  }

  // Describes an error, with the call at which it happened; null: at none.
  absl::Status Named(const progress::CollectivePosition* call, const absl::Status& status) const {
    std::string where = absl::StrCat("group ", group(), ", rank ", rank_, " of ", size_);
    if (call != nullptr) {
      absl::StrAppend(&where, ", ", call->operation, " #", call->sequence, " of ", call->dtype,
                      " x ", call->count);
    }
    if (call != nullptr && call->peer >= 0) {
      absl::StrAppend(&where, " with rank ", call->peer, " of the job");
    }
    return absl::Status(status.code(), absl::StrCat(where, ": ", std::string(status.message())));
  }

  int GlobalRank(int r) const {
    return options_.ranks.empty() ? r : options_.ranks[static_cast<size_t>(r)];
  }

  CommunicatorOptions options_;
  const std::shared_ptr<NcclHandle> world_;  // the communicator that the others were split from
  std::shared_ptr<NcclHandle> handle_;       // perhaps the world's; null: it makes no such calls
  NcclLinks links_;
  device::Device& device_;
  const std::shared_ptr<device::DeviceMemory> number_;  // 0, which barriers sum
  const int rank_;
  const int size_;
  // Streams refer to it weakly: they forget a communicator that has gone.
  const std::shared_ptr<device::StreamWatch*> self_ = std::make_shared<device::StreamWatch*>(this);
  CallsUnderWay calls_;
  std::atomic<int64_t> sent_bytes_{0};
  int64_t sequence_ = 0;
  // State of the current wait.
  bool waiting_ = false;
  progress::CollectivePosition waits_for_;
  absl::Time since_;
};

// The call that the wait is blocked on: when that changes, its time starts over.
absl::Status NcclCommunicator::Poll() {
  const progress::CollectivePosition* running = calls_.Running();
  const bool same = running != nullptr && waiting_ && running->sequence == waits_for_.sequence &&
                    running->operation == waits_for_.operation && running->peer == waits_for_.peer;
  if (!same) EndWait();
  // The agent, too, learns what is waited for, and since when.
  if (running != nullptr && !same) {
    waiting_ = true;
    waits_for_ = *running;
    since_ = SteadyNow();
    if (options_.whereabouts != nullptr) options_.whereabouts->BeginWait(waits_for_);
  }
  absl::Status status = handle_ != nullptr ? handle_->AsyncError() : absl::OkStatus();
  for (auto& [key, link] : links_) {
    if (status.ok()) status = link.handle->AsyncError();
  }
  if (status.ok() && waiting_ && SteadyNow() - since_ > options_.timeout) {
    status = absl::DeadlineExceededError(
        absl::StrCat("not completed within ", absl::FormatDuration(options_.timeout)));
  }
  // The kernels of the group would wait on the GPU
  // for ranks that are gone: only an abort ends them.
  if (status.ok()) return status;
  Abort();
  return Named(running, status);
}

void NcclCommunicator::EndWait() {
  if (!waiting_) return;
  waiting_ = false;
  if (options_.whereabouts == nullptr) return;
  options_.whereabouts->EndWait(absl::ToDoubleSeconds(SteadyNow() - since_));
}

std::string IdKey() { return "nccl/world"; }

}  // namespace

absl::StatusOr<std::unique_ptr<NcclGroups>> NcclGroups::Join(int rank, int world_size,
                                                             device::Device& device,
                                                             RendezvousStore& rendezvous,
                                                             absl::Duration timeout,
                                                             const NcclOptions& options) {
  // First, since this makes the device the calling thread's.
  TERCIO_ASSIGN_OR_RETURN(auto number, device.Allocate(sizeof(double)));
  ncclUniqueId id = {};
  if (rank == 0) {
    TERCIO_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), "creating a unique id"));
    TERCIO_RETURN_IF_ERROR(rendezvous.Put(IdKey(), std::string(id.internal, sizeof(id.internal))));
  } else {
    TERCIO_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                            rendezvous.Get({IdKey()}, timeout));
    // The id comes from another process, and is copied into a struct of NCCL's.
    if (found.size() != 1 || found[0].size() != sizeof(id.internal)) {
      return absl::InternalError("the rendezvous returned something other than a unique id");
    }
    std::memcpy(id.internal, found[0].data(), sizeof(id.internal));
  }
  TERCIO_ASSIGN_OR_RETURN(
      auto handle,
      NcclHandle::Join(id, rank, world_size,
                       {"world", options.world_channels, options.reserve_bytes}, timeout));
  return std::unique_ptr<NcclGroups>(new NcclGroups(std::move(handle), std::move(number), rank,
                                                    world_size, device, timeout, options));
}

// All ranks of the job take part in each split, and a rank can be in one part of it only: edges are
// made round by round, and stages without one in a round are left out of it.
absl::StatusOr<NcclLinks> NcclGroups::MakeLinks(const CommunicatorOptions& options, int index) {
  const auto size = static_cast<int>(options.ranks.size());
  NcclLinks links;
  for (const EdgeRound& round : RoundsOfEdges(size, options_.edges)) {
    const auto mine = std::find_if(round.begin(), round.end(), [&](const PipelineEdge& edge) {
      return edge.from == index || edge.to == index;
    });
    const bool sends = mine != round.end() && mine->from == index;
    // No other edge of the round, of any group, has the same sender.
    const int color =
        mine == round.end() ? NCCL_SPLIT_NOCOLOR : options.ranks[static_cast<size_t>(mine->from)];
    const NcclSetup setup = {options.group, options_.edge_channels, options_.reserve_bytes};
    TERCIO_ASSIGN_OR_RETURN(auto pair, world_->Split(color, sends ? 0 : 1, setup, timeout_));
    if (mine == round.end()) continue;
    NcclLink link;
    link.handle = std::move(pair);
    // On a stream of its own a message does not wait behind those of other edges.
    TERCIO_ASSIGN_OR_RETURN(link.stream,
                            device_.CreateStream(device::Device::StreamKind::kCommunication));
    TERCIO_ASSIGN_OR_RETURN(link.ready, device_.CreateEvent());
    const int peer = sends ? mine->to : mine->from;
    TERCIO_RETURN_IF_ERROR(ConnectEdge(link, sends, options.ranks[static_cast<size_t>(peer)],
                                       number_->data(), timeout_));
    links[{sends, peer, mine->tag}] = std::move(link);
  }
  return links;
}

absl::StatusOr<std::unique_ptr<Communicator>> NcclGroups::Group(NcclMessages messages,
                                                                CommunicatorOptions options) {
  const auto size = static_cast<int>(options.ranks.size());
  const auto place = std::find(options.ranks.begin(), options.ranks.end(), rank_);
  TERCIO_CHECK(place != options.ranks.end());
  const auto index = static_cast<int>(place - options.ranks.begin());
  const bool is_world =
      size == world_size_ && std::is_sorted(options.ranks.begin(), options.ranks.end());
  std::shared_ptr<NcclHandle> handle;
  NcclLinks links;
  if (size > 1 && is_world) {
    // The same ranks in the same order: a second communicator would only take memory.
    handle = world_;
  } else if (size > 1 && messages == NcclMessages::kNone) {
    // Groups of one kind share no rank, so the first rank of each is a color that no other one has.
    TERCIO_ASSIGN_OR_RETURN(handle,
                            world_->Split(options.ranks.front(), index,
                                          {options.group, 0, options_.reserve_bytes}, timeout_));
  }
  if (size > 1 && messages == NcclMessages::kNeighbours) {
    TERCIO_ASSIGN_OR_RETURN(links, MakeLinks(options, index));
  }
  return std::unique_ptr<Communicator>(
      std::make_unique<NcclCommunicator>(std::move(options), world_, std::move(handle),
                                         std::move(links), device_, number_, index, size));
}

}  // namespace tercio::collective
