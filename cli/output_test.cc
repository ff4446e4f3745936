#include "cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <sstream>

#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

// Captures the output during its lifetime.
class Captured {
 public:
  Captured() : before_(std::cout.rdbuf(text_.rdbuf())) {}
  ~Captured() { std::cout.rdbuf(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* before_;
};

TEST(StandardOutput, HoldsAndWrites) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  {
    StandardOutput output(ends[1]);
    std::cout << "one " << 2 << std::endl << 'x';
    EXPECT_TRUE(output.Flush().ok());
    std::cout << "last";
  }
  char bytes[64] = {};
  EXPECT_EQ(read(ends[0], bytes, sizeof(bytes)), 11);
  EXPECT_STREQ(bytes, "one 2\nxlast");
  close(ends[0]);
  close(ends[1]);
}

TEST(StandardOutput, WhatDoesNotArriveIsAnError) {
  const int full = open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  {
    StandardOutput output(full);
    std::cout << "lost" << std::endl;
    EXPECT_FALSE(std::cout.good());
    const absl::Status status = output.Flush();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    std::cout.clear();
  }
  close(full);
  {
    StandardOutput closed(full);
    std::cout << "lost" << std::endl;
    EXPECT_TRUE(absl::IsFailedPrecondition(closed.Flush())) << closed.Flush();
    std::cout.clear();
  }
}

// A closed reader, as in `| head -1`.
TEST(StandardOutput, NobodyNeedsToRead) {
  std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  {
    StandardOutput output(ends[1]);
    std::cout << "unread" << std::endl;
    EXPECT_FALSE(std::cout.good());
    EXPECT_TRUE(output.Flush().ok());
    std::cout.clear();
  }
  close(ends[1]);
}

TEST(PrintJson, AsTheFormatAsks) {
  const Json list = {{{"a", 1}}, {{"a", 2}}};
  const auto printed = [](const Json& json, Output format) {
    const Captured captured;
    PrintJson(json, format);
    return captured.text();
  };
  EXPECT_EQ(Json::parse(printed(list, Output::kJson)), list);
  EXPECT_EQ(printed(list, Output::kJsonLines), "{\"a\":1}\n{\"a\":2}\n");
  EXPECT_EQ(printed(list[0], Output::kJsonLines), "{\"a\":1}\n");
  EXPECT_EQ(printed(Json::array(), Output::kJsonLines), "");
  // A path may contain any bytes.
  EXPECT_EQ(printed({{"path", "\xff.svg"}}, Output::kJsonLines),
            "{\"path\":\"\xef\xbf\xbd.svg\"}\n");
}

TEST(JsonStream, IsOneValueOrALineEach) {
  const auto printed = [](int messages, Output format, bool whole) {
    const Captured captured;
    JsonStream stream(format);
    for (int i = 1; i <= messages; ++i) stream.Add({{"step", i}});
    if (whole) stream.Finish();
    return captured.text();
  };
  EXPECT_EQ(printed(2, Output::kJsonLines, true), "{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(printed(0, Output::kJsonLines, true), "");
  EXPECT_EQ(printed(2, Output::kJson, true), "[\n{\"step\":1},\n{\"step\":2}\n]\n");
  EXPECT_EQ(printed(0, Output::kJson, true), "[]\n");
  EXPECT_EQ(printed(0, Output::kJson, false), "");  // an error leaves nothing behind
  EXPECT_EQ(printed(0, Output::kTable, true), "");
}

}  // namespace
}  // namespace tercio::cli
