// How often a caller may come: limits count in the gate's own time, which stands still here unless
// moved.
#include "coordinator/access/gate.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr char kAttach[] = "NodeService/Attach";

class GateLimitsTest : public ::testing::Test {
 protected:
  static Gate::Options Options(const absl::Time& now) {
    Gate::Options options;
    options.tls = true;
    options.now = [&now] { return now; };
    return options;
  }

  static Caller NodeAt(int number) {
    return {"cluster", Role::kAdmin, "1", absl::StrCat("10.0.", number / 256, ".", number % 256)};
  }

  absl::Time now_ = absl::UnixEpoch();
  Gate gate_{Options(now_), nullptr};
};

// 1,536 nodes share a certificate. The lease is 13.75 s: all of them must be back long before.
TEST_F(GateLimitsTest, NodesThatShareACertificateComeBackTogether) {
  for (int restart = 0; restart < 3; ++restart) {
    for (int node = 0; node < 1536; ++node) {
      const absl::Status status = gate_.Admit(NodeAt(node), kAttach);
      ASSERT_TRUE(status.ok()) << "restart " << restart << ", node " << node << ": " << status;
      now_ += absl::Milliseconds(2);
    }
  }
}

TEST_F(GateLimitsTest, OneNodeThatAttachesAgainAndAgainIsRefusedAndTheOthersAreNot) {
  int admitted = 0;
  absl::Status last;
  for (int i = 0; i < 10'000; ++i) {
    last = gate_.Admit(NodeAt(7), kAttach);
    admitted += last.ok() ? 1 : 0;
    now_ += absl::Microseconds(100);
  }
  EXPECT_GE(admitted, 60);
  EXPECT_LE(admitted, 60 + 20);
  EXPECT_TRUE(absl::IsResourceExhausted(last)) << last;
  EXPECT_THAT(last.message(), HasSubstr("cluster at 10.0.0.7"));
  EXPECT_TRUE(gate_.Admit(NodeAt(8), kAttach).ok());
  // Nor does it use up what its name may change otherwise.
  EXPECT_TRUE(gate_.Admit(NodeAt(7), "JobService/Cancel").ok());
}

TEST_F(GateLimitsTest, OtherChangesAreCountedByNameFromWhereverTheyCome) {
  int admitted = 0;
  for (int node = 0; node < 1000; ++node) {
    admitted += gate_.Admit(NodeAt(node), "JobService/Cancel").ok() ? 1 : 0;
  }
  EXPECT_EQ(admitted, 60);
}

}  // namespace
}  // namespace tercio::coordinator
