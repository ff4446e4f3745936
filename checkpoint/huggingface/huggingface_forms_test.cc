// The forms of architectures: config.json both ways, names and shapes of tensors beside the files
// that transformers wrote, and what cannot be expressed; also for architectures that the engine
// does not train yet. tests/huggingface/make_fixtures.py wrote the fixtures.
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/huggingface/config.h"
#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/names.h"
#include "checkpoint/safetensors.h"
#include "common/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/architectures/registry.h"
#include "nlohmann/json.hpp"
#include "plan/model_tensors.h"
#include "plan/names.h"

namespace tercio::checkpoint {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kFurther[] = {"opt",   "gptj",    "gpt_neox", "phi", "phi3",    "qwen2",
                                    "qwen3", "mistral", "gemma2",   "t5",  "t5_gated"};

std::string FixtureFile(const std::string& name) {
  return *ReadFile(absl::StrCat("tests/huggingface/fixtures/", name));
}
Json ConfigOf(const std::string& fixture) {
  return Json::parse(FixtureFile(fixture + "/config.json"));
}

struct ReadConfig {
  v1::ModelSpec model;
  absl::Status status;
};
ReadConfig Read(const Json& written) {
  // As from a file: whole numbers that C++ writes as int are not of JSON's unsigned type.
  const Json json = Json::parse(written.dump());
  const HuggingFaceForm* form = FindForm(json.value("model_type", ""));
  EXPECT_NE(form, nullptr) << json.dump();
  if (form == nullptr) return {};
  ConfigReader config(json, "config.json");
  ReadConfig read;
  read.model = ReadHuggingFaceModel(*form, &config);
  read.status = config.status();
  return read;
}

// The ModelSpec of a fixture as make_fixtures.py wrote it.
v1::ModelSpec SpecOf(const std::string& fixture) {
  const Json json = Json::parse(FixtureFile(fixture + ".json"))["model"];
  v1::ModelSpec model;
  model.set_architecture(FindForm(json["architecture"].get<std::string>())->architecture);
  model.set_layers(json["layers"]);
  model.set_heads(json["heads"]);
  model.set_kv_heads(json["kv_heads"]);
  model.set_hidden(json["hidden"]);
  model.set_ffn_hidden(json["ffn_hidden"]);
  model.set_context(json["context"]);
  model.set_vocab_size(json["vocab_size"]);
  model.set_bias(json["bias"]);
  model.set_untied_head(json["untied_head"]);
  model.set_norm_eps(json["norm_eps"]);
  model.set_rope_theta(json.value("rope_theta", 0.0));
  model.set_head_dim(json.value("head_dim", 0));
  model.set_rotary_dim(json.value("rotary_dim", 0));
  model.set_sliding_window(json.value("sliding_window", 0));
  model.set_attention_softcap(json.value("attention_softcap", 0.0));
  model.set_logit_softcap(json.value("logit_softcap", 0.0));
  model.set_query_scale(json.value("query_scale", 0.0));
  model.set_decoder_layers(json.value("decoder_layers", 0));
  model.set_relative_buckets(json.value("relative_buckets", 0));
  model.set_relative_distance(json.value("relative_distance", 0));
  model.set_gated_mlp(json.value("gated_mlp", false));
  model.set_activation(plan::Named<v1::Activation>(json.value("activation", ""))
                           .value_or(v1::ACTIVATION_UNSPECIFIED));
  return model;
}

TEST(HuggingFaceForms, EveryArchitectureHasOne) {
  for (int i = 1; i < v1::Architecture_descriptor()->value_count(); ++i) {
    const auto architecture =
        static_cast<v1::Architecture>(v1::Architecture_descriptor()->value(i)->number());
    const HuggingFaceForm* form = FindForm(architecture);
    ASSERT_NE(form, nullptr) << architecture;
    for (const std::string_view type : form->model_types) EXPECT_EQ(FindForm(type), form);
    EXPECT_EQ(model::FactsOf(architecture).architecture, architecture);
  }
  EXPECT_EQ(FindForm("qwen2_moe"), nullptr);
}

// A directory of an architecture that the engine does not train is refused before its tensors are
// looked at.
TEST(HuggingFaceForms, WhatIsNotTrainedIsRefused) {
  for (const char* name : kFurther) {
    const auto model = ModelOfHuggingFaceConfig(FixtureFile(absl::StrCat(name, "/config.json")),
                                                "dir/config.json");
    const v1::Architecture architecture = SpecOf(name).architecture();
    const bool trained = plan::IsNamed(architecture);
    EXPECT_EQ(model.ok(), trained) << name << model.status();
    if (trained) continue;
    EXPECT_THAT(
        std::string(model.status().message()),
        HasSubstr(absl::StrCat("dir/config.json: model_type: \"", name, "\" (supported: ")));
    v1::ModelSpec spec;
    spec.set_architecture(architecture);
    EXPECT_FALSE(CheckHasHuggingFaceForm(spec).ok());
  }
}

TEST(HuggingFaceForms, ConfigurationsOfTransformersAreRead) {
  for (const char* name : kFurther) {
    const ReadConfig read = Read(ConfigOf(name));
    EXPECT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(read.model.DebugString(), SpecOf(name).DebugString()) << name;
  }
}

// What is written is read as the same model.
void ExpectWritten(const v1::ModelSpec& model) {
  const HuggingFaceForm& form = FormOf(model);
  EXPECT_TRUE(form.check == nullptr || form.check(model).ok());
  const ReadConfig read = Read(Json::parse(HuggingFaceConfig(model)));
  EXPECT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.model.DebugString(), model.DebugString());
}

