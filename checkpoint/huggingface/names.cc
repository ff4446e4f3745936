#include "checkpoint/huggingface/names.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/check.h"
#include "plan/model_tensors.h"
#include "plan/names.h"

namespace tercio::checkpoint {
namespace {

enum class Form { kPlain, kTransposed };

// '*' stands for the number of the layer. Rows whose canonical tensors a model lacks are left out.
struct Row {
  std::string theirs;
  std::vector<std::string> ours;
  Form form = Form::kPlain;
};

struct Table {
  const char* prefix;  // prefix of all names except heads
  std::vector<Row> embedding;
  std::vector<Row> layer;
  std::vector<Row> end;
  std::vector<const char*> ignored;
  std::vector<std::pair<const char*, const char*>> tied;  // copy, original
  std::vector<const char*> heads;  // beginnings of the names of other tasks' heads
};

constexpr char kHead[] = "lm_head.weight";

// Tensors that a base model lacks stand beside it, not in it.
bool IsHead(std::string_view suffix) {
  for (const std::string_view head : {"lm_head.", "cls.", "classifier."}) {
    if (suffix.substr(0, head.size()) == head) return true;
  }
  return false;
}

const Table& Gpt2() {
  // The tables are never destroyed, since threads may use them until the process ends.
  static const Table* const table = new Table{
      "transformer.",
      {{"wte.weight", {"embedding.token.weight"}}, {"wpe.weight", {"embedding.position.weight"}}},
      {{"h.*.ln_1.weight", {"layers.*.attention_norm.weight"}},
       {"h.*.ln_1.bias", {"layers.*.attention_norm.bias"}},
       // c_attn has the three projections side by side, in this order.
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
      // Old versions saved causal masks, which follow from the context.
      {"h.*.attn.bias", "h.*.attn.masked_bias"},
      {{kHead, "wte.weight"}},
      {"score.", "classifier.", "multiple_choice_head.", "qa_outputs."}};
  return *table;
}

const Table& Llama() {
  static const Table* const table =
      new Table{"model.",
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
                // Old versions saved the frequencies, which follow from rope_theta.
                {"layers.*.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"},
                {{kHead, "embed_tokens.weight"}},
                {"score.", "qa_outputs."}};
  return *table;
}

// A weight and its bias.
void AddPair(const std::string& theirs, const std::string& ours, std::vector<Row>* rows) {
  for (const char* part : {".weight", ".bias"}) rows->push_back({theirs + part, {ours + part}});
}

// transformers has two classes for the two places of the norms, with names of their own for them.
Table* MakeBert(bool post_norm) {
  auto* table = new Table;
  table->prefix = "bert.";
  table->embedding = {{"embeddings.word_embeddings.weight", {"embedding.token.weight"}},
                      {"embeddings.position_embeddings.weight", {"embedding.position.weight"}},
                      {"embeddings.token_type_embeddings.weight", {"embedding.type.weight"}}};
  // Post-norm normalises the sum of the embeddings, pre-norm the output of the last layer.
  if (post_norm) AddPair("embeddings.LayerNorm", "embedding.norm", &table->embedding);
  const std::string at = "encoder.layer.*.";
  const auto layer = [&](const std::string& theirs, const std::string& ours) {
    AddPair(at + theirs, "layers.*." + ours, &table->layer);
  };
  layer(post_norm ? "attention.output.LayerNorm" : "attention.ln", "attention_norm");
  for (const std::string part : {"query", "key", "value"}) {
    layer("attention.self." + part, "attention." + part);
  }
  layer("attention.output.dense", "attention.output");
  layer(post_norm ? "output.LayerNorm" : "ln", "mlp_norm");
  layer("intermediate.dense", "mlp.up");
  layer("output.dense", "mlp.down");
  if (!post_norm) AddPair("encoder.ln", "final_norm", &table->end);
  // These belong to tasks; Add leaves out those whose tensors the model lacks.
  AddPair("cls.predictions.transform.dense", "head.transform", &table->end);
  AddPair("cls.predictions.transform.LayerNorm", "head.norm", &table->end);
  table->end.push_back({"cls.predictions.bias", {"head.bias"}});
  AddPair("pooler.dense", "pooler", &table->end);
  AddPair("cls.seq_relationship", "sentence_order", &table->end);
  AddPair("classifier", "classifier", &table->end);
  table->ignored = {"embeddings.position_ids"};
  // transformers saves the tied tensors under either name, or under both.
  table->tied = {{"cls.predictions.decoder.weight", "embeddings.word_embeddings.weight"},
                 {"cls.predictions.decoder.bias", "cls.predictions.bias"}};
  table->heads = {"cls.", "pooler.", "classifier.", "qa_outputs."};
  return table;
}

const Table& Bert(bool post_norm) {
  static const Table* const post = MakeBert(true);
  static const Table* const pre = MakeBert(false);
  return post_norm ? *post : *pre;
}

const Table& TableOf(const v1::ModelSpec& model) {
  TERCIO_CHECK(plan::IsNamed(model.architecture()));
  switch (model.architecture()) {
    case v1::ARCHITECTURE_LLAMA:
      return Llama();
    case v1::ARCHITECTURE_BERT:
      return Bert(model.norm() != v1::NORM_PLACEMENT_PRE);
    case v1::ARCHITECTURE_UNSPECIFIED:
    case v1::ARCHITECTURE_GPT2:
    case v1::Architecture_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::Architecture_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return Gpt2();
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
    // Heads stand beside the base model, and have no prefix.
    tensor.name = IsHead(tensor.suffix) ? tensor.suffix : table_.prefix + tensor.suffix;
    tensor.transposed = row.form == Form::kTransposed;
    for (const std::string& pattern : row.ours) {
      const auto found = ours_.find(absl::StrReplaceAll(pattern, {{"*", number}}));
      // A model without this tensor (biases, an untied head, a task) has no such row at all.
      if (found == ours_.end()) return;
      const plan::LogicalTensor& part = found->second;
      tensor.parts.push_back({part.name, tensor.outputs, part.rows});
      tensor.outputs += part.rows;
      // All parts have the same inputs, so the last one may set them.
      tensor.inputs = part.columns;
      tensor.is_vector = part.is_vector;
    }
    tensor.shape = {tensor.outputs};
    if (!tensor.is_vector) tensor.shape.push_back(tensor.inputs);
    // The file has the matrix the other way round: [inputs, outputs].
    if (tensor.transposed) std::swap(tensor.shape[0], tensor.shape[1]);
    tensors.push_back(std::move(tensor));
  }

  std::vector<HuggingFaceTensor> tensors;

 private:
  const Table& table_;
  std::map<std::string, plan::LogicalTensor> ours_;
};

// Whether a module with this path is a norm, by the last part: "LayerNorm", "ln_1", "norm".
bool IsNorm(std::string_view module) {
  const std::string_view last = module.substr(module.rfind('.') + 1);
  return last.starts_with("ln") || last.ends_with("norm") || last.ends_with("Norm");
}

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
  const Table& table = TableOf(model);
  Expansion expansion(table, model);
  for (const Row& row : table.embedding) expansion.Add(row, 0);
  for (int layer = 0; layer < model.layers(); ++layer) {
    for (const Row& row : table.layer) expansion.Add(row, layer);
  }
  for (const Row& row : table.end) expansion.Add(row, 0);
  return std::move(expansion.tensors);
}

std::vector<HuggingFaceTensor> OtherTaskTensors(const v1::ModelSpec& model) {
  if (model.architecture() != v1::ARCHITECTURE_BERT) return {};
  v1::ModelSpec pretrained = model;
  pretrained.clear_labels();
  pretrained.set_sentence_order(true);
  std::set<std::string> own;
  for (HuggingFaceTensor& tensor : HuggingFaceTensors(model)) own.insert(std::move(tensor.suffix));
  std::vector<HuggingFaceTensor> others;
  for (HuggingFaceTensor& tensor : HuggingFaceTensors(pretrained)) {
    if (!own.contains(tensor.suffix)) others.push_back(std::move(tensor));
  }
  return others;
}

std::string CurrentSuffix(const v1::ModelSpec& model, std::string_view name) {
  const std::string_view prefix = TableOf(model).prefix;
  // Files of a base model have no prefix.
  if (name.substr(0, prefix.size()) == prefix) name.remove_prefix(prefix.size());
  for (const auto& [old, current] : {std::pair<std::string_view, const char*>(".gamma", ".weight"),
                                     std::pair<std::string_view, const char*>(".beta", ".bias")}) {
    if (!name.ends_with(old)) continue;
    const std::string_view module = name.substr(0, name.size() - old.size());
    // Only norms had these names, which they took over from TensorFlow.
    if (IsNorm(module)) return std::string(module) + current;
  }
  return std::string(name);
}

bool IsIgnoredBuffer(const v1::ModelSpec& model, std::string_view suffix) {
  for (const char* pattern : TableOf(model).ignored) {
    if (Matches(pattern, suffix)) return true;
  }
  return false;
}

std::string_view TiedCopyOf(const v1::ModelSpec& model, std::string_view suffix) {
  // An untied head is a tensor of its own.
  if (model.untied_head()) return {};
  for (const auto& [copy, original] : TableOf(model).tied) {
    if (suffix == copy) return original;
  }
  return {};
}

bool IsOtherHead(const v1::ModelSpec& model, std::string_view suffix) {
  for (const std::string_view head : TableOf(model).heads) {
    if (suffix.starts_with(head)) return true;
  }
  return false;
}

}  // namespace tercio::checkpoint
