// Collectives by NCCL on emulated devices: ranks are threads, each with a device of its own.
#include "worker/collective/nccl_communicator.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "emulation/control.h"
#include "emulation/nccl_control.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/collective/memory_rendezvous.h"
#include "worker/collective/pipeline_edges.h"
#include "worker/device/cuda_device.h"

namespace tercio::collective {
namespace {

using kernels::ConstValues;
using kernels::Format;
using kernels::Values;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// What one rank has in a test.
struct Rank {
  int rank;
  int size;
  device::Device& device;
  NcclGroups& groups;

  std::unique_ptr<Communicator> Group(std::vector<int> ranks,
                                      NcclMessages messages = NcclMessages::kNone,
                                      absl::Duration timeout = absl::Seconds(60)) const {
    auto made = groups.Group(messages, {"g", timeout, std::move(ranks)});
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  std::unique_ptr<Communicator> World(absl::Duration timeout = absl::Seconds(60)) const {
    return Group(AllRanks(size), NcclMessages::kNone, timeout);
  }
  std::unique_ptr<device::Stream> MakeStream() const {
    return *device.CreateStream(device::Device::StreamKind::kCompute);
  }
  std::unique_ptr<device::DeviceMemory> Memory(int64_t bytes) const {
    return *device.Allocate(bytes);
  }
};

class NcclCommunicatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    emulation::Settings settings;
    settings.devices = 9;
    settings.seed = 3;
    emulation::Configure(settings);
  }
  void TearDown() override {
    emulation::SetNcclBufferBytes(0);
    EXPECT_EQ(emulation::MemoryReport(), "");
  }

