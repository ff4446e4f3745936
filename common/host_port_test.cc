#include "common/host_port.h"

#include <string>
#include <tuple>

#include "gtest/gtest.h"

namespace tercio {
namespace {

TEST(SplitHostPort, TakesNamesAndAddressesOfBothKinds) {
  for (const auto& [address, host, port] :
       {std::tuple{"train.example:7077", "train.example", "7077"},
        std::tuple{"127.0.0.1:0", "127.0.0.1", "0"}, std::tuple{"[::1]:9464", "::1", "9464"}}) {
    const std::optional<HostPort> parts = SplitHostPort(address);
    ASSERT_TRUE(parts.has_value()) << address;
    EXPECT_EQ(parts->host, host);
    EXPECT_EQ(parts->port, port);
  }
}

TEST(SplitHostPort, WantsBoth) {
  for (const char* address : {"", ":", ":80", "nowhere", "host:", "[]:80"}) {
    EXPECT_FALSE(SplitHostPort(address).has_value()) << address;
  }
}

TEST(ReachableAt, EveryInterfaceIsTheHost) {
  EXPECT_EQ(ReachableAt("0.0.0.0:7071", "10.0.0.7"), "10.0.0.7:7071");
  EXPECT_EQ(ReachableAt("[::]:7071", "fd00::7"), "[fd00::7]:7071");
  EXPECT_EQ(ReachableAt("[::]:7071", "10.0.0.7"), "10.0.0.7:7071");
  for (const char* address : {"10.0.0.8:7071", "[fd00::8]:1", "train.example:2", "unix:/a", ""}) {
    EXPECT_EQ(ReachableAt(address, "10.0.0.7"), address);
  }
}

}  // namespace
}  // namespace tercio
