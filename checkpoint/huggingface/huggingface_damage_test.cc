// Hugging Face directories that are not as they should be: each fault is named, no bytes crash; and
// the variants that older programs wrote are read.
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/config.h"
#include "checkpoint/huggingface/export.h"
#include "checkpoint/huggingface/import.h"
#include "checkpoint/huggingface/weights.h"
#include "checkpoint/safetensors.h"
#include "common/file.h"
#include "common/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr char kFixtures[] = "tests/huggingface/fixtures/";

struct Tensor {
  TensorEntry entry;
  std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

Tensors ReadTensors(const std::string& path) {
  const std::string file = *ReadFile(path);
  const auto layout = ParseSafetensors(file, static_cast<int64_t>(file.size()));
  EXPECT_TRUE(layout.ok()) << layout.status();
  Tensors tensors;
  for (const TensorEntry& entry : layout->tensors) {
    tensors[entry.name] = {entry, file.substr(static_cast<size_t>(layout->data_begin + entry.begin),
                                              static_cast<size_t>(entry.end - entry.begin))};
  }
  return tensors;
}

// Not durably: there is much to write.
void Put(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

void WriteTensors(const Tensors& tensors, const std::string& path) {
  std::vector<TensorEntry> entries;
  std::string bytes;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back(tensor.entry);
    entries.back().name = name;
    bytes += tensor.bytes;
  }
  Put(path, SafetensorsHeader(&entries, "pt") + bytes);
}

class DamageTest : public ::testing::Test {
 protected:
  std::string File(const std::string& name) const { return absl::StrCat(directory_, "/", name); }

  // A fresh copy of a fixture.
  void Use(const std::string& fixture) {
    directory_ = absl::StrCat(dir_.path(), "/", ++count_);
    ASSERT_TRUE(MakeDirectories(directory_).ok());
    for (const std::string& name : ListDirectory(kFixtures + fixture)) {
      const auto content = ReadFile(absl::StrCat(kFixtures, fixture, "/", name));
      ASSERT_TRUE(content.ok());
      Put(File(name), *content);
    }
  }
  void ChangeConfig(const Json& changes) {
    Json config = Json::parse(*ReadFile(File("config.json")));
    config.update(changes);
    Put(File("config.json"), config.dump());
  }
  void ChangeTensors(const std::function<void(Tensors&)>& change) {
    Tensors tensors = ReadTensors(File(kHuggingFaceFile));
    change(tensors);
    WriteTensors(tensors, File(kHuggingFaceFile));
  }
  void ChangeIndex(const std::function<void(Json&)>& change) {
    Json index = Json::parse(*ReadFile(File(kHuggingFaceIndex)));
    change(index["weight_map"]);
    Put(File(kHuggingFaceIndex), index.dump());
  }

  void ExpectFault(absl::StatusCode code, const std::string& what) {
    const auto model = HuggingFaceModel::Open(directory_);
    EXPECT_EQ(model.status().code(), code) << model.status();
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(what));
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(directory_));
  }
  void ExpectGood() {
    const auto model = HuggingFaceModel::Open(directory_);
    EXPECT_TRUE(model.ok()) << model.status();
  }

  TempDir dir_;
  std::string directory_;
  int count_ = 0;
};

constexpr auto kLacking = absl::StatusCode::kInvalidArgument;
constexpr auto kDamaged = absl::StatusCode::kDataLoss;