TEST(HuggingFaceForms, ConfigurationsAreWritten) {
  for (const char* name : kFurther) ExpectWritten(SpecOf(name));
  const std::pair<const char*, void (*)(v1::ModelSpec*)> changes[] = {
      {"opt", [](v1::ModelSpec* model) { model->set_activation(v1::ACTIVATION_GELU); }},
      {"opt", [](v1::ModelSpec* model) { model->set_untied_head(true); }},
      {"gptj", [](v1::ModelSpec* model) { model->clear_rotary_dim(); }},
      {"gpt_neox", [](v1::ModelSpec* model) { model->clear_rotary_dim(); }},
      {"gpt_neox", [](v1::ModelSpec* model) { model->set_sequential_residual(true); }},
      {"gpt_neox", [](v1::ModelSpec* model) { model->set_activation(v1::ACTIVATION_GELU_TANH); }},
      {"phi3", [](v1::ModelSpec* model) { model->clear_sliding_window(); }},
      {"phi3", [](v1::ModelSpec* model) { model->set_rotary_dim(6); }},
      {"qwen2", [](v1::ModelSpec* model) { model->set_sliding_window(7); }},
      {"qwen3", [](v1::ModelSpec* model) { model->clear_head_dim(); }},
      {"mistral", [](v1::ModelSpec* model) { model->set_head_dim(12); }},
      {"mistral", [](v1::ModelSpec* model) { model->clear_sliding_window(); }},
      {"mistral",
       [](v1::ModelSpec* model) {
         v1::RopeScaling* rope = model->mutable_rope_scaling();
         rope->set_factor(8);
         rope->set_low_freq_factor(1);
         rope->set_high_freq_factor(4);
         rope->set_original_context(16);
       }},
      {"t5", [](v1::ModelSpec* model) { model->set_activation(v1::ACTIVATION_SILU); }},
      {"t5", [](v1::ModelSpec* model) { model->set_gated_mlp(true); }},
      {"t5", [](v1::ModelSpec* model) { model->set_activation(v1::ACTIVATION_GELU_TANH); }},
      {"t5_gated", [](v1::ModelSpec* model) { model->set_activation(v1::ACTIVATION_GELU); }},
      {"t5_gated",
       [](v1::ModelSpec* model) {
         model->clear_relative_buckets();
         model->clear_relative_distance();
       }},
      {"gemma2",
       [](v1::ModelSpec* model) {
         model->clear_sliding_window();
         model->clear_attention_softcap();
         model->clear_logit_softcap();
         model->clear_query_scale();
       }},
  };
  for (const auto& [name, change] : changes) {
    v1::ModelSpec model = SpecOf(name);
    change(&model);
    SCOPED_TRACE(model.DebugString());
    ExpectWritten(model);
  }
}

// transformers cuts off the fraction of a head's channels times the share.
TEST(HuggingFaceForms, EveryNumberOfRotaryChannelsSurvives) {
  v1::ModelSpec model = SpecOf("phi");
  for (int head = 2; head <= 256; head += 2) {
    for (int rotary = 2; rotary < head; rotary += 2) {
      model.set_hidden(head * model.heads());
      model.set_rotary_dim(rotary);
      const ReadConfig read = Read(Json::parse(HuggingFaceConfig(model)));
      ASSERT_EQ(read.model.rotary_dim(), rotary) << head;
    }
  }
}

