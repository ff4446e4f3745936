#include "checkpoint/megatron/names.h"

#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/megatron/model_form.h"
#include "common/check.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

// A tensor of the model, and its names in both layouts. '*' stands for the number of the layer.
// Rows whose canonical tensors a model lacks are left out.
struct MegatronRow {
  const char* legacy;
  const char* core;
  std::vector<const char*> ours;
  MegatronCut cut = MegatronCut::kWhole;
};

using Stage = MegatronStage;
using Cut = MegatronCut;

// Names: state_dict_for_save_checkpoint in Megatron-LM's megatron/model/{language_model,bert_model,
// classification}.py, and the modules of megatron/core/models/{gpt,bert} and core/transformer. The
// tables are never destroyed, since threads may use them until the process ends.
const std::vector<MegatronRow>& FirstRows() {
  static const auto* const rows =
      new std::vector<MegatronRow>{{"language_model/embedding/word_embeddings/weight",
                                    "embedding.word_embeddings.weight",
                                    {"embedding.token.weight"},
                                    Cut::kRows},
                                   {"language_model/embedding/position_embeddings/weight",
                                    "embedding.position_embeddings.weight",
                                    {"embedding.position.weight"}},
                                   {"language_model/embedding/tokentype_embeddings/weight",
                                    "embedding.tokentype_embeddings.weight",
                                    {"embedding.type.weight"}}};
  return *rows;
}

constexpr char kLegacyLayer[] = "language_model/encoder/layers.*.";
constexpr char kCoreLayer[] = "decoder.layers.*.";

// Names in a layer, without the prefixes above.
const std::vector<MegatronRow>& LayerRows() {
  static const auto* const rows = new std::vector<MegatronRow>{
      {"input_layernorm.weight", "input_layernorm.weight", {"layers.*.attention_norm.weight"}},
      {"input_layernorm.bias", "input_layernorm.bias", {"layers.*.attention_norm.bias"}},
      {"self_attention.query_key_value.weight",
       "self_attention.linear_qkv.weight",
       {"layers.*.attention.query.weight", "layers.*.attention.key.weight",
        "layers.*.attention.value.weight"},
       Cut::kRows},
      {"self_attention.query_key_value.bias",
       "self_attention.linear_qkv.bias",
       {"layers.*.attention.query.bias", "layers.*.attention.key.bias",
        "layers.*.attention.value.bias"},
       Cut::kRows},
      {"self_attention.dense.weight",
       "self_attention.linear_proj.weight",
       {"layers.*.attention.output.weight"},
       Cut::kColumns},
      {"self_attention.dense.bias",
       "self_attention.linear_proj.bias",
       {"layers.*.attention.output.bias"}},
      {"post_attention_layernorm.weight", "pre_mlp_layernorm.weight", {"layers.*.mlp_norm.weight"}},
      {"post_attention_layernorm.bias", "pre_mlp_layernorm.bias", {"layers.*.mlp_norm.bias"}},
      // With a gate, a rank holds its rows of the gate above its rows of the other part.
      {"mlp.dense_h_to_4h.weight",
       "mlp.linear_fc1.weight",
       {"layers.*.mlp.gate.weight", "layers.*.mlp.up.weight"},
       Cut::kRows},
      {"mlp.dense_h_to_4h.bias", "mlp.linear_fc1.bias", {"layers.*.mlp.up.bias"}, Cut::kRows},
      {"mlp.dense_4h_to_h.weight",
       "mlp.linear_fc2.weight",
       {"layers.*.mlp.down.weight"},
       Cut::kColumns},
      {"mlp.dense_4h_to_h.bias", "mlp.linear_fc2.bias", {"layers.*.mlp.down.bias"}}};
  return *rows;
}

