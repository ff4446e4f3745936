// A model whose tensors are too large for one part: what several threads read, transpose, digest
// and write is what was there. The fixtures of transformers are too small to show that.
#include <fstream>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "checkpoint/float_format.h"
#include "checkpoint/huggingface/export.h"
#include "checkpoint/huggingface/import.h"
#include "checkpoint/huggingface/names.h"
#include "checkpoint/huggingface/weights.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tercio::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kConfig[] = R"({"model_type": "gpt2", "n_embd": 272, "n_head": 2, "n_layer": 1,
  "n_positions": 8, "vocab_size": 2003, "activation_function": "gelu_new",
  "layer_norm_epsilon": 1e-05, "tie_word_embeddings": true})";

class PartsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const uint32_t seed = std::random_device()();
    std::cout << "seed " << seed << std::endl;
    std::mt19937 random(seed);
    model_.set_architecture(v1::ARCHITECTURE_GPT2);
    model_.set_layers(1);
    model_.set_hidden(272);
    model_.set_heads(2);
    model_.set_ffn_hidden(4 * 272);
    model_.set_context(8);
    model_.set_vocab_size(2003);
    model_.set_bias(true);
    std::vector<TensorEntry> entries;
    std::string bytes;
    for (const HuggingFaceTensor& tensor : HuggingFaceTensors(model_)) {
      entries.push_back({tensor.name, tensor.shape});
      std::vector<float>& values = values_[tensor.name];
      values.resize(static_cast<size_t>(tensor.outputs * tensor.inputs));
      for (float& value : values) value = static_cast<float>(random()) * 0x1p-32f;
      bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
    ASSERT_TRUE(MakeDirectories(source_).ok());
    Put(source_ + "/config.json", kConfig);
    Put(source_ + "/model.safetensors", SafetensorsHeader(&entries, "pt") + bytes);
    const auto imported = ImportHuggingFace(source_, checkpoint_);
    ASSERT_TRUE(imported.ok()) << imported.status();
  }

  static void Put(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
  }

  TempDir dir_;
  const std::string source_ = dir_.path() + "/source";
  const std::string checkpoint_ = dir_.path() + "/checkpoint";
  const std::string out_ = dir_.path() + "/out";
  v1::ModelSpec model_;
  std::map<std::string, std::vector<float>> values_;
};

TEST_F(PartsTest, EveryValueIsInItsPlace) {
  const auto reader = Reader::Open(checkpoint_, DigestCheck::kEveryByte);
  ASSERT_TRUE(reader.ok()) << reader.status();
  int64_t largest = 0;
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(model_)) {
    const std::vector<float>& theirs = values_[tensor.name];
    largest = std::max(largest, static_cast<int64_t>(theirs.size()));
    for (const HuggingFacePart& part : tensor.parts) {
      v1::TensorSlice slice;
      slice.set_tensor(part.tensor);
      slice.add_shape(part.rows);
      if (!tensor.is_vector) slice.add_shape(tensor.inputs);
      slice.set_row_end(part.rows);
      slice.set_column_end(tensor.inputs);
      std::vector<float> ours(static_cast<size_t>(part.rows * tensor.inputs));
      ASSERT_TRUE((*reader)->ReadSlice(slice, ours.data()).ok());
      int64_t different = 0;
      for (int64_t row = 0; row < part.rows; ++row) {
        for (int64_t column = 0; column < tensor.inputs; ++column) {
          const int64_t at = tensor.transposed ? column * tensor.outputs + part.begin + row
                                               : (part.begin + row) * tensor.inputs + column;
          different += ours[static_cast<size_t>(row * tensor.inputs + column)] !=
                       theirs[static_cast<size_t>(at)];
        }
      }
      EXPECT_EQ(different, 0) << part.tensor;
    }
  }
  EXPECT_GT(largest, int64_t{2} << 18);  // else this test shows nothing
}

TEST_F(PartsTest, ExportsGiveTheImportedBytes) {
  const auto exported = ExportHuggingFace(checkpoint_, out_, {});
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_TRUE(*ReadFile(out_ + "/model.safetensors") == *ReadFile(source_ + "/model.safetensors"));
}

TEST_F(PartsTest, ExportsNarrowEveryValue) {
  ExportOptions options;
  options.dtype = FloatFormat::kBF16;
  ASSERT_TRUE(ExportHuggingFace(checkpoint_, out_, options).ok());
  const std::string file = *ReadFile(out_ + "/model.safetensors");
  const auto layout = ParseSafetensors(file, static_cast<int64_t>(file.size()));
  ASSERT_TRUE(layout.ok()) << layout.status();
  for (const TensorEntry& entry : layout->tensors) {
    const std::vector<float>& values = values_[entry.name];
    std::string expected(values.size() * 2, '\0');
    NarrowFloats(FloatFormat::kBF16, values.data(), static_cast<int64_t>(values.size()),
                 expected.data());
    EXPECT_TRUE(file.substr(static_cast<size_t>(layout->data_begin + entry.begin),
                            expected.size()) == expected)
        << entry.name;
  }
}

// Digests are compared while the export goes on: it must not become visible.
TEST_F(PartsTest, DamageLeavesNoExport) {
  const std::string path = checkpoint_ + "/weights.safetensors";
  std::string file = *ReadFile(path);
  file[file.size() - 1] ^= 1;
  Put(path, file);
  const auto exported = ExportHuggingFace(checkpoint_, out_, {});
  EXPECT_EQ(exported.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(exported.status().message()), HasSubstr(path + ": its checksum differs"));
  EXPECT_THAT(ListDirectory(dir_.path()), ElementsAre("checkpoint", "source"));
}

}  // namespace
}  // namespace tercio::checkpoint
