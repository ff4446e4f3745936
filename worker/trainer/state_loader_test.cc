// Data-parallel groups as threads that load from a source of the test's own.
#include "worker/trainer/state_loader.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/collective/thread_transport.h"
#include "worker/device/cpu_device.h"
#include "worker/trainer/testing/fake_engine.h"

namespace tercio::trainer {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Value i of every tensor is i.
class Source : public StateSource {
 public:
  bool Wants(const v1::TensorSlice& slice) const override { return slice.tensor() != "unwanted"; }
  bool MayLack(const v1::TensorSlice& slice) const override { return slice.tensor() == "optional"; }
  absl::Status Read(const v1::TensorSlice& slice, absl::Span<float> values, const Arrived& arrived,
                    Check* check) override {
    if (slice.tensor() == lacks) return absl::NotFoundError("no tensor " + lacks);
    if (slice.tensor() == bad) return absl::DataLossError("a flipped bit in " + bad);
    *check = [this, tensor = slice.tensor(), values, first = slice.row_begin()] {
      if (values.front() != static_cast<float>(first)) return absl::InternalError("moved away");
      return tensor == unverified ? absl::DataLossError("a digest differs in " + tensor)
                                  : absl::OkStatus();
    };
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(slice.row_begin()) + static_cast<float>(i);
    }
    *read += static_cast<int64_t>(values.size() * sizeof(float));
    arrived(static_cast<int64_t>(values.size() * sizeof(float)));
    return absl::OkStatus();
  }

  int64_t bytes_read() const override { return *read; }

  std::atomic<int64_t>* read = nullptr;  // by all ranks
  std::string lacks;
  std::string bad;
  std::string unverified;  // found only by the check
};

struct Loaded {
  std::vector<absl::Status> statuses;  // by rank
  std::vector<FakeEngine> engines;
  std::vector<int64_t> own;  // bytes of each rank's share, as it told them last
  int64_t read = 0;
};

const std::vector<v1::TensorSlice>& Slices() {
  // 12.6 million values, of which one tensor has most.
  static const std::vector<v1::TensorSlice> slices = {
      Rows("unwanted", 0, 9), Rows("bias", 0, 100),     Rows("large", 0, 11'000'000),
      Rows("b", 7, 900'000),  Rows("optional", 0, 200), Rows("c", 0, 700'000)};
  return slices;
}

std::shared_ptr<float> PlaceOf(const v1::TensorSlice& slice) {
  const auto values =
      std::make_shared<std::vector<float>>(slice.row_end() - slice.row_begin(), -1.0F);
  return {values, values->data()};
}

