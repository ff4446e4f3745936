#include "worker/agent/snapshots/snapshot_store.h"

#include "common/checksum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kJob[] = "job-1";
constexpr int64_t kBytes = 1 << 20;

class SnapshotStoreTest : public ::testing::Test {
 protected:
  SnapshotStoreTest() : store_(Options()) {}

  SnapshotStore::Options Options() {
    SnapshotStore::Options options;
    options.reserve_bytes = kBytes;
    options.available_bytes = [this] { return available_; };
    options.on_held = [this](v1::SnapshotsHeld held) { said_.push_back(std::move(held)); };
    options.on_bytes = [this](int64_t bytes) { bytes_ = bytes; };
    return options;
  }
  static v1::SnapshotBegin Begin(int attempt, int rank, int64_t step, const char* job = kJob) {
    v1::SnapshotBegin begin;
    begin.mutable_run()->set_job_id(job);
    begin.mutable_run()->set_attempt(attempt);
    begin.set_token("secret");
    begin.set_rank(rank);
    begin.set_step(step);
    begin.set_bytes(kBytes);
    v1::TensorSlice* slice = begin.add_slices();
    slice->set_row_end(kBytes / 16);
    slice->set_column_end(4);
    begin.add_steps()->set_step(step);
    return begin;
  }
  static std::string Content(int64_t step) {
    return std::string(kBytes, static_cast<char>('a' + step % 26));
  }
  static v1::UploadEnd End(const std::string& content) {
    v1::UploadEnd end;
    end.set_bytes(static_cast<int64_t>(content.size()));
    end.set_checksum(ChecksumHex(content));
    return end;
  }
  absl::Status Put(int attempt, int rank, int64_t step, const char* job = kJob) {
    auto incoming = store_.Begin(Begin(attempt, rank, step, job));
    if (!incoming.ok()) return incoming.status();
    const std::string content = Content(step);
    if (const absl::Status status = (*incoming)->Append(content.substr(0, 1000)); !status.ok()) {
      return status;
    }
    if (const absl::Status status = (*incoming)->Append(content.substr(1000)); !status.ok()) {
      return status;
    }
    return (*incoming)->Finish(End(content));
  }
  bool Has(int attempt, int rank, int64_t step) {
    return store_.Find(kJob, attempt, rank, step) != nullptr;
  }

  int64_t available_ = 100 * kBytes;
  int64_t bytes_ = 0;
  std::vector<v1::SnapshotsHeld> said_;
  SnapshotStore store_;
};

TEST_F(SnapshotStoreTest, KeepsAndTellsACompleteCopy) {
  ASSERT_TRUE(Put(1, 3, 10).ok());
  const auto copy = store_.Find(kJob, 1, 3, 10);
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->bytes(), Content(10));
  EXPECT_EQ(copy->checksum, ChecksumHex(Content(10)));
  EXPECT_EQ(copy->begin.token(), "") << "is not kept";
  ASSERT_EQ(said_.size(), 1u);
  ASSERT_EQ(said_[0].snapshots_size(), 1);
  EXPECT_FALSE(said_[0].all());
  EXPECT_EQ(said_[0].snapshots(0).rank(), 3);
  EXPECT_EQ(said_[0].snapshots(0).steps_size(), 1);
  EXPECT_TRUE(store_.Inventory().all());
  EXPECT_EQ(store_.Inventory().snapshots_size(), 1);
  EXPECT_EQ(bytes_, kBytes);
  EXPECT_FALSE(Has(1, 3, 11));
  EXPECT_FALSE(Has(2, 3, 10));
  EXPECT_FALSE(Has(1, 2, 10));
}

