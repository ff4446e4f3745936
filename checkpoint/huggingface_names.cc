#include "checkpoint/huggingface_names.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/check.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

enum class Form { kPlain, kTransposed };

// '*' stands for the number of the layer. Rows whose canonical tensors a model lacks are left out.
struct Row {
  const char* theirs;
  std::vector<const char*> ours;
  Form form = Form::kPlain;
};

struct Table {
  const char* architecture;
  const char* prefix;  // of all but the head
  std::vector<Row> embedding;
  std::vector<Row> layer;
  std::vector<Row> end;
  std::vector<const char*> ignored;
  const char* token_embedding;
};

constexpr char kHead[] = "lm_head.weight";

const Table& Gpt2() {
  static const Table* const table = new Table{
      "gpt2",
      "transformer.",
      {{"wte.weight", {"embedding.token.weight"}}, {"wpe.weight", {"embedding.position.weight"}}},
      {{"h.*.ln_1.weight", {"layers.*.attention_norm.weight"}},
       {"h.*.ln_1.bias", {"layers.*.attention_norm.bias"}},
       {"h.*.attn.c_attn.weight",
        {"layers.*.attention.query.weight", "layers.*.attention.key.weight",
         "layers.*.attention.value.weight"},
        Form::kTransposed},
       {"h.*.attn.c_attn.bias",
        {"layers.*.attention.query.bias", "layers.*.attention.key.bias",
         "layers.*.attention.value.bias"}},
       {"h.*.attn.c_proj.weight", {"layers.*.attention.output.weight"}, Form::kTransposed},
       {"h.*.attn.c_proj.bias", {"layers.*.attention.output.bias"}},
       {"h.*.ln_2.weight", {"layers.*.mlp_norm.weight"}},
       {"h.*.ln_2.bias", {"layers.*.mlp_norm.bias"}},
       {"h.*.mlp.c_fc.weight", {"layers.*.mlp.up.weight"}, Form::kTransposed},
       {"h.*.mlp.c_fc.bias", {"layers.*.mlp.up.bias"}},
       {"h.*.mlp.c_proj.weight", {"layers.*.mlp.down.weight"}, Form::kTransposed},
       {"h.*.mlp.c_proj.bias", {"layers.*.mlp.down.bias"}}},
      {{"ln_f.weight", {"final_norm.weight"}},
       {"ln_f.bias", {"final_norm.bias"}},
       {kHead, {"head.weight"}}},
      {"h.*.attn.bias", "h.*.attn.masked_bias"},
      "wte.weight"};
  return *table;
}

const Table& Llama() {
  static const Table* const table =
      new Table{"llama",
                "model.",
                {{"embed_tokens.weight", {"embedding.token.weight"}}},
                {{"layers.*.input_layernorm.weight", {"layers.*.attention_norm.weight"}},
                 {"layers.*.self_attn.q_proj.weight", {"layers.*.attention.query.weight"}},
                 {"layers.*.self_attn.k_proj.weight", {"layers.*.attention.key.weight"}},
                 {"layers.*.self_attn.v_proj.weight", {"layers.*.attention.value.weight"}},
                 {"layers.*.self_attn.o_proj.weight", {"layers.*.attention.output.weight"}},
                 {"layers.*.post_attention_layernorm.weight", {"layers.*.mlp_norm.weight"}},
                 {"layers.*.mlp.gate_proj.weight", {"layers.*.mlp.gate.weight"}},
                 {"layers.*.mlp.up_proj.weight", {"layers.*.mlp.up.weight"}},
                 {"layers.*.mlp.down_proj.weight", {"layers.*.mlp.down.weight"}}},
                {{"norm.weight", {"final_norm.weight"}}, {kHead, {"head.weight"}}},
                {"layers.*.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"},
                "embed_tokens.weight"};
  return *table;
}

const Table& TableOf(const std::string& architecture) {
  TERCIO_CHECK(architecture == "gpt2" || architecture == "llama");
  return architecture == "gpt2" ? Gpt2() : Llama();
}

class Expansion {
 public:
  Expansion(const Table& table, const v1::ModelSpec& model) : table_(table) {
    for (plan::LogicalTensor& tensor : plan::ModelTensors(model)) {
      const std::string name = tensor.name;
      ours_.emplace(name, std::move(tensor));
    }
  }

  void Add(const Row& row, int layer) {
    const std::string number = absl::StrCat(layer);
    HuggingFaceTensor tensor;
    tensor.suffix = absl::StrReplaceAll(row.theirs, {{"*", number}});
    tensor.name = tensor.suffix == kHead ? kHead : table_.prefix + tensor.suffix;
    tensor.transposed = row.form == Form::kTransposed;
    for (const char* pattern : row.ours) {
      const auto found = ours_.find(absl::StrReplaceAll(pattern, {{"*", number}}));
      if (found == ours_.end()) return;
      const plan::LogicalTensor& part = found->second;
      tensor.parts.push_back({part.name, tensor.outputs, part.rows});
      tensor.outputs += part.rows;
      tensor.inputs = part.columns;
      tensor.is_vector = part.is_vector;
    }
    tensor.shape = {tensor.outputs};
    if (!tensor.is_vector) tensor.shape.push_back(tensor.inputs);
    if (tensor.transposed) std::swap(tensor.shape[0], tensor.shape[1]);
    tensors.push_back(std::move(tensor));
  }

  std::vector<HuggingFaceTensor> tensors;

 private:
  const Table& table_;
  std::map<std::string, plan::LogicalTensor> ours_;
};

// '*' stands for one or more digits.
bool Matches(std::string_view pattern, std::string_view text) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (text.substr(0, star) != pattern.substr(0, star)) return false;
  size_t end = star;
  while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
  return end > star && text.substr(end) == pattern.substr(star + 1);
}

}  // namespace

std::vector<HuggingFaceTensor> HuggingFaceTensors(const v1::ModelSpec& model) {
  const Table& table = TableOf(model.architecture());
  Expansion expansion(table, model);
  for (const Row& row : table.embedding) expansion.Add(row, 0);
  for (int layer = 0; layer < model.layers(); ++layer) {
    for (const Row& row : table.layer) expansion.Add(row, layer);
  }
  for (const Row& row : table.end) expansion.Add(row, 0);
  return std::move(expansion.tensors);
}

std::string_view WithoutPrefix(const std::string& architecture, std::string_view name) {
  const std::string_view prefix = TableOf(architecture).prefix;
  if (name.substr(0, prefix.size()) == prefix) name.remove_prefix(prefix.size());
  return name;
}

bool IsIgnoredBuffer(const std::string& architecture, std::string_view suffix) {
  for (const char* pattern : TableOf(architecture).ignored) {
    if (Matches(pattern, suffix)) return true;
  }
  return false;
}

std::string_view TiedCopyOf(const v1::ModelSpec& model, std::string_view suffix) {
  if (model.untied_head() || suffix != kHead) return {};
  return TableOf(model.architecture()).token_embedding;
}

}  // namespace tercio::checkpoint
