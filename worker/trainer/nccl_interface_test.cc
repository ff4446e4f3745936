#include "worker/trainer/nccl_interface.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace tercio::trainer {
namespace {

TEST(NcclInterface, LoopbackHasAName) {
  EXPECT_EQ(InterfaceOf("127.0.0.1"), "lo");
  EXPECT_EQ(InterfaceOf("203.0.113.77"), "");
  EXPECT_EQ(InterfaceOf("no address"), "");
}

TEST(NcclInterface, WhatTheOperatorSaysCounts) {
  unsetenv("NCCL_SOCKET_IFNAME");
  UseInterfaceOf("203.0.113.77");
  EXPECT_EQ(std::getenv("NCCL_SOCKET_IFNAME"), nullptr);
  UseInterfaceOf("127.0.0.1");
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "=lo");
  setenv("NCCL_SOCKET_IFNAME", "ib0", 1);
  UseInterfaceOf("127.0.0.1");
  EXPECT_STREQ(std::getenv("NCCL_SOCKET_IFNAME"), "ib0");
}

}  // namespace
}  // namespace tercio::trainer
