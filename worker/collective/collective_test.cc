// Both transports, and the collectives on top of them.
#include <algorithm>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/reduction_scratch.h"
#include "worker/collective/communicator.h"
#include "worker/collective/gloo_transport.h"
#include "worker/collective/memory_rendezvous.h"
#include "worker/collective/thread_transport.h"
#include "worker/device/cpu_device.h"

namespace tercio::collective {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

enum class Kind { kThreads, kGloo };

class CollectiveTest : public ::testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  // As trainers do: a peer that gives up must not end this process.
  static void SetUpTestSuite() { std::signal(SIGPIPE, SIG_IGN); }

  // Runs body(communicator, stream) in one thread per rank.
  void OnRanks(absl::Duration timeout,
               const std::function<void(Communicator&, device::Stream&)>& body) {
    const auto [kind, size] = GetParam();
    MemoryRendezvous store;
    auto transports = CreateThreadTransports(size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank, k = kind, n = size] {
        std::unique_ptr<Transport> transport = std::move(transports[static_cast<size_t>(rank)]);
        if (k == Kind::kGloo) {
          auto made = CreateGlooTransport(rank, n, "g", store, "127.0.0.1", absl::Seconds(20));
          ASSERT_TRUE(made.ok()) << made.status();
          transport = *std::move(made);
        }
        auto device = device::CreateCpuDevice(1);
        auto stream = *device->CreateStream(device::Device::StreamKind::kCompute);
        auto communicator = CreateCommunicator({"g", timeout}, std::move(transport));
        body(*communicator, *stream);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  int size() const { return std::get<1>(GetParam()); }
};

TEST_P(CollectiveTest, SumsInTheirOrder) {
  for (const int64_t count : {1, 15, 16, 17, 1000}) {
    for (const SumOrder order : {SumOrder::kRanks, SumOrder::kTree}) {
      OnRanks(absl::Seconds(20), [&](Communicator& group, device::Stream& stream) {
        // 1e8 + 1 - 1e8 tells orders apart.
        const auto value = [&](int r, int64_t i) {
          return r % 2 == 0 ? 1e8f * static_cast<float>(r + 1) : static_cast<float>(i) + 1.0f;
        };
        std::vector<float> data(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) data[static_cast<size_t>(i)] = value(group.rank(), i);
        std::vector<float> scratch(static_cast<size_t>(group.ScratchElements(count)));
        group.AllReduceSum(stream, data.data(), count, order, scratch.data());
        ASSERT_TRUE(stream.Synchronize().ok()) << stream.Synchronize();
        const std::function<float(int, int, int64_t)> tree = [&](int begin, int end, int64_t i) {
          if (end - begin == 1) return value(begin, i);
          const int middle = begin + (end - begin + 1) / 2;
          return tree(begin, middle, i) + tree(middle, end, i);
        };
        for (int64_t i = 0; i < count; ++i) {
          float expected = value(0, i);
          for (int r = 1; r < group.size(); ++r) expected += value(r, i);
          if (order == SumOrder::kTree) expected = tree(0, group.size(), i);
          ASSERT_EQ(data[static_cast<size_t>(i)], expected) << i;
        }
      });
    }
  }
}

// Parts of all sizes, also of none: what rank r has for rank q is 100 r + q, so many times.
TEST_P(CollectiveTest, PartsGoFromAllToAll) {
  const auto length = [](int from, int to) { return static_cast<size_t>(5 * from + 3 * to) % 11; };
  const auto value = [](int from, int to) { return static_cast<float>(100 * from + to); };
  OnRanks(absl::Seconds(20), [&](Communicator& group, device::Stream& stream) {
    std::vector<std::vector<float>> sent;
    std::vector<std::vector<float>> received;
    for (int r = 0; r < group.size(); ++r) {
      sent.emplace_back(length(group.rank(), r), value(group.rank(), r));
      received.emplace_back(length(r, group.rank()), -1.0f);
    }
    const int64_t before = group.sent_bytes();
    int64_t bytes = 0;
    {
      // The lists may go once the call has been made.
      std::vector<Part> send;
      std::vector<MutablePart> receive;
      for (int r = 0; r < group.size(); ++r) {
        std::vector<float>& out = sent[static_cast<size_t>(r)];
        std::vector<float>& in = received[static_cast<size_t>(r)];
        send.push_back({out.data(), static_cast<int64_t>(4 * out.size())});
        receive.push_back({in.data(), static_cast<int64_t>(4 * in.size())});
        if (r != group.rank()) bytes += send.back().bytes;
      }
      group.AllToAll(stream, send, receive);
    }
    ASSERT_TRUE(stream.Synchronize().ok()) << stream.Synchronize();
    EXPECT_EQ(group.sent_bytes() - before, bytes);
    for (int r = 0; r < group.size(); ++r) {
      // A rank's own part stays where it is.
      const float expected = r == group.rank() ? -1.0f : value(r, group.rank());
      EXPECT_THAT(received[static_cast<size_t>(r)], ::testing::Each(expected));
    }
  });
}

// Rank r has r * r elements, the first one none.
std::vector<int64_t> UnequalParts(int ranks) {
  std::vector<int64_t> bounds = {0};
  for (int r = 0; r < ranks; ++r) bounds.push_back(bounds.back() + r * r);
  return bounds;
}

TEST_P(CollectiveTest, UnequalPartsHaveTheBitsOfTheWholeSum) {
  OnRanks(absl::Seconds(20), [&](Communicator& group, device::Stream& stream) {
    const std::vector<int64_t> bounds = UnequalParts(group.size());
    const int64_t count = bounds.back();
    std::vector<float> whole(static_cast<size_t>(count));
    for (size_t i = 0; i < whole.size(); ++i) {
      whole[i] = 0.1f * static_cast<float>(i + 1) / static_cast<float>(group.rank() + 3);
    }
    std::vector<float> parts = whole;
    const std::vector<float> before = whole;
    std::vector<float> scratch(static_cast<size_t>(
        std::max(group.ScratchElements(count),
                 plan::PartsScratch(int64_t{group.size()} * group.size(), group.size()))));
    group.AllReduceSum(stream, whole.data(), count, SumOrder::kTree, scratch.data());
    const int64_t sent = group.sent_bytes();
    group.ReduceScatterParts(stream, parts.data(), bounds, SumOrder::kTree, scratch.data());
    ASSERT_TRUE(stream.Synchronize().ok()) << stream.Synchronize();
    const int64_t begin = bounds[static_cast<size_t>(group.rank())];
    const int64_t end = bounds[static_cast<size_t>(group.rank()) + 1];
    EXPECT_EQ(group.sent_bytes() - sent, 4 * (count - (end - begin)));
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      EXPECT_EQ(parts[at], begin <= i && i < end ? whole[at] : before[at]) << i;
    }
    group.AllGatherParts(stream, reinterpret_cast<std::byte*>(parts.data()), bounds, 4);
    ASSERT_TRUE(stream.Synchronize().ok()) << stream.Synchronize();
    EXPECT_EQ(parts, whole);
    EXPECT_EQ(group.sent_bytes() - sent,
              4 * (count - (end - begin) + (end - begin) * (group.size() - 1)));
  });
}

TEST_P(CollectiveTest, GathersBroadcastsAndSumsDoubles) {
  OnRanks(absl::Seconds(20), [&](Communicator& group, device::Stream& stream) {
    const std::vector<float> mine = {static_cast<float>(group.rank()), 7};
    std::vector<float> all(static_cast<size_t>(2 * group.size()));
    group.AllGather(stream, mine.data(), all.data(), 2);
    std::vector<double> sums(static_cast<size_t>(group.size()));
    sums[static_cast<size_t>(group.rank())] = 0.1 * group.rank();
    group.AllReduceSum(stream, sums.data(), group.size());
    int32_t word = group.rank() == 1 ? 42 : 0;
    group.Broadcast(stream, &word, sizeof(word), group.size() - 1 == 0 ? 0 : 1);
    group.Barrier(stream);
    ASSERT_TRUE(stream.Synchronize().ok()) << stream.Synchronize();
    for (int r = 0; r < group.size(); ++r) {
      EXPECT_EQ(all[static_cast<size_t>(2 * r)], static_cast<float>(r));
      EXPECT_EQ(sums[static_cast<size_t>(r)], 0.1 * r);
    }
    EXPECT_EQ(word, 42);
  });
}

// The formulas of communicator.h, call by call.
TEST_P(CollectiveTest, CountsTheBytesThatItSends) {
  OnRanks(absl::Seconds(20), [&](Communicator& group, device::Stream& stream) {
    const int64_t others = group.size() - 1;
    const bool first = group.rank() == 0;
    int64_t before = 0;
    const auto sent = [&] {
      EXPECT_TRUE(stream.Synchronize().ok()) << stream.Synchronize();
      return group.sent_bytes() - std::exchange(before, group.sent_bytes());
    };
    EXPECT_EQ(sent(), 0);
    for (const int64_t count : {1, 16, 100, 1000}) {
      std::vector<float> data(static_cast<size_t>(count));
      std::vector<float> scratch(static_cast<size_t>(group.ScratchElements(count)));
      group.AllReduceSum(stream, data.data(), count, SumOrder::kTree, scratch.data());
      // Slices are multiples of 16, so that the last ranks may own less, or nothing.
      const int64_t slice = plan::AllReduceSlice(count, group.size());
      const int64_t mine = std::clamp<int64_t>(count - group.rank() * slice, 0, slice);
      EXPECT_EQ(sent(), others == 0 ? 0 : 4 * (count - mine + others * mine)) << count;
    }
    std::vector<float> in(static_cast<size_t>(group.size()) * 50);
    std::vector<float> out(in.size());
    std::vector<float> scratch(in.size());
    group.ReduceScatterSum(stream, in.data(), out.data(), 50, scratch.data());
    EXPECT_EQ(sent(), others * 50 * 4);
    group.AllGather(stream, in.data(), out.data(), 50);
    EXPECT_EQ(sent(), others * 50 * 4);
    std::vector<double> numbers(10);
    group.AllReduceSum(stream, numbers.data(), 10);
    EXPECT_EQ(sent(), (first ? others : 1) * 80 * (others > 0 ? 1 : 0));
    group.Barrier(stream);
    EXPECT_EQ(sent(), (first ? others : 1) * 8 * (others > 0 ? 1 : 0));
    group.Broadcast(stream, in.data(), 40, 0);
    EXPECT_EQ(sent(), first ? others * 40 : 0);
    if (group.rank() < 2 && others > 0) {
      const auto message = first ? group.Send(stream, in.data(), 72, 1, 5)
                                 : group.Receive(stream, out.data(), 72, 0, 5);
      group.Wait(stream, message);
      EXPECT_EQ(sent(), first ? 72 : 0);
    }
    // Sockets close only when all have received everything.
    group.Barrier(stream);
    EXPECT_TRUE(stream.Synchronize().ok());
  });
}

TEST_P(CollectiveTest, ARankThatNeverComesIsNamed) {
  OnRanks(absl::Milliseconds(200), [&](Communicator& group, device::Stream& stream) {
    if (group.rank() == 1) {  // absent, but alive until the others have given up
      absl::SleepFor(absl::Milliseconds(600));
      return;
    }
    double value = 1;
    group.AllReduceSum(stream, &value, 1);
    const absl::Status status = stream.Synchronize();
    EXPECT_FALSE(status.ok());
    if (group.rank() == 0) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("group g, rank 0"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("from rank 1"));
    }
  });
}