TEST(HuggingFaceForms, TensorsAreThoseThatTransformersWrote) {
  for (const char* name : kFurther) {
    const std::string file = FixtureFile(absl::StrCat(name, "/model.safetensors"));
    const auto layout = ParseSafetensors(file, static_cast<int64_t>(file.size()));
    ASSERT_TRUE(layout.ok()) << layout.status();
    std::map<std::string, std::vector<int64_t>> theirs;
    for (const TensorEntry& entry : layout->tensors) theirs[entry.name] = entry.shape;
    std::map<std::string, std::vector<int64_t>> ours;
    const v1::ModelSpec model = SpecOf(name);
    std::set<std::string> placed;
    for (const HuggingFaceTensor& tensor : HuggingFaceTensors(model)) {
      ours[tensor.name] = tensor.shape;
      EXPECT_EQ(CurrentSuffix(model, tensor.name), tensor.suffix);
      for (const HuggingFacePart& part : tensor.parts) placed.insert(part.tensor);
    }
    EXPECT_EQ(ours, theirs) << name;
    // A canonical tensor without a row would be lost without a word.
    EXPECT_EQ(placed.size(), plan::ModelTensors(model).size()) << name;
  }
}

// Each output of a joined tensor is that of one part, and those of a head lie together.
TEST(HuggingFaceForms, JoinedTensorsHaveTheirRowsInPlace) {
  const auto outputs = [](const v1::ModelSpec& model, const std::string& suffix) {
    std::map<int64_t, std::pair<std::string, int64_t>> found;
    for (const HuggingFaceTensor& tensor : HuggingFaceTensors(model)) {
      if (tensor.suffix != suffix) continue;
      for (const HuggingFacePart& part : tensor.parts) {
        for (int64_t row = 0; row < part.rows; ++row) {
          EXPECT_TRUE(found.emplace(part.OutputOf(row), std::pair(part.tensor, row)).second);
        }
      }
      EXPECT_EQ(found.size(), static_cast<size_t>(tensor.outputs));
      EXPECT_EQ(found.rbegin()->first, tensor.outputs - 1);
    }
    return found;
  };
  // Two heads of 16 channels.
  const auto neox = outputs(SpecOf("gpt_neox"), "layers.1.attention.query_key_value.weight");
  const std::string at = "layers.1.attention.";
  EXPECT_EQ(neox.at(0), std::pair(at + "query.weight", int64_t{0}));
  EXPECT_EQ(neox.at(15), std::pair(at + "query.weight", int64_t{15}));
  EXPECT_EQ(neox.at(16), std::pair(at + "key.weight", int64_t{0}));
  EXPECT_EQ(neox.at(47), std::pair(at + "value.weight", int64_t{15}));
  EXPECT_EQ(neox.at(48), std::pair(at + "query.weight", int64_t{16}));
  EXPECT_EQ(neox.at(95), std::pair(at + "value.weight", int64_t{31}));
  EXPECT_EQ(outputs(SpecOf("gpt_neox"), "layers.0.attention.query_key_value.bias").at(64),
            std::pair(std::string("layers.0.attention.key.bias"), int64_t{16}));
  // 32 rows of queries, 16 of keys and 16 of values.
  const auto phi3 = outputs(SpecOf("phi3"), "layers.1.self_attn.qkv_proj.weight");
  EXPECT_EQ(phi3.at(31), std::pair(at + "query.weight", int64_t{31}));
  EXPECT_EQ(phi3.at(32), std::pair(at + "key.weight", int64_t{0}));
  EXPECT_EQ(phi3.at(63), std::pair(at + "value.weight", int64_t{15}));
  const auto gate = outputs(SpecOf("phi3"), "layers.1.mlp.gate_up_proj.weight");
  EXPECT_EQ(gate.at(23), std::pair(std::string("layers.1.mlp.gate.weight"), int64_t{23}));
  EXPECT_EQ(gate.at(24), std::pair(std::string("layers.1.mlp.up.weight"), int64_t{0}));
}

