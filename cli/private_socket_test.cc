#include "cli/private_socket.h"

#include <sys/stat.h>
#include <sys/un.h>

#include "common/file.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

TEST(PrivateSocketTest, LiesWhereNobodyElseMayEnterAndGoesWithTheObject) {
  std::string directory;
  {
    const auto one = PrivateSocket::Make();
    const auto two = PrivateSocket::Make();
    ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
    EXPECT_NE((*one)->address(), (*two)->address());
    ASSERT_EQ((*one)->address().rfind("unix:/", 0), 0u);
    const std::string path = (*one)->address().substr(5);
    EXPECT_LT(path.size(), sizeof(sockaddr_un::sun_path));
    directory = path.substr(0, path.rfind('/'));
    struct stat info = {};
    ASSERT_EQ(stat(directory.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
    ASSERT_TRUE(WriteFileDurably(path, "what a server leaves that was killed").ok());
  }
  EXPECT_FALSE(PathExists(directory));
}

TEST(PrivateSocketTest, OnlySocketsOfOthersAreRefused) {
  EXPECT_TRUE(MayUseSocket("127.0.0.1:7077").ok());
  EXPECT_TRUE(MayUseSocket("unix:/tmp/there/is/none").ok());
  const auto own = PrivateSocket::Make();
  ASSERT_TRUE(own.ok()) << own.status();
  ASSERT_TRUE(WriteFileDurably((*own)->address().substr(5), "").ok());
  EXPECT_TRUE(MayUseSocket((*own)->address()).ok());
}

}  // namespace
}  // namespace tercio::cli