TEST_P(CollectiveTest, WaitsSayWhatTheyAreFor) {
  OnRanks(absl::Milliseconds(200), [&](Communicator& group, device::Stream& stream) {
    if (group.rank() == 1) {
      absl::SleepFor(absl::Milliseconds(600));
      return;
    }
    std::vector<int64_t> bounds;
    for (int r = 0; r <= group.size(); ++r) bounds.push_back(16 * r);
    std::vector<float> data(static_cast<size_t>(bounds.back()));
    std::vector<float> scratch(data.size());
    group.SetPurpose({"sum", "layers.7", 2});
    group.ReduceScatterParts(stream, data.data(), bounds, SumOrder::kTree, scratch.data());
    const absl::Status status = stream.Synchronize();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("sum of layers.7, round 2 #0 of f32"));
  });
  EXPECT_EQ((CallPurpose{"gather", "layers.7"}.Text("all-to-all")), "gather of layers.7");
  EXPECT_EQ(CallPurpose{}.Text("all-to-all"), "all-to-all");
}

TEST_P(CollectiveTest, AbortWakesWaiters) {
  OnRanks(absl::Seconds(60), [&](Communicator& group, device::Stream& stream) {
    if (group.rank() == 1) {
      absl::SleepFor(absl::Milliseconds(300));
      return;
    }
    std::thread aborter([&group] {
      absl::SleepFor(absl::Milliseconds(100));
      group.Abort();
    });
    double value = 1;
    group.AllReduceSum(stream, &value, 1);
    EXPECT_FALSE(stream.Synchronize().ok());
    aborter.join();
  });
}