// With `divided` each rank needs its own rows of "large" only, and `bad` is so for the last rank.
Loaded LoadOn(int ranks, const std::string& lacks = "", const std::string& bad = "",
              const std::string& unverified = "", bool in_place = false, bool divided = false) {
  Loaded all;
  const auto size = static_cast<size_t>(ranks);
  all.statuses.resize(size);
  all.engines.resize(size);
  all.own.resize(size);
  std::atomic<int64_t> read{0};
  auto transports = collective::CreateThreadTransports(ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto device = device::CreateCpuDevice(1);
      const auto stream = *device->CreateStream(device::Device::StreamKind::kCompute);
      const auto data =
          collective::CreateCommunicator({"data", absl::Seconds(60)}, std::move(transports[rank]));
      auto source = std::make_shared<Source>();
      source->read = &read;
      source->lacks = lacks;
      if (!divided || rank + 1 == size) source->bad = bad;
      source->unverified = unverified;
      all.engines[rank].slices = Slices();
      if (divided) {
        const auto begin = static_cast<int64_t>(1'000'000 * rank);
        all.engines[rank].slices = {Rows("large", begin, begin + 1'000'000)};
      }
      for (const v1::TensorSlice& slice : Slices()) {
        if (in_place) all.engines[rank].places.push_back(PlaceOf(slice));
      }
      all.statuses[rank] = LoadState(
          source, {*data, *device, *stream, divided},
          [&](int64_t bytes, int64_t) { all.own[rank] = bytes; }, all.engines[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  all.read = read;
  return all;
}

TEST(StateLoaderTest, NoByteIsReadTwiceInAGroup) {
  const Loaded one = LoadOn(1);
  const Loaded four = LoadOn(4);
  ASSERT_TRUE(one.statuses[0].ok()) << one.statuses[0];
  ASSERT_EQ(one.engines[0].loaded.size(), 5u);
  EXPECT_EQ(one.engines[0].loaded[0].first, 1) << "the first slice is not wanted";
  const std::vector<float>& b = one.engines[0].loaded[2].second;
  ASSERT_EQ(b.size(), 899'993u);
  EXPECT_EQ(b.front(), 7);
  EXPECT_EQ(b.back(), 899'999);
  for (size_t rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(four.statuses[rank].ok()) << four.statuses[rank];
    EXPECT_TRUE(four.engines[rank].loaded == one.engines[0].loaded) << "rank " << rank;
  }
  EXPECT_EQ(four.read, one.read);
  EXPECT_EQ(one.own[0], one.read);
  EXPECT_EQ(std::accumulate(four.own.begin(), four.own.end(), int64_t{0}), one.read);
}

TEST(StateLoaderTest, RanksThatDivideTheStateReadTheirOwn) {
  const Loaded three = LoadOn(3, "", "", "", false, /*divided=*/true);
  for (size_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(three.statuses[rank].ok()) << three.statuses[rank];
    ASSERT_EQ(three.engines[rank].loaded.size(), 1u);
    EXPECT_EQ(three.engines[rank].loaded[0].second.size(), 1'000'000u);
    EXPECT_EQ(three.engines[rank].loaded[0].second.back(), 1e6F * static_cast<float>(rank + 1) - 1);
    EXPECT_EQ(three.own[rank], 4'000'000);
  }
  // All end with what one of them has met.
  for (const absl::Status& status : LoadOn(3, "", "large", "", false, true).statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("a flipped bit in large"));
  }
}

TEST(StateLoaderTest, PiecesAreOrderedAndSpread) {
  const Source source;
  std::vector<int64_t> share(3);
  std::vector<int64_t> next(Slices().size());
  size_t slice = 0;
  for (const StatePiece& piece : PiecesOf(Slices(), source, 3)) {
    EXPECT_GE(piece.slice, slice);
    slice = piece.slice;
    EXPECT_EQ(piece.offset, next[slice]);
    next[slice] += piece.elements;
    share[static_cast<size_t>(piece.reader)] += piece.elements;
  }
  EXPECT_EQ(next[0], 0);
  EXPECT_EQ(next[2], 11'000'000);
  EXPECT_THAT(share, Each(::testing::Gt(0)));
}

// The block between two readers of a slice is read by both.
TEST(StateLoaderTest, LargeSlicesAreSharedAndCutRarely) {
  constexpr int64_t kRun = int64_t{16} << 20;  // elements
  const std::vector<v1::TensorSlice> slices = {Rows("a", 0, 900'000'000), Rows("b", 0, kRun),
                                               Rows("c", 0, 10'000'000)};
  const Source source;
  std::vector<int64_t> share(4);
  std::vector<int> cuts(slices.size());
  int reader = -1;
  size_t slice = 0;
  for (const StatePiece& piece : PiecesOf(slices, source, 4)) {
    if (piece.slice == slice && reader >= 0) cuts[slice] += piece.reader != reader ? 1 : 0;
    slice = piece.slice;
    reader = piece.reader;
    share[static_cast<size_t>(reader)] += piece.elements;
  }
  EXPECT_LE(cuts[0], 900'000'000 / kRun);
  EXPECT_EQ(cuts[1], 0);
  EXPECT_EQ(cuts[2], 0);
  const auto [least, most] = std::minmax_element(share.begin(), share.end());
  EXPECT_LE(*most - *least, kRun + (2 << 20));
}

TEST(StateLoaderTest, WhatTheSourceLacksIsLeftOutOnAllRanksOrEndsAll) {
  const Loaded optional = LoadOn(3, "optional");
  for (const FakeEngine& engine : optional.engines) EXPECT_EQ(engine.loaded.size(), 4u);
  EXPECT_THAT(optional.statuses, Each(absl::OkStatus()));
  const Loaded needed = LoadOn(3, "bias");
  for (const absl::Status& status : needed.statuses) EXPECT_TRUE(absl::IsNotFound(status));
}

TEST(StateLoaderTest, AReadThatFailsEndsTheGroupWithItsWords) {
  const Loaded all = LoadOn(3, "", "b");
  for (const absl::Status& status : all.statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("a flipped bit in b"));
  }
}

TEST(StateLoaderTest, WhatReadsLeaveUnverifiedIsVerifiedBeforeItIsUsed) {
  const Loaded all = LoadOn(3, "", "", "b");
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(all.statuses[rank].code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(all.statuses[rank].message()), HasSubstr("a digest differs in b"));
    EXPECT_EQ(all.engines[rank].loaded.size(), 2u) << "none of it was loaded";
  }
}

TEST(StateLoaderTest, ValuesAreReadStraightIntoTheirPlaces) {
  const Loaded copied = LoadOn(2);
  const Loaded in_place = LoadOn(2, "", "", "", true);
  const std::vector<StatePiece> pieces = PiecesOf(Slices(), Source(), 2);
  for (size_t rank = 0; rank < 2; ++rank) {
    const FakeEngine& engine = in_place.engines[rank];
    ASSERT_TRUE(in_place.statuses[rank].ok()) << in_place.statuses[rank];
    EXPECT_TRUE(engine.loaded == copied.engines[rank].loaded) << "rank " << rank;
    EXPECT_EQ(engine.loaded_in_place,
              std::count_if(pieces.begin(), pieces.end(), [rank](const StatePiece& piece) {
                return piece.reader == static_cast<int>(rank);
              }));
  }
  EXPECT_EQ(copied.engines[0].loaded_in_place, 0);
}

// As in the kernel, on a file system that hangs.
class HangingSource : public Source {
 public:
  // `begun`: the read that hangs has begun. It ends after `over`.
  HangingSource(absl::Notification* begun, absl::Notification* over)
      : begun_(*begun), over_(*over) {}
  absl::Status Read(const v1::TensorSlice& slice, absl::Span<float> values, const Arrived& arrived,
                    Check* check) override {
    if (slice.tensor() != "b") return Source::Read(slice, values, arrived, check);
    if (slice.row_begin() == 0) {
      // A failure before the other read would leave that one out.
      begun_.WaitForNotification();
      return absl::DataLossError("damaged");
    }
    begun_.Notify();
    over_.WaitForNotification();
    values.front() = 1;
    return absl::OkStatus();
  }

 private:
  absl::Notification& begun_;
  absl::Notification& over_;
};

// Rank 0 fails while rank 1 reads ahead what never comes.
TEST(StateLoaderTest, AReadThatHangsHoldsNobodyWhenAnotherRankFails) {
  static absl::Notification begun;
  static absl::Notification over;  // both outlive the thread that is left behind
  static std::atomic<int64_t> read{0};
  auto transports = collective::CreateThreadTransports(2);
  std::vector<absl::Status> statuses(2);
  std::weak_ptr<float> wanted;  // by the read that hangs
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto device = device::CreateCpuDevice(1);
      const auto stream = *device->CreateStream(device::Device::StreamKind::kCompute);
      const auto data =
          collective::CreateCommunicator({"data", absl::Seconds(60)}, std::move(transports[rank]));
      FakeEngine engine;
      engine.places = {PlaceOf(Rows("b", 0, 1000)), PlaceOf(Rows("b", 1, 1000))};
      if (rank == 1) wanted = engine.places[1];
      auto source = std::make_shared<HangingSource>(&begun, &over);
      source->read = &read;
      engine.slices = {Rows("b", 0, 1000), Rows("b", 1, 1000)};
      statuses[rank] = LoadState(
          source, {*data, *device, *stream}, [](int64_t, int64_t) {}, engine);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(wanted.expired()) << "the kernel may still write there";
  over.Notify();
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace tercio::trainer