TEST(HuggingFaceForms, NamesOfOtherVersionsAreKnown) {
  const v1::ModelSpec neox = SpecOf("gpt_neox");
  EXPECT_EQ(CurrentSuffix(neox, "lm_head.weight"), "embed_out.weight");
  EXPECT_TRUE(IsIgnoredBuffer(neox, CurrentSuffix(neox, "gpt_neox.layers.1.attention.bias")));
  EXPECT_TRUE(IsIgnoredBuffer(SpecOf("gptj"), "h.0.attn.masked_bias"));
  const v1::ModelSpec opt = SpecOf("opt");
  EXPECT_EQ(CurrentSuffix(opt, "decoder.embed_positions.weight"), "decoder.embed_positions.weight");
  EXPECT_EQ(TiedCopyOf(opt, "lm_head.weight"), "decoder.embed_tokens.weight");
  EXPECT_EQ(TiedCopyOf(SpecOf("mistral"), "lm_head.weight"), "");
  // The tables of T5's two stacks are always copies.
  EXPECT_EQ(TiedCopyOf(SpecOf("t5"), "lm_head.weight"), "shared.weight");
  EXPECT_EQ(TiedCopyOf(SpecOf("t5_gated"), "lm_head.weight"), "");
  EXPECT_EQ(TiedCopyOf(SpecOf("t5_gated"), "decoder.embed_tokens.weight"), "shared.weight");
  EXPECT_TRUE(IsIgnoredBuffer(
      SpecOf("t5"), "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"));
}

constexpr auto kLacks = absl::StatusCode::kInvalidArgument;
constexpr auto kBroken = absl::StatusCode::kDataLoss;

struct Refusal {
  const char* fixture;
  Json change;
  absl::StatusCode code;
  const char* what;
};

void ExpectRefusals(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    Json config = ConfigOf(refusal.fixture);
    config.update(refusal.change);
    const ReadConfig read = Read(config);
    EXPECT_EQ(read.status.code(), refusal.code) << refusal.fixture << read.status;
    EXPECT_THAT(std::string(read.status.message()), HasSubstr(refusal.what)) << refusal.fixture;
  }
}

TEST(HuggingFaceForms, WhatCannotBeExpressedIsRefusedByName) {
  ExpectRefusals({

      {"opt", {{"do_layer_norm_before", false}}, kLacks, "do_layer_norm_before: false"},
      {"opt",
       {{"word_embed_proj_dim", 16}},
       kLacks,
       "word_embed_proj_dim: 16 (hidden_size is 32) is not supported"},
      {"opt", {{"enable_bias", false}}, kLacks, "enable_bias: false"},
      {"opt",
       {{"layer_norm_elementwise_affine", false}},
       kLacks,
       "layer_norm_elementwise_affine: false"},
      {"opt", {{"_remove_final_layer_norm", true}}, kLacks, "_remove_final_layer_norm: true"},
      {"opt",
       {{"activation_function", "silu"}},
       kLacks,
       "activation_function: \"silu\" (supported: relu, gelu)"},
      {"opt", {{"ffn_dim", nullptr}}, kBroken, "ffn_dim is missing"},
      {"gptj", {{"rotary_dim", nullptr}}, kLacks, "rotary_dim: null"},
      {"gptj", {{"rotary_dim", 7}}, kLacks, "rotary_dim is 7, expected an even number up to 16"},
      {"gptj", {{"rotary_dim", 18}}, kLacks, "rotary_dim is 18, expected an even number up to 16"},
      {"gptj", {{"activation_function", "gelu"}}, kLacks, "activation_function: \"gelu\""},
      {"gpt_neox", {{"attention_bias", false}}, kLacks, "attention_bias: false"},
      {"gpt_neox", {{"hidden_act", "relu"}}, kLacks, "hidden_act: \"relu\""},
      {"gpt_neox",
       {{"rope_parameters", nullptr}, {"rotary_pct", 0.2}},
       kLacks,
       "rotary positions of 3 of a head's 16 channels"},
  });
}