TEST_F(DamageTest, WhatTercioLacksIsRefusedByName) {
  const struct {
    const char* fixture;
    Json change;
    const char* what;
  } cases[] = {
      {"gpt2", {{"model_type", "bloom"}}, "model_type: \"bloom\""},
      {"gpt2", {{"activation_function", "relu"}}, "activation_function: \"relu\""},
      {"gpt2", {{"scale_attn_weights", false}}, "scale_attn_weights: false"},
      {"gpt2",
       {{"scale_attn_by_inverse_layer_idx", true}},
       "scale_attn_by_inverse_layer_idx: true"},
      {"gpt2", {{"add_cross_attention", true}}, "add_cross_attention: true"},
      {"gpt2", {{"quantization_config", {{"bits", 4}}}}, "quantization_config"},
      {"gpt2", {{"n_head", 5}}, "hidden size 32 is not a multiple of 5 heads"},
      {"llama", {{"attention_bias", true}}, "attention_bias: true"},
      {"llama", {{"mlp_bias", true}}, "mlp_bias: true"},
      {"llama", {{"hidden_act", "gelu"}}, "hidden_act: \"gelu\""},
      {"llama", {{"head_dim", 16}}, "head_dim: 16 (hidden size / heads is 8)"},
      {"llama", {{"num_key_value_heads", 3}}, "num_key_value_heads 3 does not divide the 4 heads"},
      {"llama", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor"},
      {"llama", {{"rope_parameters", {{"rope_type", "yarn"}}}}, "rope_type: \"yarn\""},
      {"llama",
       {{"rope_parameters", nullptr}, {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}},
       "rope_type: \"linear\""},
  };
  for (const auto& item : cases) {
    Use(item.fixture);
    ChangeConfig(item.change);
    ExpectFault(kLacking, item.what);
  }
  Use("llama");
  ChangeConfig({{"attention_bias", true}, {"hidden_act", "gelu"}});
  ExpectFault(kLacking,
              "hidden_act: \"gelu\" (supported: silu, swish) is not supported by this "
              "version; attention_bias: true is not supported by this version");
}

TEST_F(DamageTest, AConfigurationThatIsNone) {
  const struct {
    Json change;
    const char* what;
  } cases[] = {
      {{{"n_layer", nullptr}}, "n_layer is missing"},
      {{{"n_layer", 0}}, "n_layer is 0"},
      {{{"n_embd", "wide"}}, "n_embd is \"wide\", expected a whole number"},
      {{{"n_embd", -32}}, "n_embd is -32"},
      {{{"n_embd", 1e300}}, "n_embd is 1e+300"},
      {{{"vocab_size", Json::array()}}, "vocab_size is []"},
      {{{"layer_norm_epsilon", -1}}, "layer_norm_epsilon is -1"},
      {{{"tie_word_embeddings", 1}}, "tie_word_embeddings is 1, expected true or false"},
      {{{"model_type", nullptr}}, "model_type is missing"},
      {{{"n_layer", 1 << 24}}, "config.json says 16777216 layers, but the files hold 28 tensors"},
  };
  for (const auto& item : cases) {
    Use("gpt2");
    ChangeConfig(item.change);
    ExpectFault(kDamaged, item.what);
  }
  Put(File("config.json"), "[1]");
  ExpectFault(kDamaged, "not a JSON map");
  Use("llama");
  ChangeConfig({{"rope_parameters", {{"rope_type", "llama3"}}}});
  ExpectFault(kDamaged, "the llama3 rotary scaling is missing factor");
}

TEST_F(DamageTest, TensorsAreNamed) {
  const std::string bias = "transformer.h.1.mlp.c_fc.bias";
  const struct {
    std::function<void(Tensors&)> change;
    absl::StatusCode code;
    std::string what;
  } cases[] = {
      {[&](Tensors& t) { t.erase(bias); }, kDamaged, "tensor " + bias + " is missing"},
      {[&](Tensors& t) { t["extra.weight"] = t[bias]; }, kDamaged,
       "tensor extra.weight does not belong to a gpt2 of this size"},
      {[&](Tensors& t) { t["transformer.h.2.mlp.c_fc.bias"] = t[bias]; }, kDamaged,
       "tensor transformer.h.2.mlp.c_fc.bias does not belong to a gpt2"},
      {[&](Tensors& t) {
         t[bias].entry.shape = {8, 5};
       },
       kDamaged, "tensor " + bias + " has shape [8, 5], config.json gives [40]"},
      {[&](Tensors& t) { t[bias].entry.dtype = "I32"; }, kLacking,
       "tensor " + bias + " has dtype I32, this version reads F32, F16, BF16 and F64"},
      {[&](Tensors& t) { t["h.1.mlp.c_fc.bias"] = t[bias]; }, kDamaged, "appears twice"},
      {[&](Tensors& t) {
         t["lm_head.weight"] = t["transformer.wte.weight"];
         t["lm_head.weight"].bytes[9] ^= 1;
       },
       kDamaged, "lm_head.weight differs from "},
      {[](Tensors& t) { t.clear(); }, kDamaged, "the files hold 0 tensors"},
  };
  for (const auto& item : cases) {
    Use("gpt2");
    ChangeTensors(item.change);
    ExpectFault(item.code, item.what);
  }
}

// Files of torch hold T5's table once for each stack, and the head's if it is tied; one is enough.
TEST_F(DamageTest, CopiesOfATableAreEqual) {
  const std::string encoder = "encoder.embed_tokens.weight";
  const std::string decoder = "decoder.embed_tokens.weight";
  for (const char* fixture : {"t5", "t5_gated"}) {
    const auto copy = [&](Tensors& t) { t[encoder] = t[decoder] = t["shared.weight"]; };
    Use(fixture);
    ChangeTensors(copy);
    ExpectGood();
    ChangeTensors([](Tensors& t) { t.erase("shared.weight"); });
    ExpectGood();
    ChangeTensors([&](Tensors& t) { t[encoder].bytes[3] ^= 1; });
    ExpectFault(kDamaged, " differs from ");
    Use(fixture);
    ChangeTensors(copy);
    ChangeTensors([&](Tensors& t) { t[decoder].bytes[3] ^= 1; });
    ExpectFault(kDamaged, decoder + " differs from shared.weight, of which it is a copy");
  }
  Use("t5_gated");
  ChangeTensors([](Tensors& t) { t.erase("lm_head.weight"); });
  ExpectFault(kDamaged, "tensor lm_head.weight is missing");
  // Layers of both stacks count.
  ChangeConfig({{"num_decoder_layers", 1 << 20}});
  ExpectFault(kDamaged, "config.json says 1048578 layers, but the files hold");
  Use("t5");
  ChangeTensors([](Tensors& t) {
    t["decoder.block.3.layer.0.layer_norm.weight"] = t["decoder.final_layer_norm.weight"];
  });
  ExpectFault(kDamaged, "decoder.block.3.layer.0.layer_norm.weight does not belong to a t5");
}

TEST_F(DamageTest, FilesAndTheirIndex) {
  Use("gpt2");
  ASSERT_TRUE(RemoveTree(File(kHuggingFaceFile)).ok());
  ExpectFault(absl::StatusCode::kNotFound, "has neither model.safetensors nor");
  Put(File("pytorch_model.bin"), "x");
  ExpectFault(kLacking, "pytorch_model.bin: not a file that torch.save wrote");
  const std::string first = "model-00001-of-00003.safetensors";
  Use("llama");
  ASSERT_TRUE(RemoveTree(File(first)).ok());
  ExpectFault(absl::StatusCode::kNotFound, first);
  Use("llama");
  ChangeIndex([&](Json& map) { map["lm_head.weight"] = "model-00003-of-00003.safetensors"; });
  ChangeIndex([&](Json& map) { map["model.norm.weight"] = first; });
  ExpectFault(kDamaged, "tensor model.norm.weight is not in " + first);
  Use("llama");
  ChangeIndex([&](Json& map) { map.erase("model.norm.weight"); });
  ExpectFault(kDamaged, "model.norm.weight of model-0000");
  for (const char* outside : {"../model.safetensors", "..", "", "a/b"}) {
    Use("llama");
    ChangeIndex([&](Json& map) { map["model.norm.weight"] = outside; });
    ExpectFault(kDamaged, "tensor model.norm.weight is not in a file of this directory");
  }
  Put(File(kHuggingFaceIndex), "{}");
  ExpectFault(kDamaged, "has no weight_map");
}

// Offsets that lie, in a header that is otherwise right.
TEST_F(DamageTest, OffsetsAreChecked) {
  const auto with_header = [&](const std::function<void(Json&)>& change) {
    Use("gpt2");
    const std::string file = *ReadFile(File(kHuggingFaceFile));
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    Json header = Json::parse(file.substr(8, length));
    change(header);
    const std::string text = header.dump();
    const uint64_t changed_length = text.size();
    const std::string changed =
        std::string(reinterpret_cast<const char*>(&changed_length), sizeof(changed_length)) + text +
        file.substr(8 + length);
    Put(File(kHuggingFaceFile), changed);
  };
  const std::string name = "transformer.h.0.attn.c_attn.weight";
  with_header([](Json&) {});
  ExpectGood();
  with_header([&](Json& h) { h[name]["data_offsets"] = {0, 32 * 96 * 4}; });
  ExpectFault(kDamaged, "overlaps the tensor before it");
  with_header([&](Json& h) { h[name]["shape"] = {32, 95}; });
  ExpectFault(kDamaged, "which does not match its shape");
  with_header([&](Json& h) { h[name]["shape"] = {uint64_t{1} << 62, uint64_t{1} << 62}; });
  ExpectFault(kDamaged, "which does not match its shape");
  with_header([&](Json& h) { h[name]["shape"] = {~uint64_t{0}, 1}; });
  ExpectFault(kDamaged, "bad shape");
  with_header([&](Json& h) { h[name]["data_offsets"] = {384, ~uint64_t{0}}; });
  ExpectFault(kDamaged, "lies outside the file");
  with_header([&](Json& h) { h[name]["data_offsets"] = {1 << 30, (1 << 30) + 12288}; });
  ExpectFault(kDamaged, "lies outside the file");
  with_header([&](Json& h) { h[name]["dtype"] = "F7"; });
  ExpectFault(kDamaged, "unknown dtype F7");
  with_header([&](Json& h) { h.erase(name); });
  ExpectFault(kDamaged, "follows a gap");
}

// What the published gpt2 looks like: no prefix, causal masks among the weights, the head repeated.
TEST_F(DamageTest, OlderFormsAreReadAndComeBackUnchanged) {
  Use("gpt2");
  const auto usual = HuggingFaceModel::Open(directory_);
  ASSERT_TRUE(usual.ok());
  const std::string usual_directory = directory_;
  Use("gpt2");
  ChangeTensors([](Tensors& tensors) {
    Tensors renamed;
    for (auto& [name, tensor] : tensors) renamed[name.substr(strlen("transformer."))] = tensor;
    TensorEntry mask;
    mask.shape = {1, 1, 16, 16};
    mask.dtype = "BOOL";
    renamed["h.0.attn.bias"] = {mask, std::string(256, '\1')};
    mask.shape = {};
    mask.dtype = "F16";
    renamed["h.1.attn.masked_bias"] = {mask, "\x70\xf8"};
    renamed["lm_head.weight"] = renamed["wte.weight"];
    tensors = renamed;
  });
  Put(File("vocab.json"), "{\"a\": 0}");
  Put(File("merges.txt"), "");
  const auto model = HuggingFaceModel::Open(directory_);
  ASSERT_TRUE(model.ok()) << model.status();
  for (const plan::LogicalTensor& tensor : plan::ModelTensors((*model)->model())) {
    v1::TensorSlice slice;
    slice.set_tensor(tensor.name);
    slice.add_shape(tensor.rows);
    if (!tensor.is_vector) slice.add_shape(tensor.columns);
    slice.set_row_end(tensor.rows);
    slice.set_column_end(tensor.columns);
    std::vector<float> a(static_cast<size_t>(tensor.rows * tensor.columns), 1);
    std::vector<float> b(a.size(), 2);
    ASSERT_TRUE((*usual)->ReadSlice(slice, a.data()).ok());
    ASSERT_TRUE((*model)->ReadSlice(slice, b.data()).ok());
    EXPECT_EQ(a, b) << tensor.name;
  }
  const std::string checkpoint = dir_.path() + "/checkpoint";
  const std::string out = dir_.path() + "/out";
  ASSERT_TRUE(ImportHuggingFace(directory_, checkpoint).ok());
  const auto exported = ExportHuggingFace(checkpoint, out, {});
  ASSERT_TRUE(exported.ok()) << exported.status();
  ASSERT_EQ(ListDirectory(out), ListDirectory(directory_));
  for (const std::string& name : ListDirectory(out)) {
    EXPECT_EQ(*ReadFile(out + "/" + name), *ReadFile(File(name))) << name;
  }
}

TEST_F(DamageTest, KeptFilesStayInTheirDirectory) {
  Use("gpt2");
  const std::string checkpoint = dir_.path() + "/checkpoint";
  ASSERT_TRUE(ImportHuggingFace(directory_, checkpoint).ok());
  Json manifest = Json::parse(*ReadFile(checkpoint + "/manifest.json"));
  manifest["version"] = 2;  // which has no digest of itself
  manifest["files"]["hf/../../escaped.json"] = manifest["files"]["hf/config.json"];
  Put(checkpoint + "/manifest.json", manifest.dump());
  const std::string config = *ReadFile(File("config.json"));
  Put(dir_.path() + "/escaped.json", config);
  const auto result = ExportHuggingFace(checkpoint, dir_.path() + "/deep/out", {});
  EXPECT_EQ(result.status().code(), kDamaged) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("not in its directory"));
}