TEST_F(SnapshotStoreTest, DamagedOrShortCopiesAreNotKept) {
  auto incoming = *store_.Begin(Begin(1, 0, 10));
  ASSERT_TRUE(incoming->Append(Content(10)).ok());
  EXPECT_EQ(incoming->Finish(End(Content(11))).code(), absl::StatusCode::kDataLoss);
  incoming = *store_.Begin(Begin(1, 0, 10));
  ASSERT_TRUE(incoming->Append("short").ok());
  EXPECT_EQ(incoming->Finish(End("short")).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(incoming->Append(Content(10)).code(), absl::StatusCode::kInvalidArgument);
  incoming = nullptr;
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_EQ(store_.bytes(), 0);
  EXPECT_EQ(bytes_, 0);
}

// While the next is on its way the last of all ranks must stay.
TEST_F(SnapshotStoreTest, KeepsTheNewestCompleteCopyBesideTheOneThatComes) {
  ASSERT_TRUE(Put(1, 0, 10).ok());
  ASSERT_TRUE(Put(1, 0, 20).ok());
  EXPECT_TRUE(Has(1, 0, 10)) << "other ranks may not be as far";
  const auto incoming = *store_.Begin(Begin(1, 0, 30));
  EXPECT_FALSE(Has(1, 0, 10));
  EXPECT_TRUE(Has(1, 0, 20));
  EXPECT_EQ(store_.bytes(), 2 * kBytes);
}

TEST_F(SnapshotStoreTest, CopiesOfAnOlderAttemptGoWithTheSecondSnapshotOfALater) {
  ASSERT_TRUE(Put(1, 0, 10).ok());
  ASSERT_TRUE(Put(1, 1, 10).ok());
  ASSERT_TRUE(Put(2, 0, 20).ok());
  EXPECT_TRUE(Has(1, 1, 10)) << "rank 1 may be elsewhere now, with its copy under way";
  ASSERT_TRUE(Put(2, 0, 30).ok());
  EXPECT_FALSE(Has(1, 0, 10));
  EXPECT_FALSE(Has(1, 1, 10));
  EXPECT_EQ(store_.Begin(Begin(1, 0, 40)).status().code(), absl::StatusCode::kAborted);
}

TEST_F(SnapshotStoreTest, ALaterCopyOfTheRankReplacesOneUnderWay) {
  const auto first = *store_.Begin(Begin(1, 0, 10));
  ASSERT_TRUE(first->Append("abc").ok());
  ASSERT_TRUE(Put(1, 0, 20).ok());
  EXPECT_EQ(first->Append("abc").code(), absl::StatusCode::kAborted);
}

TEST_F(SnapshotStoreTest, RefusesWhatWouldTakeTheReserve) {
  available_ = 3 * kBytes;
  const auto one = *store_.Begin(Begin(1, 0, 10));
  const auto two = *store_.Begin(Begin(1, 1, 10));  // the machine does not count the first yet
  const absl::Status full = store_.Begin(Begin(1, 2, 10)).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("1.0 MiB: 0.0 MiB are free"));
  // What has arrived the machine counts itself.
  ASSERT_TRUE(one->Append(Content(10)).ok());
  available_ -= kBytes;
  EXPECT_FALSE(store_.Begin(Begin(1, 2, 10)).ok());
  available_ += kBytes;
  EXPECT_TRUE(store_.Begin(Begin(1, 2, 10)).ok());
}

TEST_F(SnapshotStoreTest, RefusesSizesThatMakeNoSense) {
  const auto refused = [this](const std::function<void(v1::SnapshotBegin&)>& change) {
    v1::SnapshotBegin begin = Begin(1, 0, 10);
    change(begin);
    return store_.Begin(begin).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](v1::SnapshotBegin& b) { b.set_bytes(kBytes + 1); }));
  EXPECT_TRUE(refused([](v1::SnapshotBegin& b) { b.set_rank(-1); }));
  EXPECT_TRUE(refused([](v1::SnapshotBegin& b) { b.set_step(0); }));
  EXPECT_TRUE(refused([](v1::SnapshotBegin& b) {
    b.clear_slices();
    b.set_bytes(0);
  }));
  EXPECT_TRUE(refused([](v1::SnapshotBegin& b) {
    b.mutable_slices(0)->set_row_end(int64_t{1} << 62);
    b.mutable_slices(0)->set_column_end(int64_t{1} << 62);
  }));
  EXPECT_TRUE(refused([](v1::SnapshotBegin& b) { b.mutable_slices(0)->set_row_begin(-5); }));
}

TEST_F(SnapshotStoreTest, DropsAJobAndWhatIsUnderWayForIt) {
  ASSERT_TRUE(Put(1, 0, 10).ok());
  ASSERT_TRUE(Put(1, 0, 10, "job-2").ok());
  const auto incoming = *store_.Begin(Begin(1, 1, 10));
  const auto reading = store_.Find(kJob, 1, 0, 10);
  store_.Drop(kJob);
  EXPECT_FALSE(Has(1, 0, 10));
  EXPECT_EQ(reading->bytes(), Content(10)) << "who reads it goes on";
  ASSERT_FALSE(incoming->Append(Content(10)).ok());
  EXPECT_FALSE(incoming->Finish(End(Content(10))).ok());
  EXPECT_EQ(store_.Inventory().snapshots_size(), 1);
  EXPECT_EQ(store_.Inventory().snapshots(0).run().job_id(), "job-2");
}

}  // namespace
}  // namespace tercio::agent