// What every rank says when rank 1 makes another call than the rest. At least rank 1 or rank 0
// names both calls, and nobody waits for the timeout.
class MismatchTest : public CollectiveTest {
 protected:
  using Call = std::function<void(Communicator&, device::Stream&)>;
  void Expect(const Call& usual, const Call& other, const std::string& usual_name,
              const std::string& other_name) {
    const auto names_both = AllOf(HasSubstr("rank 1: " + other_name + " in group g"),
                                  HasSubstr("rank 0: " + usual_name + " in group g"));
    std::mutex mutex;
    std::vector<std::string> errors;
    absl::Duration named_after = absl::InfiniteDuration();
    const absl::Time start = absl::Now();
    // Others than 0 and 1 may wait until the end for what was on its way to a rank that is gone.
    OnRanks(absl::Seconds(10), [&](Communicator& group, device::Stream& stream) {
      group.Barrier(stream);
      (group.rank() == 1 ? other : usual)(group, stream);
      const absl::Status status = stream.Synchronize();
      if (!status.ok()) group.Abort();  // the others may wait for this rank
      std::lock_guard<std::mutex> lock(mutex);
      errors.emplace_back(status.message());
      if (::testing::Matches(names_both)(errors.back())) {
        named_after = std::min(named_after, absl::Now() - start);
      }
    });
    EXPECT_LT(named_after, absl::Seconds(9)) << ::testing::PrintToString(errors);
  }

