// A record and a directory behind four gigabytes: the fields of zip64.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "checkpoint/torch/torch_writer.h"
#include "gtest/gtest.h"

namespace tercio::checkpoint {
namespace {

constexpr int64_t kLarge = (int64_t{1} << 32) + 64;

uint64_t NumberAt(const std::string& bytes, size_t at, size_t width) {
  uint64_t number = 0;
  std::memcpy(&number, bytes.data() + at, width);
  return number;
}

TEST(TorchWriterLarge, SizesAndOffsetsBeyondFourGigabytes) {
  TorchDict root;
  root.members.push_back({"large", {TorchTensorForm{FloatFormat::kF16, {kLarge / 2}}}});
  root.members.push_back({"small", {TorchTensorForm{FloatFormat::kF16, {1}}}});
  TorchWriter writer({root});
  std::string tail;  // what was written after the large record
  int64_t offset = 0;
  const TakePart write = [&](std::string_view bytes) {
    offset += static_cast<int64_t>(bytes.size());
    if (offset > kLarge) tail.append(bytes.substr(bytes.size() > 1000000 ? bytes.size() : 0));
    return absl::OkStatus();
  };
  const std::string zeros(int64_t{1} << 26, '\0');
  for (int64_t left = kLarge + 2; left > 0; left -= static_cast<int64_t>(zeros.size())) {
    const auto now = std::min<int64_t>(left, static_cast<int64_t>(zeros.size()));
    ASSERT_TRUE(
        writer.Add(std::string_view(zeros).substr(0, static_cast<size_t>(now)), write).ok());
  }
  ASSERT_TRUE(writer.Finish(write).ok());
  const size_t entry = tail.rfind("PK\x01\x02", tail.rfind("archive/data/0"));
  ASSERT_NE(entry, std::string::npos);
  EXPECT_EQ(NumberAt(tail, entry + 24, 4), 0xffffffffu);
  const size_t extra = entry + 46 + sizeof("archive/data/0") - 1;
  EXPECT_EQ(NumberAt(tail, extra, 2), 1u);
  EXPECT_EQ(NumberAt(tail, extra + 4, 8), static_cast<uint64_t>(kLarge));
  EXPECT_EQ(NumberAt(tail, extra + 12, 8), static_cast<uint64_t>(kLarge));
  // The small record begins behind the bound, and so does the directory.
  const size_t small = tail.rfind("PK\x01\x02", tail.rfind("archive/data/1"));
  EXPECT_EQ(NumberAt(tail, small + 42, 4), 0xffffffffu);
  EXPECT_GT(NumberAt(tail, small + 46 + sizeof("archive/data/1") - 1 + 4, 8),
            static_cast<uint64_t>(kLarge));
  const size_t end = tail.rfind("PK\x06\x06");
  ASSERT_NE(end, std::string::npos);
  EXPECT_GT(NumberAt(tail, end + 48, 8), static_cast<uint64_t>(kLarge));
  EXPECT_EQ(NumberAt(tail, tail.size() - 6, 4), 0xffffffffu);
}

}  // namespace
}  // namespace tercio::checkpoint