  static void OnRanks(int size, const std::function<void(const Rank&)>& body,
                      const NcclOptions& options = {}) {
    MemoryRendezvous store;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        auto device = device::CreateCudaDevice(rank);
        ASSERT_TRUE(device.ok()) << device.status();
        auto groups = NcclGroups::Join(rank, size, **device, store, absl::Seconds(60), options);
        ASSERT_TRUE(groups.ok()) << groups.status();
        body({rank, size, **device, **groups});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

// Small whole numbers: their sums are exact in every type and order.
float NumberOf(int rank, int64_t i) { return static_cast<float>((rank * 5 + i) % 7); }

std::vector<std::byte> Stored(Format format, int64_t count,
                              const std::function<float(int64_t)>& value) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * (format == Format::kFloat32 ? 4 : 2));
  for (int64_t i = 0; i < count; ++i) {
    const float x = value(i);
    const uint16_t bits =
        format == Format::kBfloat16 ? __float2bfloat16(x).bits : __float2half(x).bits;
    if (format == Format::kFloat32) {
      std::memcpy(bytes.data() + i * 4, &x, 4);
    } else {
      std::memcpy(bytes.data() + i * 2, &bits, 2);
    }
  }
  return bytes;
}

std::vector<std::byte> Back(device::Stream& stream, const std::byte* data, size_t bytes) {
  std::vector<std::byte> back(bytes);
  stream.CopyToHost(back.data(), data, static_cast<int64_t>(bytes));
  EXPECT_EQ(stream.Synchronize(), absl::OkStatus());
  return back;
}

void CheckSums(const Rank& rank, Communicator& group, device::Stream& stream, Format format,
               int64_t count) {
  const int n = rank.size;
  const auto whole = Stored(format, count * n, [&](int64_t i) { return NumberOf(rank.rank, i); });
  const auto memory = rank.Memory(static_cast<int64_t>(whole.size()));
  stream.CopyFromHost(memory->data(), whole.data(), static_cast<int64_t>(whole.size()));
  const auto out = rank.Memory(static_cast<int64_t>(whole.size()) / n);
  const Values values(memory->data(), format, format);
  const Values part(out->data(), format, format);
  group.ReduceScatterSum(stream, values, part, count, nullptr);
  const auto sum = [&](int64_t i) {
    float total = 0;
    for (int r = 0; r < n; ++r) total += NumberOf(r, i);
    return total;
  };
  EXPECT_EQ(Back(stream, out->data(), whole.size() / static_cast<size_t>(n)),
            Stored(format, count, [&](int64_t i) { return sum(rank.rank * count + i); }));
  group.AllReduceSum(stream, values, count * n, SumOrder::kRanks, nullptr);
  EXPECT_EQ(Back(stream, memory->data(), whole.size()), Stored(format, count * n, sum));
  // Each rank's part of its own numbers, gathered.
  const auto mine = Stored(format, count, [&](int64_t i) { return NumberOf(rank.rank, i); });
  stream.CopyFromHost(out->data(), mine.data(), static_cast<int64_t>(mine.size()));
  group.AllGather(stream, part, values, count);
  EXPECT_EQ(Back(stream, memory->data(), whole.size()), Stored(format, count * n, [&](int64_t i) {
              return NumberOf(static_cast<int>(i / count), i % count);
            }));
}

// All three of the above: around the ring of `size` ranks, twice for the sum, which has a block for
// each rank.
int64_t BytesOfSums(Format format, int64_t count, int size) {
  return 4 * (size - 1) * count * (format == Format::kFloat32 ? 4 : 2);
}

TEST_F(NcclCommunicatorTest, CollectivesOfAllTypesAndSizes) {
  for (const int size : {2, 3, 4}) {
    SCOPED_TRACE(size);
    OnRanks(size, [](const Rank& rank) {
      const auto group = rank.World();
      const auto stream = rank.MakeStream();
      int64_t bytes = 0;
      // The last ones need several pieces.
      for (const int64_t count : {1, 7, 1000, 30011}) {
        for (const Format format : {Format::kFloat32, Format::kBfloat16, Format::kFloat16}) {
          CheckSums(rank, *group, *stream, format, count);
          bytes += BytesOfSums(format, count, rank.size);
          EXPECT_EQ(group->sent_bytes(), bytes);
        }
      }
    });
  }
}

// Parts of all sizes, some of none, some longer than a piece of the emulated library's.
TEST_F(NcclCommunicatorTest, PartsGoFromAllToAll) {
  const auto length = [](int from, int to) { return (from * 7 + to * 5) % 3 * 30'011; };
  const auto byte = [](int from, int to) { return static_cast<std::byte>(16 * from + to + 1); };
  for (const int size : {2, 3, 4}) {
    OnRanks(size, [&](const Rank& rank) {
      const auto group = rank.World();
      const auto stream = rank.MakeStream();
      std::vector<std::unique_ptr<device::DeviceMemory>> memory;
      std::vector<Part> send;
      std::vector<MutablePart> receive;
      int64_t bytes = 0;
      for (int r = 0; r < rank.size; ++r) {
        const int64_t out = length(rank.rank, r);
        const int64_t in = length(r, rank.rank);
        memory.push_back(rank.Memory(out + 1));
        send.push_back({memory.back()->data(), out});
        const std::vector<std::byte> values(static_cast<size_t>(out), byte(rank.rank, r));
        if (out > 0) stream->CopyFromHost(memory.back()->data(), values.data(), out);
        memory.push_back(rank.Memory(in + 1));
        receive.push_back({memory.back()->data(), in});
        if (r != rank.rank) bytes += out;
      }
      // Twice: the second one's parts take the place of the first one's.
      group->AllToAll(*stream, send, receive);
      group->AllToAll(*stream, send, receive);
      EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
      EXPECT_EQ(group->sent_bytes(), 2 * bytes);
      for (int r = 0; r < rank.size; ++r) {
        const MutablePart& part = receive[static_cast<size_t>(r)];
        if (r == rank.rank || part.bytes == 0) continue;
        EXPECT_EQ(
            Back(*stream, static_cast<std::byte*>(part.data), static_cast<size_t>(part.bytes)),
            std::vector<std::byte>(static_cast<size_t>(part.bytes), byte(r, rank.rank)));
      }
    });
  }
}

// Rank r has 1000 r elements, the first one none: summed by the owners in the order of the tree,
// and back.
TEST_F(NcclCommunicatorTest, UnequalPartsAreSummedInOrder) {
  for (const int size : {2, 3, 4}) {
    OnRanks(size, [&](const Rank& rank) {
      const auto group = rank.World();
      const auto stream = rank.MakeStream();
      std::vector<int64_t> bounds = {0};
      for (int r = 0; r < size; ++r) bounds.push_back(bounds.back() + 1000 * r);
      const int64_t count = bounds.back();
      const auto number = [](int r, int64_t i) {
        return 0.1f * static_cast<float>(i + 1) / static_cast<float>(r + 3);
      };
      std::vector<float> values(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = number(rank.rank, i);
      const auto memory = rank.Memory(count * 4);
      const auto scratch = rank.Memory(plan::PartsScratch(1000 * (size - 1), size) * 4);
      stream->CopyFromHost(memory->data(), values.data(), count * 4);
      group->ReduceScatterParts(*stream, reinterpret_cast<float*>(memory->data()), bounds,
                                SumOrder::kTree, reinterpret_cast<float*>(scratch->data()));
      group->AllGatherParts(*stream, memory->data(), bounds, 4);
      stream->CopyToHost(values.data(), memory->data(), count * 4);
      EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
      for (int64_t i = 0; i < count; ++i) {
        std::vector<float> parts;
        for (int r = 0; r < size; ++r) parts.push_back(number(r, i));
        for (const plan::Addition& addition : plan::SumTreeOf(SumOrder::kTree, size)) {
          parts[static_cast<size_t>(addition.into)] += parts[static_cast<size_t>(addition.from)];
        }
        ASSERT_EQ(values[static_cast<size_t>(i)], parts.front()) << i;
      }
    });
  }
}

TEST_F(NcclCommunicatorTest, NumbersBroadcastsAndBarriers) {
  OnRanks(3, [](const Rank& rank) {
    const auto group = rank.World();
    const auto stream = rank.MakeStream();
    const auto memory = rank.Memory(100'000);
    const double third = rank.rank == 1 ? 1.0 / 3 : 0;
    stream->CopyFromHost(memory->data(), &third, 8);
    group->AllReduceSum(*stream, reinterpret_cast<double*>(memory->data()), 1);
    double sum = 0;
    stream->CopyToHost(&sum, memory->data(), 8);
    group->Barrier(*stream);
    EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
    EXPECT_EQ(sum, 1.0 / 3);
    std::vector<std::byte> bytes(100'000, static_cast<std::byte>(rank.rank));
    stream->CopyFromHost(memory->data(), bytes.data(), 100'000);
    group->Broadcast(*stream, memory->data(), 100'000, 2);
    EXPECT_EQ(Back(*stream, memory->data(), bytes.size()),
              std::vector<std::byte>(100'000, std::byte{2}));
    // Two sums of a double go around twice, less a third; the rank before the root passes nothing
    // on.
    EXPECT_EQ(group->sent_bytes(), 2 * (2 * 2 * 8 / 3) + (rank.rank == 1 ? 0 : 100'000));
  });
}

// Each of two neighbours has many messages under way in both directions, of both kinds.
TEST_F(NcclCommunicatorTest, ManyMessagesInBothDirections) {
  for (const int size : {2, 3}) {
    SCOPED_TRACE(size);
    OnRanks(size, [](const Rank& rank) {
      constexpr int kMessages = 20;
      constexpr int64_t kBytes = 70'000;
      const auto group = rank.Group(AllRanks(rank.size), NcclMessages::kNeighbours);
      const auto stream = rank.MakeStream();
      const int next = (rank.rank + 1) % rank.size;
      const int previous = (rank.rank + rank.size - 1) % rank.size;
      struct Kind {
        int to, from;
        uint32_t tag;
      };
      std::vector<std::unique_ptr<device::DeviceMemory>> buffers;
      std::vector<std::shared_ptr<Transfer>> transfers;
      std::vector<std::pair<std::byte*, std::byte>> expected;
      for (int i = 0; i < kMessages; ++i) {
        for (const Kind& kind :
             {Kind{next, previous, kActivationTag}, Kind{previous, next, kGradientTag}}) {
          const auto mark = [&](int from) {
            return static_cast<std::byte>(from * 64 + i * 2 + static_cast<int>(kind.tag));
          };
          buffers.push_back(rank.Memory(kBytes));
          std::byte* in = buffers.back()->data();
          transfers.push_back(group->Receive(*stream, in, kBytes, kind.from, kind.tag));
          expected.emplace_back(in, mark(kind.from));
          buffers.push_back(rank.Memory(kBytes));
          const std::vector<std::byte> bytes(kBytes, mark(rank.rank));
          stream->CopyFromHost(buffers.back()->data(), bytes.data(), kBytes);
          transfers.push_back(
              group->Send(*stream, buffers.back()->data(), kBytes, kind.to, kind.tag));
        }
      }
      for (const auto& transfer : transfers) group->Wait(*stream, transfer);
      for (const auto& [data, mark] : expected) {
        EXPECT_EQ(Back(*stream, data, kBytes), std::vector<std::byte>(kBytes, mark));
      }
      // Later ones are waited for one by one.
      auto received = group->Receive(*stream, buffers[0]->data(), 0, previous, kActivationTag);
      auto sent = group->Send(*stream, buffers[1]->data(), 0, next, kActivationTag);
      EXPECT_EQ(received->Wait(absl::Seconds(60)), absl::OkStatus());
      EXPECT_EQ(sent->Wait(absl::Seconds(60)), absl::OkStatus());
      EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
      EXPECT_EQ(group->sent_bytes(), 2 * kMessages * kBytes);
    });
  }
}

TEST_F(NcclCommunicatorTest, GroupsSplitFromOne) {
  OnRanks(4, [](const Rank& rank) {
    const int pair = rank.rank / 2 * 2;
    const auto rows = rank.Group({pair, pair + 1});
    const auto columns = rank.Group({rank.rank % 2, rank.rank % 2 + 2});
    const auto alone = rank.Group({rank.rank});
    EXPECT_EQ(rows->rank(), rank.rank % 2);
    EXPECT_EQ(columns->rank(), rank.rank / 2);
    EXPECT_EQ(alone->size(), 1);
    const auto stream = rank.MakeStream();
    const auto memory = rank.Memory(8);
    auto* number = reinterpret_cast<double*>(memory->data());
    double value = 1 << rank.rank;
    stream->CopyFromHost(number, &value, 8);
    rows->AllReduceSum(*stream, number, 1);
    stream->CopyToHost(&value, number, 8);
    ASSERT_EQ(stream->Synchronize(), absl::OkStatus());
    EXPECT_EQ(value, pair == 0 ? 3 : 12);
    columns->AllReduceSum(*stream, number, 1);
    alone->AllReduceSum(*stream, number, 1);
    stream->CopyToHost(&value, number, 8);
    ASSERT_EQ(stream->Synchronize(), absl::OkStatus());
    EXPECT_EQ(value, 15);
  });
}

// The communicators of all ranks when each has made its groups, as "NAME RANKSxCHANNELS: COUNT".
class Census {
 public:
  explicit Census(int ranks) : barrier_(ranks) {}
  // Called by each rank; the first count is valid for all.
  std::map<std::string, int> Take() {
    barrier_.arrive_and_wait();
    std::map<std::string, int> found;
    for (const emulation::NcclFacts& facts : emulation::NcclCommunicators()) {
      ++found[absl::StrCat(facts.name, " ", facts.ranks, "x", facts.channels)];
    }
    barrier_.arrive_and_wait();
    return found;
  }

 private:
  std::barrier<> barrier_;
};

TEST_F(NcclCommunicatorTest, GroupsOfTheSameRanksShareOne) {
  Census census(4);
  OnRanks(4, [&](const Rank& rank) {
    const auto world = rank.World();
    const auto data = rank.World();
    const auto alone = rank.Group({rank.rank});
    EXPECT_EQ(census.Take(), (std::map<std::string, int>{{"world 4x0", 4}}));
    // Both groups have calls under way at the same time, in different streams.
    const auto compute = rank.MakeStream();
    const auto communication = rank.MakeStream();
    const auto memory = rank.Memory(16);
    auto* numbers = reinterpret_cast<double*>(memory->data());
    const double begin[] = {1, 10};
    compute->CopyFromHost(numbers, begin, 16);
    ASSERT_EQ(compute->Synchronize(), absl::OkStatus());
    for (int i = 0; i < 3; ++i) {
      data->AllReduceSum(*communication, numbers + 1, 1);
      world->AllReduceSum(*compute, numbers, 1);
    }
    compute->Join(*communication);
    double sums[2] = {};
    compute->CopyToHost(sums, numbers, 16);
    ASSERT_EQ(compute->Synchronize(), absl::OkStatus());
    EXPECT_EQ(sums[0], 64);
    EXPECT_EQ(sums[1], 640);
  });
}

// As many as plans leave memory for (plan/gpu_reserve_test.cc), with as many channels.
TEST_F(NcclCommunicatorTest, OnlyEdgesThatAreUsedHaveACommunicator) {
  using Found = std::map<std::string, int>;
  const Found all = {{"world 2x1", 2}, {"g 2x8", 12}};
  const Found tied = {{"world 2x1", 2}, {"g 2x8", 8}};
  const Found least = {{"world 2x1", 2}, {"g 2x8", 4}};
  for (const auto& [edges, expected] :
       {std::pair(PipelineEdges{true, true}, all), std::pair(PipelineEdges{false, true}, tied),
        std::pair(PipelineEdges{false, false}, least)}) {
    Census census(2);
    const NcclOptions options = {.world_channels = 1, .edge_channels = 8, .edges = edges};
    OnRanks(
        2,
        [&, &wanted = expected](const Rank& rank) {
          const auto group = rank.Group(AllRanks(2), NcclMessages::kNeighbours);
          EXPECT_EQ(census.Take(), wanted);
        },
        options);
  }
}

TEST_F(NcclCommunicatorTest, PipelinesOfSomeRanksHaveEdgesOnly) {
  Census census(4);
  const NcclOptions options = {.edges = {.closes_ring = false, .is_tied = false}};
  OnRanks(
      4,
      [&](const Rank& rank) {
        const int first = rank.rank % 2;
        const auto pipeline = rank.Group({first, first + 2}, NcclMessages::kNeighbours);
        EXPECT_EQ(census.Take(), (std::map<std::string, int>{{"world 4x0", 4}, {"g 2x0", 8}}));
        const auto stream = rank.MakeStream();
        const auto memory = rank.Memory(8);
        double value = 1 << rank.rank;
        stream->CopyFromHost(memory->data(), &value, 8);
        const bool sends = rank.rank < 2;
        const auto message = sends
                                 ? pipeline->Send(*stream, memory->data(), 8, 1, kActivationTag)
                                 : pipeline->Receive(*stream, memory->data(), 8, 0, kActivationTag);
        pipeline->Wait(*stream, message);
        stream->CopyToHost(&value, memory->data(), 8);
        ASSERT_EQ(stream->Synchronize(), absl::OkStatus());
        EXPECT_EQ(value, 1 << first);
      },
      options);
}

// NCCL allocates at the first call, when the arena has taken what the plan counts on.
TEST_F(NcclCommunicatorTest, TooLittleMemoryForBuffersNamesTheReserve) {
  emulation::Settings settings;
  settings.devices = 2;
  settings.memory_bytes = size_t{64} << 20;
  emulation::Configure(settings);
  emulation::SetNcclBufferBytes(size_t{48} << 20);
  const NcclOptions options = {.reserve_bytes = int64_t{2304} << 20};
  OnRanks(
      2,
      [](const Rank& rank) {
        const auto group = rank.World();
        const auto arena = rank.Memory(int64_t{32} << 20);
        const auto stream = rank.MakeStream();
        group->Barrier(*stream);
        const absl::Status status = stream->Synchronize();
        EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
        EXPECT_THAT(
            std::string(status.message()),
            AllOf(HasSubstr("Failed to CUDA calloc 50331648 bytes"),
                  HasSubstr("that the plan leaves free (2304 MiB)"),
                  HasSubstr("lower training.micro_batch"), HasSubstr("NCCL_NVLS_ENABLE=0")));
      },
      options);
}

TEST_F(NcclCommunicatorTest, DifferentCallsAreNamedOnAllRanks) {
  OnRanks(3, [](const Rank& rank) {
    const auto group = rank.World();
    const auto stream = rank.MakeStream();
    const auto memory = rank.Memory(64);
    group->Barrier(*stream);
    if (rank.rank == 1) {
      group->Broadcast(*stream, memory->data(), 12, 0);
    } else {
      group->AllReduceSum(*stream, reinterpret_cast<double*>(memory->data()), 3);
    }
    const std::string said(stream->Synchronize().message());
    EXPECT_THAT(said, AllOf(HasSubstr("rank 1 at broadcast #1 of u8 x 12 from rank 0"),
                            HasSubstr("at all-reduce #1 of f64 x 3")));
  });
}

// What is said is why, and not that the communicator was aborted for it.
TEST_F(NcclCommunicatorTest, ACallThatIsRefusedIsNamed) {
  OnRanks(2, [](const Rank& rank) {
    const auto group = rank.World();
    const auto stream = rank.MakeStream();
    const auto memory = rank.Memory(8);
    group->Barrier(*stream);
    double on_the_host = 0;
    group->AllReduceSum(*stream, &on_the_host, 1);
    group->Broadcast(*stream, memory->data(), 8, 0);
    const std::string said(stream->Synchronize().message());
    EXPECT_THAT(said, AllOf(HasSubstr("group g, rank " + std::to_string(rank.rank) + " of 2"),
                            HasSubstr("all-reduce #1 of f64 x 1: "),
                            HasSubstr("a buffer does not lie on the communicator's device")));
  });
}

TEST_F(NcclCommunicatorTest, TheTimeoutNamesTheCallAndEndsTheStream) {
  std::atomic<bool> ended = false;
  OnRanks(2, [&](const Rank& rank) {
    progress::Whereabouts whereabouts(nullptr);
    whereabouts.BeginStep(1);
    const auto memory = rank.Memory(64);
    auto made = rank.groups.Group(NcclMessages::kNeighbours,
                                  {"pipe", absl::Milliseconds(300), AllRanks(2), &whereabouts});
    ASSERT_TRUE(made.ok()) << made.status();
    const std::unique_ptr<Communicator> group = *std::move(made);
    if (rank.rank == 1) {
      while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    {
      const auto stream = rank.MakeStream();
      // Begun early: it is not what the stream hangs on first.
      const auto early = group->Receive(*stream, memory->data(), 8, 1, kGradientTag);
      group->AllReduceSum(*stream, reinterpret_cast<double*>(memory->data() + 8), 5);
      group->Wait(*stream, early);
      const absl::Status status = stream->Synchronize();
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("group pipe, rank 0 of 2, all-reduce #0 of f64 x 5"),
                        HasSubstr("300ms")));
      EXPECT_GT(whereabouts.engine_wait_seconds(), 0.25);
      // Later calls fail at once.
      group->Barrier(*stream);
      EXPECT_EQ(stream->Synchronize(), status);
    }
    const auto stream = rank.MakeStream();
    group->Barrier(*stream);
    EXPECT_TRUE(absl::IsAborted(stream->Synchronize()));
    ended = true;
  });
}

TEST_F(NcclCommunicatorTest, AMessageThatDoesNotComeIsNamed) {
  std::atomic<bool> ended = false;
  OnRanks(2, [&](const Rank& rank) {
    const auto memory = rank.Memory(64);
    const auto group = rank.Group(AllRanks(2), NcclMessages::kNeighbours, absl::Milliseconds(300));
    if (rank.rank == 1) {
      while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const auto stream = rank.MakeStream();
    group->Wait(*stream, group->Receive(*stream, memory->data(), 8, 1, kGradientTag));
    EXPECT_THAT(std::string(stream->Synchronize().message()),
                AllOf(HasSubstr("pipeline receive #0 of bytes x 8 with rank 1 of the job")));
    ended = true;
  });
}

TEST_F(NcclCommunicatorTest, AbortFromAnotherThreadEndsAWait) {
  std::atomic<bool> ended = false;
  OnRanks(2, [&](const Rank& rank) {
    const auto group = rank.World();
    if (rank.rank == 1) {
      while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const auto stream = rank.MakeStream();
    group->Barrier(*stream);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      group->Abort();
    });
    const absl::Status status = stream->Synchronize();
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    other.join();
    ended = true;
  });
}

// A full stream blocks the call itself.
TEST_F(NcclCommunicatorTest, AbortEndsACallThatCannotBeEnqueued) {
  std::atomic<bool> ended = false;
  OnRanks(2, [&](const Rank& rank) {
    const auto group = rank.World();
    if (rank.rank == 1) {
      while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const auto stream = rank.MakeStream();
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      group->Abort();
    });
    for (int i = 0; i < 300; ++i) group->Barrier(*stream);
    EXPECT_TRUE(absl::IsAborted(stream->Synchronize()));
    other.join();
    ended = true;
  });
}

TEST_F(NcclCommunicatorTest, DestroyedWithWorkLeft) {
  std::atomic<bool> ended = false;
  OnRanks(2, [&](const Rank& rank) {
    const auto stream = rank.MakeStream();
    const auto memory = rank.Memory(64);
    auto group = rank.Group(AllRanks(2), NcclMessages::kNeighbours);
    if (rank.rank == 1) {
      while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    group->Receive(*stream, memory->data(), 8, 1, kActivationTag);
    group->Barrier(*stream);
    group.reset();
    EXPECT_EQ(stream->Synchronize(), absl::OkStatus());
    ended = true;
  });
}

TEST_F(NcclCommunicatorTest, RanksThatShareADeviceOrDoNotCome) {
  MemoryRendezvous store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto device = device::CreateCudaDevice(0);
      const auto groups = NcclGroups::Join(rank, 2, **device, store, absl::Seconds(60));
      EXPECT_THAT(std::string(groups.status().message()), HasSubstr("Duplicate GPU"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  auto device = device::CreateCudaDevice(0);
  const auto groups = NcclGroups::Join(0, 2, **device, store, absl::Milliseconds(100));
  EXPECT_TRUE(absl::IsDeadlineExceeded(groups.status())) << groups.status();
}

}  // namespace
}  // namespace tercio::collective
