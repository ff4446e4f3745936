// Architectures against the published sizes of models: the numbers of parameters that transformers
// counts for them (num_parameters).
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "plan/model_tensors.h"

namespace tercio::plan {
namespace {

struct Published {
  const char* name;
  v1::Architecture architecture;
  int layers, hidden, heads, kv_heads, ffn_hidden, context, vocab_size;
  int64_t parameters;
  bool untied_head = false;
  bool bias = false;
  int head_dim = 0;
  int decoder_layers = 0;
  bool gated_mlp = false;
};

constexpr Published kModels[] = {
    {"gpt2", v1::ARCHITECTURE_GPT2, 12, 768, 12, 12, 3072, 1024, 50257, 124439808, false, true},
    {"Llama-3-8B", v1::ARCHITECTURE_LLAMA, 32, 4096, 32, 8, 14336, 8192, 128256, 8030261248, true},
    {"opt-125m", v1::ARCHITECTURE_OPT, 12, 768, 12, 12, 3072, 2048, 50272, 125239296, false, true},
    {"gpt-j-6b", v1::ARCHITECTURE_GPT_J, 28, 4096, 16, 16, 16384, 2048, 50400, 6050882784, true,
     true},
    {"pythia-70m", v1::ARCHITECTURE_GPT_NEOX, 6, 512, 8, 8, 2048, 2048, 50304, 70426624, true,
     true},
    {"phi-2", v1::ARCHITECTURE_PHI, 32, 2560, 32, 32, 10240, 2048, 51200, 2779683840, true, true},
    {"Phi-3-mini", v1::ARCHITECTURE_PHI3, 32, 3072, 32, 32, 8192, 4096, 32064, 3821079552, true},
    {"Qwen2-0.5B", v1::ARCHITECTURE_QWEN2, 24, 896, 14, 2, 4864, 131072, 151936, 494032768},
    {"Qwen3-0.6B", v1::ARCHITECTURE_QWEN3, 28, 1024, 16, 8, 3072, 40960, 151936, 596049920, false,
     false, 128},
    {"Mistral-7B", v1::ARCHITECTURE_MISTRAL, 32, 4096, 32, 8, 14336, 32768, 32000, 7241732096,
     true},
    {"gemma-2-2b", v1::ARCHITECTURE_GEMMA2, 26, 2304, 8, 4, 9216, 8192, 256000, 2614341888, false,
     false, 256},
    {"t5-small", v1::ARCHITECTURE_T5, 6, 512, 8, 8, 2048, 512, 32128, 60506624, false, false, 64,
     6},
    {"t5-v1_1-small", v1::ARCHITECTURE_T5, 8, 512, 6, 6, 1024, 512, 32128, 76961152, true, false,
     64, 8, true},
};

v1::ModelSpec SpecOf(const Published& published) {
  v1::ModelSpec model;
  model.set_architecture(published.architecture);
  model.set_layers(published.layers);
  model.set_hidden(published.hidden);
  model.set_heads(published.heads);
  model.set_kv_heads(published.kv_heads);
  model.set_ffn_hidden(published.ffn_hidden);
  model.set_context(published.context);
  model.set_vocab_size(published.vocab_size);
  model.set_untied_head(published.untied_head);
  model.set_bias(published.bias);
  model.set_head_dim(published.head_dim);
  model.set_decoder_layers(published.decoder_layers);
  model.set_gated_mlp(published.gated_mlp);
  return model;
}

TEST(Architectures, HaveThePublishedNumbersOfParameters) {
  for (const Published& published : kModels) {
    EXPECT_EQ(ParameterCount(SpecOf(published)), published.parameters) << published.name;
  }
}

// Keys by name lie beyond all places of tensors, and no two of them are equal.
TEST(Architectures, KeysOfRandomNumbersDiffer) {
  for (const Published& published : kModels) {
    const bool by_place = published.architecture == v1::ARCHITECTURE_GPT2 ||
                          published.architecture == v1::ARCHITECTURE_LLAMA;
    std::set<uint32_t> keys;
    for (const LogicalTensor& tensor : ModelTensors(SpecOf(published))) {
      EXPECT_EQ(tensor.key < (1u << 24), by_place) << published.name << " " << tensor.name;
      if (tensor.is_vector) continue;
      EXPECT_TRUE(keys.insert(tensor.key).second) << tensor.name;
    }
  }
}

// Layers that are added leave the keys of the others as they are.
TEST(Architectures, KeysByNameDoNotMove) {
  Published small = kModels[2];
  small.layers = 2;
  const std::vector<LogicalTensor> few = ModelTensors(SpecOf(small));
  std::set<std::pair<std::string, uint32_t>> all;
  for (const LogicalTensor& tensor : ModelTensors(SpecOf(kModels[2]))) {
    all.emplace(tensor.name, tensor.key);
  }
  for (const LogicalTensor& tensor : few) EXPECT_TRUE(all.contains({tensor.name, tensor.key}));
}

}  // namespace
}  // namespace tercio::plan