  static Call AllReduce(int64_t count) {
    return [count](Communicator& group, device::Stream& stream) {
      std::vector<float> data(static_cast<size_t>(count));
      std::vector<float> scratch(static_cast<size_t>(group.ScratchElements(count)));
      group.AllReduceSum(stream, data.data(), count, SumOrder::kRanks, scratch.data());
      stream.Synchronize().IgnoreError();
    };
  }
  static Call AllGather(int64_t count) {
    return [count](Communicator& group, device::Stream& stream) {
      std::vector<float> in(static_cast<size_t>(count));
      std::vector<float> out(static_cast<size_t>(count * group.size()));
      group.AllGather(stream, in.data(), out.data(), count);
      stream.Synchronize().IgnoreError();
    };
  }
};

TEST_P(MismatchTest, OfOperation) {
  Expect(AllReduce(100), AllGather(100), "all-reduce #1 of f32 x 100",
         "all-gather #1 of f32 x 100");
  Expect(
      [](Communicator& group, device::Stream& stream) {
        char byte = 0;
        group.Broadcast(stream, &byte, 1, 0);
      },
      [](Communicator& group, device::Stream& stream) {
        double value = 0;
        group.AllReduceSum(stream, &value, 1);
        stream.Synchronize().IgnoreError();
      },
      "broadcast from 0 #1 of bytes x 1", "all-reduce #1 of f64 x 1");
}

TEST_P(MismatchTest, OfCount) {
  Expect(AllReduce(100), AllReduce(99), "all-reduce #1 of f32 x 100", "all-reduce #1 of f32 x 99");
  Expect(AllGather(1), AllGather(100000), "all-gather #1 of f32 x 1",
         "all-gather #1 of f32 x 100000");
}

TEST_P(MismatchTest, OfType) {
  Expect(
      AllReduce(8),
      [](Communicator& group, device::Stream& stream) {
        double values[8] = {};
        group.AllReduceSum(stream, values, 8);
        stream.Synchronize().IgnoreError();
      },
      "all-reduce #1 of f32 x 8", "all-reduce #1 of f64 x 8");
}

