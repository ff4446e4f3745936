#include "coordinator/service/upload_budget.h"

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

constexpr UploadBudget::Limits kTen = {1000, 100, absl::Hours(1)};

// One that asks, and notes when it may read.
struct Upload {
  UploadBudget::Id id = 0;
  bool begun = false;

  void Ask(UploadBudget& budget, const std::string& job) {
    if (budget.Ask(job, &id, [this] { begun = true; })) begun = true;
  }
};

int Begun(const std::vector<Upload>& uploads) {
  int begun = 0;
  for (const Upload& upload : uploads) begun += upload.begun ? 1 : 0;
  return begun;
}

TEST(UploadBudgetTest, OneJobHasHalfAndTheRestWaitsInOrder) {
  UploadBudget budget(kTen);
  std::vector<Upload> uploads(20);
  for (Upload& upload : uploads) upload.Ask(budget, "job");
  EXPECT_EQ(Begun(uploads), 5);
  EXPECT_EQ(budget.figures().waiting, 15);
  for (size_t i = 0; i < uploads.size(); ++i) {
    ASSERT_TRUE(uploads[i].begun) << i;
    budget.Arrived(uploads[i].id, 80);
    budget.Release(uploads[i].id);
  }
  EXPECT_EQ(budget.figures().held, 0);
  EXPECT_EQ(budget.figures().waiting, 0);
  EXPECT_LE(budget.figures().most_held, 1000);
}

// As of jobs whose disks hang.
TEST(UploadBudgetTest, HoweverManyJobsHoldTheirShareAnotherHasRoom) {
  UploadBudget budget(kTen);
  std::vector<std::vector<Upload>> jobs(4, std::vector<Upload>(20));
  for (size_t job = 0; job < jobs.size(); ++job) {
    for (Upload& upload : jobs[job]) upload.Ask(budget, "job " + std::to_string(job));
    EXPECT_GE(Begun(jobs[job]), 1) << job;
  }
  for (auto& uploads : jobs) {
    for (Upload& upload : uploads) budget.Release(upload.id);
  }
  EXPECT_EQ(budget.figures().held, 0);
}

TEST(UploadBudgetTest, JobsTakeTurns) {
  UploadBudget budget(kTen);
  Upload large;
  large.Ask(budget, "large");
  budget.Arrived(large.id, 5000);  // larger than all: it is taken, and others wait
  std::map<std::string, std::vector<Upload>> jobs;
  for (const char* job : {"one", "two", "three"}) {
    jobs[job].resize(9);
    for (Upload& upload : jobs[job]) upload.Ask(budget, job);
    EXPECT_EQ(Begun(jobs[job]), 0);
  }
  budget.Release(large.id);
  for (const auto& [job, uploads] : jobs) {
    EXPECT_GE(Begun(uploads), 2) << job;
    EXPECT_LE(Begun(uploads), 3) << job;
  }
  for (auto& [job, uploads] : jobs) {
    for (Upload& upload : uploads) budget.Release(upload.id);
  }
}

TEST(UploadBudgetTest, WhoHasGoneNeitherHoldsNorBegins) {
  UploadBudget budget(kTen);
  std::vector<Upload> uploads(7);
  for (Upload& upload : uploads) upload.Ask(budget, "job");
  budget.Release(uploads[5].id);  // it waited
  EXPECT_EQ(budget.figures().waiting, 1);
  budget.Release(uploads[0].id);  // it read
  EXPECT_FALSE(uploads[5].begun);
  EXPECT_TRUE(uploads[6].begun);
  for (const size_t left : {1, 2, 3, 4, 6}) budget.Release(uploads[left].id);
  EXPECT_EQ(budget.figures().held, 0);
}

// Ranks that stand still, with nothing on its way, hold no memory.
TEST(UploadBudgetTest, WhatNothingComesForIsLent) {
  UploadBudget budget({1000, 100, absl::Milliseconds(20)});
  std::vector<Upload> idle(5);
  for (Upload& upload : idle) upload.Ask(budget, "job");
  absl::Notification begun;
  UploadBudget::Id next = 0;
  ASSERT_FALSE(budget.Ask("job", &next, [&] { begun.Notify(); }));
  EXPECT_TRUE(begun.WaitForNotificationWithTimeout(absl::Seconds(20)));
  budget.Arrived(idle[0].id, 100);  // it comes after all
  EXPECT_GE(budget.figures().held, 200);
  for (const Upload& upload : idle) budget.Release(upload.id);
  budget.Release(next);
  EXPECT_EQ(budget.figures().held, 0);
}

TEST(UploadBudgetTest, ManyThreadsStayWithinIt) {
  constexpr int kThreads = 8;
  constexpr int kMessages = 500;
  UploadBudget budget({300, 100, absl::Hours(1)});
  std::atomic<int> handled = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, job = std::to_string(thread % 3)] {
      for (int i = 0; i < kMessages; ++i) {
        absl::Notification begun;
        UploadBudget::Id id = 0;
        if (!budget.Ask(job, &id, [&] { begun.Notify(); })) begun.WaitForNotification();
        budget.Arrived(id, 100);
        ++handled;
        budget.Release(id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(handled, kThreads * kMessages);
  EXPECT_LE(budget.figures().most_held, 300);
  EXPECT_EQ(budget.figures().held, 0);
}

}  // namespace
}  // namespace tercio::coordinator