const std::vector<MegatronRow>& LastRows() {
  static const auto* const rows = new std::vector<MegatronRow>{
      {"language_model/encoder/final_layernorm.weight",
       "decoder.final_layernorm.weight",
       {"final_norm.weight"}},
      {"language_model/encoder/final_layernorm.bias",
       "decoder.final_layernorm.bias",
       {"final_norm.bias"}},
      {"language_model/pooler/dense.weight", "pooler.dense.weight", {"pooler.weight"}},
      {"language_model/pooler/dense.bias", "pooler.dense.bias", {"pooler.bias"}},
      {"language_model/output_layer/weight", "output_layer.weight", {"head.weight"}, Cut::kRows},
      {"lm_head/dense.weight", "lm_head.dense.weight", {"head.transform.weight"}},
      {"lm_head/dense.bias", "lm_head.dense.bias", {"head.transform.bias"}},
      {"lm_head/layernorm.weight", "lm_head.layer_norm.weight", {"head.norm.weight"}},
      {"lm_head/layernorm.bias", "lm_head.layer_norm.bias", {"head.norm.bias"}},
      {"lm_head/bias", "output_layer.bias", {"head.bias"}, Cut::kRows},
      {"binary_head/weight", "binary_head.weight", {"sentence_order.weight"}},
      {"binary_head/bias", "binary_head.bias", {"sentence_order.bias"}},
      {"classification_head/weight", "classification_head.weight", {"classifier.weight"}},
      {"classification_head/bias", "classification_head.bias", {"classifier.bias"}}};
  return *rows;
}

struct Renaming {
  std::string_view prefix;
  std::string_view plain;
};

// Inside of a layer; the first that fits counts. `attention` until 2021, `..._norm` in the legacy
// layout since 2023 (both renamed as they are loaded, megatron/model/{language_model,
// transformer}.py); `linear_...` of the core; `layernorm_...` of the legacy layout with Transformer
// Engine's whole layers.
constexpr Renaming kLayerRenamings[] = {
    {"attention.query_key_value.", "self_attention.query_key_value."},
    {"attention.dense.", "self_attention.dense."},
    {"input_norm.", "input_layernorm."},
    {"self_attention.linear_qkv.layer_norm_", "input_layernorm."},
    {"self_attention.layernorm_qkv.layer_norm_", "input_layernorm."},
    {"self_attention.linear_qkv.", "self_attention.query_key_value."},
    {"self_attention.layernorm_qkv.", "self_attention.query_key_value."},
    {"self_attention.linear_proj.", "self_attention.dense."},
    {"self_attention.proj.", "self_attention.dense."},
    {"post_attention_norm.", "post_attention_layernorm."},
    {"pre_mlp_layernorm.", "post_attention_layernorm."},
    {"mlp.linear_fc1.layer_norm_", "post_attention_layernorm."},
    {"layernorm_mlp.layer_norm_", "post_attention_layernorm."},
    {"mlp.linear_fc1.", "mlp.dense_h_to_4h."},
    {"layernorm_mlp.fc1_", "mlp.dense_h_to_4h."},
    {"mlp.linear_fc2.", "mlp.dense_4h_to_h."},
    {"layernorm_mlp.fc2_", "mlp.dense_4h_to_h."}};

// Outside of layers.
constexpr Renaming kOtherRenamings[] = {{"final_norm.", "final_layernorm."},
                                        {"lm_head.norm.", "lm_head.layernorm."},
                                        {"lm_head.layer_norm.", "lm_head.layernorm."},
                                        {"output_layer.bias", "lm_head.bias"}};

constexpr std::string_view kLayers = "layers.";

// The name with the first prefix of the table that fits replaced.
template <size_t N>
std::string Renamed(const Renaming (&table)[N], std::string_view name) {
  for (const Renaming& row : table) {
    if (name.substr(0, row.prefix.size()) != row.prefix) continue;
    return absl::StrCat(std::string(row.plain), std::string(name.substr(row.prefix.size())));
  }
  return std::string(name);
}

bool Strip(std::string_view prefix, std::string_view* name) {
  if (name->substr(0, prefix.size()) != prefix) return false;
  name->remove_prefix(prefix.size());
  return true;
}

class MegatronTable {
 public:
  explicit MegatronTable(const v1::ModelSpec& model) : encoder_(!MegatronFormOf(model).causal) {
    for (plan::LogicalTensor& tensor : plan::ModelTensors(model)) {
      std::string name = tensor.name;
      ours_.emplace(std::move(name), std::move(tensor));
    }
  }

