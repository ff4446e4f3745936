// What the writer writes, read by our reader and byte by byte. What torch says of such files:
// tests/megatron/check_export.py.
#include "checkpoint/torch/torch_writer.h"

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "checkpoint/torch/crc32.h"
#include "checkpoint/torch/torch_file.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::checkpoint {
namespace {

using ::testing::ElementsAre;

// The file, written from parts of `step` bytes.
std::string Written(const TorchValue& root, std::string_view tensors, size_t step) {
  std::string file;
  const TakePart write = [&file](std::string_view bytes) {
    file.append(bytes);
    return absl::OkStatus();
  };
  TorchWriter writer(root);
  EXPECT_EQ(writer.tensor_bytes(), static_cast<int64_t>(tensors.size()));
  for (size_t at = 0; at < tensors.size(); at += step) {
    EXPECT_TRUE(writer.Add(tensors.substr(at, step), write).ok());
  }
  EXPECT_TRUE(writer.Finish(write).ok());
  return file;
}

std::unique_ptr<TorchFile> Reopened(const std::string& content, const TempDir& dir) {
  const std::string path = dir.path() + "/file.pt";
  EXPECT_TRUE(WriteFileDurably(path, content).ok());
  auto file = TorchFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? *std::move(file) : nullptr;
}

TorchDict Example() {
  TorchDict inner;
  inner.members.push_back({"weight", {TorchTensorForm{FloatFormat::kF32, {2, 3}}}});
  inner.members.push_back({"empty", {TorchTensorForm{FloatFormat::kF32, {0, 3}}}});
  inner.members.push_back({"half", {TorchTensorForm{FloatFormat::kF16, {4}}}});
  TorchNamespace args;
  args.members.push_back({"layers", {int64_t{24}}});
  args.members.push_back({"large", {std::numeric_limits<int64_t>::min()}});
  args.members.push_back({"eps", {1e-5}});
  args.members.push_back({"tied", {true}});
  args.members.push_back({"name", {std::string("bert")}});
  args.members.push_back({"nothing", {}});
  args.members.push_back({"dtype", {TorchDtype{FloatFormat::kBF16}}});
  TorchDict root;
  root.members.push_back({"args", {args}});
  root.members.push_back({"model", {inner}});
  root.members.push_back({"last", {TorchTensorForm{FloatFormat::kBF16, {1}}}});
  return root;
}

constexpr size_t kExampleBytes = 24 + 8 + 2;

std::string SomeBytes(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(17 * i + 3));
  return bytes;
}

TEST(Crc32, IsTheOneOfZipArchives) {
  EXPECT_EQ(Crc32(0, ""), 0u);
  EXPECT_EQ(Crc32(0, "123456789"), 0xcbf43926u);
  const std::string bytes = SomeBytes(1000);
  for (const size_t cut : {0, 1, 7, 8, 500, 999}) {
    EXPECT_EQ(Crc32(Crc32(0, bytes.substr(0, cut)), bytes.substr(cut)), Crc32(0, bytes)) << cut;
  }
}

TEST(TorchWriter, ValuesComeBack) {
  const TempDir dir;
  const std::string tensors = SomeBytes(kExampleBytes);
  const auto file = Reopened(Written({Example()}, tensors, 1000), dir);
  ASSERT_NE(file, nullptr);
  const PickleValue& args = *file->root().Find("args");
  ASSERT_EQ(args.kind(), PickleValue::Kind::kObject);
  EXPECT_EQ(args.class_name(), "argparse.Namespace");
  EXPECT_EQ(args.Find("layers")->integer(), 24);
  EXPECT_EQ(args.Find("large")->integer(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(args.Find("eps")->real(), 1e-5);
  EXPECT_TRUE(args.Find("tied")->boolean());
  EXPECT_EQ(args.Find("name")->text(), "bert");
  EXPECT_EQ(args.Find("nothing")->kind(), PickleValue::Kind::kNone);
  const PickleValue& model = *file->root().Find("model");
  const TorchTensor& weight = model.Find("weight")->tensor();
  EXPECT_EQ(weight.dtype, "F32");
  EXPECT_THAT(weight.shape, ElementsAre(2, 3));
  EXPECT_TRUE(weight.IsContiguous());
  EXPECT_EQ(weight.bytes(), tensors.substr(0, 24));
  EXPECT_THAT(model.Find("empty")->tensor().shape, ElementsAre(0, 3));
  EXPECT_EQ(model.Find("half")->tensor().dtype, "F16");
  EXPECT_EQ(model.Find("half")->tensor().bytes(), tensors.substr(24, 8));
  EXPECT_EQ(file->root().Find("last")->tensor().dtype, "BF16");
  EXPECT_EQ(file->root().Find("last")->tensor().bytes(), tensors.substr(32));
}

TEST(TorchWriter, PartsMayEndAnywhere) {
  const std::string tensors = SomeBytes(kExampleBytes);
  const std::string whole = Written({Example()}, tensors, tensors.size());
  for (size_t step = 1; step < 30; ++step) {
    EXPECT_EQ(Written({Example()}, tensors, step), whole) << step;
  }
}

TEST(TorchWriter, AFileWithoutTensors) {
  const TempDir dir;
  const auto file = Reopened(Written({TorchDict{}}, "", 1), dir);
  ASSERT_NE(file, nullptr);
  EXPECT_TRUE(file->root().members().empty());
}

TEST(TorchWriter, DataIsAlignedAndHasItsChecksum) {
  const std::string tensors = SomeBytes(kExampleBytes);
  const std::string file = Written({Example()}, tensors, 5);
  const size_t at = file.find(tensors.substr(0, 24));
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(at % 64, 0u);
  // The descriptor behind the data, and the entry of the directory.
  uint32_t crc = 0;
  std::memcpy(&crc, file.data() + at + 24 + 4, sizeof(crc));
  EXPECT_EQ(crc, Crc32(0, tensors.substr(0, 24)));
  const size_t directory = file.rfind("PK\x01\x02", file.rfind("archive/data/0"));
  std::memcpy(&crc, file.data() + directory + 16, sizeof(crc));
  EXPECT_EQ(crc, Crc32(0, tensors.substr(0, 24)));
}

TEST(TorchWriter, ErrorsOfTheDiskAreReported) {
  int calls = 0;
  const TakePart full = [&calls](std::string_view) {
    return ++calls < 9 ? absl::OkStatus() : absl::ResourceExhaustedError("full");
  };
  TorchWriter writer({Example()});
  const absl::Status status = writer.Add(SomeBytes(kExampleBytes), full);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(calls, 9);
}

}  // namespace
}  // namespace tercio::checkpoint