TEST(HuggingFaceForms, SoIsWhatTheLlamaFamilyCannotExpress) {
  ExpectRefusals({
      {"phi", {{"qk_layernorm", true}}, kLacks, "qk_layernorm: true"},
      {"phi", {{"hidden_act", "gelu"}}, kLacks, "hidden_act: \"gelu\""},
      {"phi3",
       {{"rope_parameters", nullptr},
        {"rope_scaling", {{"type", "longrope"}, {"short_factor", {1, 1, 1, 1}}}}},
       kLacks,
       "rope_scaling: rope_type: \"longrope\""},
      {"qwen2",
       {{"use_sliding_window", true},
        {"sliding_window", 8},
        {"layer_types", nullptr},
        {"max_window_layers", 1}},
       kLacks,
       "max_window_layers: 1 of 2"},
      {"qwen2",
       {{"use_sliding_window", true},
        {"sliding_window", 8},
        {"layer_types", {"full_attention", "sliding_attention"}}},
       kLacks,
       "layer_types: a window in some of the layers"},
      {"qwen3", {{"attention_bias", true}}, kLacks, "attention_bias: true"},
      {"qwen3", {{"head_dim", 300}}, kLacks, "a head size of 300 (at most 256)"},
      {"qwen3", {{"head_dim", 15}}, kLacks, "an odd head size, 15"},
      {"mistral", {{"hidden_act", "gelu"}}, kLacks, "hidden_act: \"gelu\""},
      {"mistral", {{"sliding_window", 0}}, kBroken, "sliding_window is 0"},
      {"gemma2", {{"tie_word_embeddings", false}}, kLacks, "tie_word_embeddings: false"},
      {"gemma2",
       {{"use_bidirectional_attention", true}},
       kLacks,
       "use_bidirectional_attention: true"},
      {"gemma2", {{"hidden_activation", "gelu"}}, kLacks, "hidden_activation: \"gelu\""},
      {"gemma2",
       {{"layer_types", {"full_attention", "sliding_attention"}}},
       kLacks,
       "layer_types: anything else than a window in every other layer"},
      {"gemma2", {{"attn_logit_softcapping", 0}}, kBroken, "attn_logit_softcapping is 0"},
  });
}

TEST(HuggingFaceForms, SoIsWhatT5CannotExpress) {
  ExpectRefusals({
      {"t5", {{"architectures", {"T5EncoderModel"}}}, kLacks, "architectures: \"T5EncoderModel\""},
      {"t5", {{"is_encoder_decoder", false}}, kLacks, "is_encoder_decoder: false"},
      {"t5", {{"is_decoder", true}}, kLacks, "is_decoder: true"},
      {"t5", {{"tie_encoder_decoder", true}}, kLacks, "tie_encoder_decoder: true"},
      {"t5", {{"dense_act_fn", "tanh"}}, kLacks, "dense_act_fn: \"tanh\" is not supported"},
      {"t5",
       {{"dense_act_fn", nullptr}, {"feed_forward_proj", "gated-tanh"}},
       kLacks,
       "feed_forward_proj: \"gated-tanh\" is not supported"},
      {"t5",
       {{"tie_word_embeddings", false}, {"scale_decoder_outputs", true}},
       kLacks,
       "scale_decoder_outputs: true with tie_word_embeddings: false"},
      {"t5", {{"decoder_start_token_id", 2}}, kLacks, "decoder_start_token_id: 2"},
      {"t5", {{"d_kv", 300}}, kLacks, "a head size of 300 (at most 256)"},
      {"t5",
       {{"relative_attention_num_buckets", 512}},
       kLacks,
       "relative_attention_num_buckets: 512 (at most 256)"},
      {"t5", {{"d_model", nullptr}}, kBroken, "d_model is missing"},
  });
}

