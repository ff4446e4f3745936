#include "common/channel.h"

#include "gtest/gtest.h"

namespace tercio {
namespace {

TEST(IsLoopbackTest, OnlyWhatCannotBeReachedFromOutside) {
  for (const char* address :
       {"127.0.0.1:7077", "127.8.9.1:1", "localhost:7077", "[::1]:7077", "unix:/run/socket"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  // A name may begin like an address.
  for (const char* address :
       {"0.0.0.0:7077", "127.example.com:7077", "127.0.0.1.example.com:7077", "::1:7077", "[::]:1",
        "localhost.example:1", "10.0.0.1:7077", "127.0.0.1", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

}  // namespace
}  // namespace tercio
