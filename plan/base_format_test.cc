// Jobs and layouts that may quantise frozen matrices, and the memory that it takes.
#include "plan/base_format.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/memory_map.h"
#include "plan/rank_layout.h"

namespace tercio::plan {
namespace {

using ::testing::HasSubstr;

v1::JobSpec Job() {
  v1::JobSpec job;
  v1::ModelSpec& model = *job.mutable_model();
  model.set_architecture(v1::ARCHITECTURE_LLAMA);
  model.set_layers(4);
  model.set_hidden(256);
  model.set_heads(4);
  model.set_kv_heads(2);
  model.set_ffn_hidden(768);
  model.set_context(32);
  model.set_vocab_size(512);
  model.set_untied_head(true);
  model.set_base_format(v1::BASE_FORMAT_NF4);
  job.mutable_training()->set_global_batch(8);
  job.mutable_training()->set_precision(v1::PRECISION_BF16);
  job.mutable_training()->add_frozen("layers.*.weight");
  return job;
}

v1::Layout LayoutOf(int tensor) {
  v1::Layout layout;
  layout.set_tensor(tensor);
  layout.set_pipeline(1);
  layout.set_data(1);
  layout.set_context_parallel(1);
  layout.set_micro_batch(1);
  layout.set_micro_batches(8);
  return layout;
}

std::string Refusal(const v1::JobSpec& job) {
  const absl::Status status = CheckBaseFormat(job);
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(BaseFormat, NeedsFrozenMatricesOfLayers) {
  EXPECT_EQ(Refusal(Job()), "");
  v1::JobSpec job = Job();
  job.mutable_training()->clear_frozen();
  EXPECT_THAT(Refusal(job), HasSubstr("name them in training.frozen"));
  // None of these is a product's matrix.
  for (const char* pattern : {"embedding.*", "head.*", "layers.*norm*"}) {
    *job.mutable_training()->add_frozen() = pattern;
  }
  EXPECT_THAT(Refusal(job), HasSubstr("none is frozen"));
  // A part of query, key and value, which are one matrix, is trained.
  job.mutable_training()->add_frozen("layers.*.attention.query.weight");
  EXPECT_THAT(Refusal(job), HasSubstr("none is frozen"));
  job.mutable_model()->clear_base_format();
  EXPECT_EQ(Refusal(job), "");
}

TEST(BaseFormat, HasWholeBlocksInEveryRowAndPart) {
  v1::JobSpec job = Job();
  job.mutable_model()->set_ffn_hidden(800);
  EXPECT_THAT(Refusal(job), HasSubstr("layers.0.mlp.down.weight has 800 columns, and a block 64"));
  EXPECT_TRUE(CheckBaseLayout(Job(), LayoutOf(4)).ok());
  job.mutable_model()->set_ffn_hidden(704);  // 11 blocks
  EXPECT_EQ(Refusal(job), "");
  EXPECT_TRUE(CheckLayout(job, LayoutOf(1), 1).ok());
  EXPECT_THAT(std::string(CheckLayout(job, LayoutOf(2), 2).message()),
              HasSubstr("tensor 2 cuts the 704 columns of layers.0.mlp.down.weight"));
}

int64_t ParameterBytes(const v1::JobSpec& job) {
  int64_t bytes = 0;
  const v1::MemoryTable table = MemoryOfStage(job, LayoutOf(1), 0, 1);
  for (const v1::Buffer& buffer : table.buffers()) {
    if (buffer.kind() == v1::BUFFER_KIND_PARAMETER) bytes += buffer.size_bytes();
  }
  return bytes;
}

// 1/2 byte and 1/64 for a weight's part of a scale, and a float for each 256 * 64; int8: 1 and as
// much. On GPUs, where 16 bits are 2 bytes.
TEST(BaseFormat, TakesTheBytesOfItsCodes) {
  v1::JobSpec job = Job();
  job.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  v1::JobSpec plain = job;
  plain.mutable_model()->clear_base_format();
  const StageTensors tensors = TensorsOfStage(job, LayoutOf(1), 0);
  int64_t weights = 0;
  for (const QuantizedTensor& each : tensors.quantized) weights += each.elements();
  EXPECT_EQ(weights, 4 * (256 * 256 * 2 + 256 * 128 * 2 + 3 * 256 * 768));
  const auto of_base = [&](v1::BaseFormat format) {
    job.mutable_model()->set_base_format(format);
    const v1::MemoryTable table = MemoryOfStage(job, LayoutOf(1), 0, 1);
    return FindBuffer(table, kBaseBuffer).size_bytes();
  };
  const auto count = static_cast<double>(weights);
  const double shared = 1.0 / 64 + 4.0 / (64 * 256);
  EXPECT_NEAR(static_cast<double>(of_base(v1::BASE_FORMAT_NF4)) / count, 0.5 + shared, 0.001);
  EXPECT_NEAR(static_cast<double>(of_base(v1::BASE_FORMAT_INT8)) / count, 1 + shared, 0.001);
  job.mutable_model()->set_base_format(v1::BASE_FORMAT_NF4);
  EXPECT_EQ(ParameterBytes(plain) - ParameterBytes(job),
            2 * weights - of_base(v1::BASE_FORMAT_NF4));
  // The largest product is gate and up together.
  job.mutable_model()->set_base_format(v1::BASE_FORMAT_NF4);
  const v1::MemoryTable table = MemoryOfStage(job, LayoutOf(1), 0, 1);
  EXPECT_EQ(FindBuffer(table, kDequantizedBuffer).size_bytes(), 2 * 2 * 768 * 256);
}

}  // namespace
}  // namespace tercio::plan