  void Add(const std::vector<MegatronRow>& rows, Stage stage, int layer) {
    const bool in_layer = stage == Stage::kOfLayer;
    const std::string number = absl::StrCat(layer);
    for (const MegatronRow& row : rows) {
      MegatronTensor tensor;
      for (const char* part : row.ours) {
        AddPart(absl::StrReplaceAll(part, {{"*", number}}), &tensor);
      }
      if (tensor.parts.empty()) continue;
      tensor.legacy = absl::StrCat(in_layer ? kLegacyLayer : "", row.legacy);
      tensor.core = absl::StrCat(in_layer ? kCoreLayer : "", row.core);
      // The block of layers is called by what it is in each of the core's models.
      if (encoder_) tensor.core = absl::StrReplaceAll(tensor.core, {{"decoder.", "encoder."}});
      tensor.name =
          MegatronPlainName(absl::StrReplaceAll(tensor.legacy, {{"/", "."}, {"*", number}}));
      tensor.stage = stage;
      tensor.layer = in_layer ? layer : -1;
      tensor.cut = row.cut;
      tensors_.push_back(std::move(tensor));
    }
  }

  std::vector<MegatronTensor> Finish() {
    // A canonical tensor without a row would be lost without a word.
    TERCIO_CHECK(parts_ == ours_.size());
    return std::move(tensors_);
  }

 private:
  void AddPart(const std::string& part, MegatronTensor* tensor) {
    const auto found = ours_.find(part);
    if (found == ours_.end()) return;
    const plan::LogicalTensor& logical = found->second;
    tensor->parts.push_back(logical.name);
    tensor->rows += logical.rows;
    tensor->columns = logical.columns;
    tensor->is_vector = logical.is_vector;
    tensor->vocabulary = logical.vocabulary;
    ++parts_;
  }

  const bool encoder_;
  std::map<std::string, plan::LogicalTensor> ours_;
  std::vector<MegatronTensor> tensors_;
  size_t parts_ = 0;
};

}  // namespace

std::vector<MegatronTensor> MegatronTensors(const v1::ModelSpec& model) {
  MegatronTable table(model);
  table.Add(FirstRows(), Stage::kFirst, 0);
  for (int layer = 0; layer < model.layers(); ++layer) {
    table.Add(LayerRows(), Stage::kOfLayer, layer);
  }
  table.Add(LastRows(), Stage::kLast, 0);
  return table.Finish();
}

MegatronTensor MegatronTiedHead(const v1::ModelSpec& model) {
  MegatronTensor tensor = MegatronTensors(model).front();
  tensor.stage = Stage::kLast;
  tensor.name = "word_embeddings_for_head.weight";
  tensor.legacy = "word_embeddings_for_head/weight";
  // The core has an output layer on the last stage whether its table is tied or not.
  tensor.core = "output_layer.weight";
  return tensor;
}

std::string MegatronPlainName(std::string_view stored) {
  std::string_view name = stored;
  const bool legacy = Strip("language_model.", &name);
  // In the legacy layout a decoder is that of T5, which is another model.
  if (!Strip("transformer.", &name) && !Strip("encoder.", &name) && !legacy) {
    Strip("decoder.", &name);
  }
  const int64_t layer = LayerOfMegatronName(name);
  if (layer < 0) return Renamed(kOtherRenamings, name);
  const size_t rest = name.find('.', kLayers.size()) + 1;
  return absl::StrCat(std::string(kLayers), layer, ".",
                      Renamed(kLayerRenamings, name.substr(rest)));
}

bool IsIgnoredByMegatron(std::string_view plain) {
  for (const std::string_view suffix :
       {"_extra_state", "rotary_pos_emb.inv_freq", "rotary_emb.inv_freq"}) {
    if (plain.size() >= suffix.size() && plain.substr(plain.size() - suffix.size()) == suffix) {
      return true;
    }
  }
  return false;
}

int64_t LayerOfMegatronName(std::string_view plain) {
  if (!Strip(kLayers, &plain)) return -1;
  const size_t dot = plain.find('.');
  int32_t layer = -1;
  // The whole of the text must be a number as it is written here: "07" would be a second name.
  if (dot == std::string_view::npos ||
      !absl::SimpleAtoi(std::string(plain.substr(0, dot)), &layer) || layer < 0 ||
      absl::StrCat(layer) != plain.substr(0, dot)) {
    return -1;
  }
  return layer;
}

}  // namespace tercio::checkpoint