// Truncations and flipped bytes end in an error or in a model that can be read.
TEST_F(DamageTest, NoBytesCrash) {
  const uint32_t seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  const struct {
    const char* fixture;
    const char* file;
  } targets[] = {{"gpt2", "config.json"},
                 {"gpt2", kHuggingFaceFile},
                 {"llama", "config.json"},
                 {"llama", kHuggingFaceIndex},
                 {"llama", "model-00002-of-00003.safetensors"}};
  int refused = 0;
  for (const auto& target : targets) {
    Use(target.fixture);
    const std::string good = *ReadFile(File(target.file));
    for (int round = 0; round < 60; ++round) {
      std::string bad = good;
      // Most of the damage where there is something to understand.
      const size_t reach = std::min<size_t>(good.size(), 3000);
      if (round % 3 == 0) {
        bad.resize(random() % good.size());
      } else {
        for (uint32_t i = 0; i <= random() % 4; ++i) {
          bad[random() % reach] = static_cast<char>(random());
        }
      }
      Put(File(target.file), bad);
      const auto model = HuggingFaceModel::Open(directory_);
      refused += !model.ok();
      if (!model.ok()) continue;
      for (const plan::LogicalTensor& tensor : plan::ModelTensors((*model)->model())) {
        v1::TensorSlice slice;
        slice.set_tensor(tensor.name);
        slice.add_shape(tensor.rows);
        if (!tensor.is_vector) slice.add_shape(tensor.columns);
        slice.set_row_end(tensor.rows);
        slice.set_column_end(tensor.columns);
        std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.columns));
        EXPECT_TRUE((*model)->ReadSlice(slice, values.data()).ok());
      }
    }
  }
  EXPECT_GT(refused, 150);
}

}  // namespace
}  // namespace tercio::checkpoint