TEST_P(MismatchTest, OfOrder) {
  Expect(
      [](Communicator& group, device::Stream& stream) {
        AllReduce(10)(group, stream);
        AllGather(10)(group, stream);
      },
      [](Communicator& group, device::Stream& stream) {
        AllGather(10)(group, stream);
        AllReduce(10)(group, stream);
      },
      "all-reduce #1 of f32 x 10", "all-gather #1 of f32 x 10");
  Expect(
      AllReduce(10),  // rank 1 leaves one out
      [](Communicator& group, device::Stream& stream) { group.Barrier(stream); },
      "all-reduce #1 of f32 x 10", "barrier #1 of f64 x 1");
}

TEST_P(MismatchTest, OfMessages) {
  OnRanks(absl::Seconds(60), [&](Communicator& group, device::Stream& stream) {
    group.Barrier(stream);
    ASSERT_TRUE(stream.Synchronize().ok());
    std::vector<char> bytes(100);
    if (group.rank() == 0) {
      group.Wait(stream, group.Send(stream, bytes.data(), 100, 1, 7));
      // Until the receiver, which knows both sides, has given up.
      EXPECT_FALSE(stream.Synchronize().ok());
    } else if (group.rank() == 1) {
      group.Wait(stream, group.Receive(stream, bytes.data(), 40, 0, 7));
      const absl::Status status = stream.Synchronize();
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("rank 1: message of tag 7 #0 of bytes x 40 in group g"),
                        HasSubstr("rank 0: message of tag 7 #0 of bytes x 100 in group g")));
    }
  });
}

// The stream had failed before the message was waited for: its end must not wait for the peer.
TEST_P(MismatchTest, AMessageThatNobodyWaitsForEnds) {
  OnRanks(absl::Seconds(60), [&](Communicator& group, device::Stream& stream) {
    group.Barrier(stream);
    const absl::Status met = stream.Synchronize();
    if (group.rank() != 1) return;  // rank 1 may have ended the group before they knew
    ASSERT_TRUE(met.ok()) << met;
    std::vector<char> bytes(100);
    auto message = group.Receive(stream, bytes.data(), 100, 0, 7);
    stream.RunOnHost([] { return absl::InternalError("a fault"); });
    group.Wait(stream, std::move(message));
    EXPECT_EQ(stream.Synchronize().message(), "a fault");
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, MismatchTest,
                         ::testing::Combine(::testing::Values(Kind::kThreads, Kind::kGloo),
                                            ::testing::Values(2, 3, 4)));

TEST(CallIdentityTest, SaysWhereTheCallIs) {
  progress::Whereabouts whereabouts(nullptr);
  whereabouts.BeginStep(7);
  whereabouts.BeginAction("forward", 2);
  auto transports = CreateThreadTransports(2);
  const auto rank5 = CreateCommunicator({"tensor.1", absl::Seconds(20), {4, 5}, &whereabouts},
                                        std::move(transports[1]));
  const auto rank4 =
      CreateCommunicator({"tensor.1", absl::Seconds(20), {4, 5}}, std::move(transports[0]));
  std::thread peer([&] {
    const auto device = device::CreateCpuDevice(1);
    const auto stream = *device->CreateStream(device::Device::StreamKind::kCompute);
    double value = 0;
    rank5->AllReduceSum(*stream, &value, 1);
    EXPECT_FALSE(stream->Synchronize().ok());
  });
  const auto device = device::CreateCpuDevice(1);
  const auto stream = *device->CreateStream(device::Device::StreamKind::kCompute);
  rank4->Barrier(*stream);
  peer.join();
  EXPECT_THAT(std::string(stream->Synchronize().message()),
              AllOf(HasSubstr("rank 4: barrier #0"),
                    HasSubstr("rank 5: all-reduce #0 of f64 x 1 in group tensor.1 at step 7, "
                              "forward 2")));
}

INSTANTIATE_TEST_SUITE_P(Transports, CollectiveTest,
                         ::testing::Combine(::testing::Values(Kind::kThreads, Kind::kGloo),
                                            ::testing::Values(2, 3, 4)));

}  // namespace
}  // namespace tercio::collective

// Debian's Gloo is not built for ThreadSanitizer, which therefore does not see that a buffer's
// destructor waits for the event loop to let go of it.
extern "C" const char* __tsan_default_suppressions() { return "race:gloo::transport::tcp\n"; }