TEST(HuggingFaceForms, ModelsWithoutAFormAreRefused) {
  const std::tuple<const char*, void (*)(v1::ModelSpec*), const char*> cases[] = {
      {"opt", [](v1::ModelSpec* model) { model->set_norm_eps(1e-6); }, "norm_eps 1e-05"},
      {"opt", [](v1::ModelSpec* model) { model->set_kv_heads(2); }, "as many key heads"},
      {"gptj", [](v1::ModelSpec* model) { model->set_rope_theta(500); }, "rope_theta 10000"},
      {"gptj", [](v1::ModelSpec* model) { model->mutable_rope_scaling(); }, "no rope_scaling"},
      {"gpt_neox", [](v1::ModelSpec* model) { model->set_kv_heads(1); }, "as many key heads"},
      {"phi3", [](v1::ModelSpec* model) { model->mutable_rope_scaling(); }, "no rope_scaling"},
      {"gemma2", [](v1::ModelSpec* model) { model->set_untied_head(true); }, "a head of its own"},
      {"gemma2", [](v1::ModelSpec* model) { model->set_query_scale(1.5); }, "whole numbers"},
      {"t5", [](v1::ModelSpec* model) { model->set_kv_heads(2); }, "as many key heads"},
  };
  for (const auto& [name, change, what] : cases) {
    v1::ModelSpec model = SpecOf(name);
    change(&model);
    const absl::Status status = FormOf(model).check(model);
    EXPECT_EQ(status.code(), kLacks) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
}

// The keys of published files that transformers 4 wrote, with all those that sizes depend on.
const Json& PublishedConfigs() {
  static const auto* const configs = new Json(Json::parse(FixtureFile("published_configs.json")));
  return *configs;
}

// They are the presets of job files.
TEST(HuggingFaceForms, PublishedConfigurationsAreThePresets) {
  for (const auto& [name, config] : PublishedConfigs().items()) {
    const auto preset = model::FindPreset(name);
    ASSERT_TRUE(preset.has_value()) << name;
    v1::ModelSpec expected = model::ModelOf(*preset);
    expected.set_norm_eps(preset->facts->norm_eps);
    // In a preset, as in a job file, the decoder is as deep as the encoder unless it says
    // otherwise.
    if (preset->facts->Has("decoder_layers")) expected.set_decoder_layers(expected.layers());
    const ReadConfig read = Read(config);
    EXPECT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(read.model.DebugString(), expected.DebugString()) << name;
  }
}

// What a file means that lacks a key, or says null.
TEST(HuggingFaceForms, DefaultsAreThoseOfTransformers) {
  const auto with = [](const char* preset, std::initializer_list<const char*> missing,
                       const Json& change = Json::object()) {
    Json config = PublishedConfigs().at(preset);
    for (const char* key : missing) config.erase(key);
    config.update(change);
    const ReadConfig read = Read(config);
    EXPECT_TRUE(read.status.ok()) << read.status;
    return read.model;
  };
  EXPECT_EQ(with("mistral-7b", {"sliding_window"}).sliding_window(), 4096);
  EXPECT_EQ(with("mistral-7b", {}, {{"sliding_window", nullptr}}).sliding_window(), 0);
  EXPECT_EQ(with("mistral-7b", {"num_key_value_heads"}).kv_heads(), 8);
  EXPECT_EQ(with("mistral-7b", {}, {{"num_key_value_heads", nullptr}}).kv_heads(), 32);
  EXPECT_EQ(with("phi3-mini", {"sliding_window"}).sliding_window(), 0);
  EXPECT_EQ(with("qwen3-0.6b", {"head_dim"}).head_dim(), 128);
  EXPECT_EQ(with("gemma2-2b", {"head_dim"}).head_dim(), 256);
  EXPECT_EQ(with("gemma2-2b", {"attn_logit_softcapping"}).attention_softcap(), 50);
  EXPECT_EQ(with("gemma2-2b", {}, {{"attn_logit_softcapping", nullptr}}).attention_softcap(), 0);
  EXPECT_EQ(with("gemma2-2b", {}, {{"query_pre_attn_scalar", 144}}).query_scale(), 144);
  EXPECT_EQ(with("phi-2", {"partial_rotary_factor"}).rotary_dim(), 40);
  EXPECT_EQ(with("pythia-160m", {"rotary_pct"}).rotary_dim(), 16);
  EXPECT_EQ(with("pythia-160m", {}, {{"rotary_pct", 1.0}}).rotary_dim(), 0);
  EXPECT_TRUE(with("pythia-160m", {}, {{"use_parallel_residual", false}}).sequential_residual());
  EXPECT_EQ(with("gptj-6b", {"rotary_dim"}).rotary_dim(), 64);
  EXPECT_EQ(with("qwen2-0.5b", {}, {{"use_sliding_window", true}}).sliding_window(), 0);
  EXPECT_EQ(with("t5-small", {"n_positions"}).context(), 512);
  EXPECT_EQ(with("t5-small", {}, {{"num_decoder_layers", 3}}).decoder_layers(), 3);
  EXPECT_EQ(with("t5-v1.1-small", {"d_kv"}).head_dim(), 64);
  EXPECT_EQ(with("t5-small", {}, {{"feed_forward_proj", "gated-silu"}}).activation(),
            v1::ACTIVATION_SILU);
  // transformers 5 says of every file that the head is tied.
  EXPECT_TRUE(
      with("t5-small", {}, {{"tie_word_embeddings", true}, {"scale_decoder_outputs", false}})
          .untied_head());
  EXPECT_EQ(with("qwen2-0.5b", {}, {{"use_sliding_window", true}, {"max_window_layers", 0}})
                .sliding_window(),
            131072);
}

}  // namespace
}  // namespace tercio::checkpoint
