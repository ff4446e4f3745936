#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/form_parts.h"

namespace tercio::checkpoint {
namespace {

constexpr int64_t kMostLabels = 1 << 16;

// The class that a config.json names first, without what tells bert and megatron-bert apart.
std::string TaskOf(const nlohmann::json& json) {
  if (!json.contains("architectures") || !json["architectures"].is_array() ||
      json["architectures"].empty() || !json["architectures"][0].is_string()) {
    return "";
  }
  std::string name = json["architectures"][0].get<std::string>();
  for (const char* prefix : {"MegatronBert", "Bert"}) {
    if (name.rfind(prefix, 0) == 0) return name.substr(std::string(prefix).size());
  }
  return name;
}

bool IsBaseBert(const nlohmann::json& config) { return TaskOf(config) == "Model"; }

// {"0": "negative", "1": "positive"}, in the order of the numbers. transformers assumes two classes
// when it is missing.
void ReadLabels(ConfigReader& config, v1::ModelSpec* model) {
  // Other types of problems have another loss, which Tercio does not compute.
  config.OnlyText("problem_type", "single_label_classification", {"single_label_classification"});
  if (!config.Has("id2label")) {
    model->set_labels(config.SizeOr("num_labels", 2));
    return;
  }
  const nlohmann::json& names = config.Value("id2label");
  if (!names.is_object() || names.empty() || names.size() > kMostLabels) {
    return config.Damaged("id2label is not a map of classes");
  }
  // The keys are texts and sorted as such, "10" before "2", so they are looked up by number.
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string key = absl::StrCat(i);
    if (!names.contains(key) || !names[key].is_string()) {
      return config.Damaged(absl::StrCat("id2label has no name for class ", i));
    }
    model->add_label_names(names[key].get<std::string>());
  }
  model->set_labels(model->label_names_size());
}

void ReadTask(ConfigReader& config, v1::ModelSpec* model) {
  const std::string task = TaskOf(config.json());
  if (task == "ForSequenceClassification") {
    ReadLabels(config, model);
  } else if (task == "ForPreTraining") {
    // This class has both heads of BERT's pretraining, the second of which reads the order.
    model->set_sentence_order(true);
  } else if (task != "ForMaskedLM" && task != "Model" && !task.empty()) {
    config.Unsupported(absl::StrCat("architectures: ", ConfigReader::Shown(task)));
  }
}

void ReadBert(ConfigReader& config, v1::ModelSpec* model) {
  const bool post_norm = config.TextOr("model_type", "") == "bert";
  model->set_norm(post_norm ? v1::NORM_PLACEMENT_POST : v1::NORM_PLACEMENT_PRE);
  model->set_layers(config.Size("num_hidden_layers"));
  model->set_hidden(config.Size("hidden_size"));
  model->set_heads(config.Size("num_attention_heads"));
  model->set_kv_heads(model->heads());
  model->set_context(config.Size("max_position_embeddings"));
  model->set_ffn_hidden(config.Size("intermediate_size"));
  model->set_token_types(config.SizeOr("type_vocab_size", 2));
  model->set_bias(true);
  model->set_norm_eps(config.NumberOr("layer_norm_eps", 1e-12, 1e-12, 1));
  config.OnlyText("hidden_act", "gelu", {"gelu"});
  config.OnlyText("position_embedding_type", "absolute", {"absolute"});
  // The head of Tercio's bert is always the embedding table.
  config.Only("tie_word_embeddings", true, true);
  config.Only("is_decoder", false, false);
  config.Only("add_cross_attention", false, false);
  ReadTask(config, model);
  CheckedHead(config, *model);
}

bool IsPostNorm(const v1::ModelSpec& model) { return model.norm() != v1::NORM_PLACEMENT_PRE; }

// The class tells transformers where the norms are, and the task.
nlohmann::ordered_json BertTask(const v1::ModelSpec& model) {
  const std::string task = model.labels() > 0       ? "ForSequenceClassification"
                           : model.sentence_order() ? "ForPreTraining"
                                                    : "ForMaskedLM";
  nlohmann::ordered_json json = {
      {"architectures", {(IsPostNorm(model) ? "Bert" : "MegatronBert") + task}}};
  for (int i = 0; i < model.labels(); ++i) {
    const std::string name =
        // transformers itself gives this name to a class without one.
        i < model.label_names_size() ? model.label_names(i) : absl::StrCat("LABEL_", i);
    json["id2label"][absl::StrCat(i)] = name;
    json["label2id"][name] = i;
  }
  return json;
}

nlohmann::ordered_json WriteBert(const v1::ModelSpec& model) {
  nlohmann::ordered_json json = {
      {"architectures", nullptr},  // the first key, as in other files
      {"model_type", IsPostNorm(model) ? "bert" : "megatron-bert"},
      {"hidden_act", "gelu"},
      {"num_hidden_layers", model.layers()},
      {"hidden_size", model.hidden()},
      {"intermediate_size", model.ffn_hidden()},
      {"num_attention_heads", model.heads()},
      {"max_position_embeddings", model.context()},
      {"type_vocab_size", model.token_types() > 0 ? model.token_types() : 2},
      {"layer_norm_eps", NormEpsOf(model, 1e-12)},
      {"hidden_dropout_prob", model.dropout()},
      {"attention_probs_dropout_prob", model.dropout()}};
  json.update(BertTask(model));
  return json;
}

// The task may be another one than that of the model which training started from.
void ChangeBert(const v1::ModelSpec& model, nlohmann::ordered_json* config) {
  config->update(BertTask(model));
}

// transformers has two classes for the two places of the norms, with names of their own for them.
FormTable MakeBert(bool post_norm) {
  FormTable table;
  table.prefix = "bert.";
  table.beside = {"cls.", "classifier."};
  AddWeight("embeddings.word_embeddings", "embedding.token", &table.embedding);
  AddWeight("embeddings.position_embeddings", "embedding.position", &table.embedding);
  AddWeight("embeddings.token_type_embeddings", "embedding.type", &table.embedding);
  // Post-norm normalises the sum of the embeddings, pre-norm the output of the last layer.
  if (post_norm) AddPair("embeddings.LayerNorm", "embedding.norm", &table.embedding);
  const auto layer = [&](const std::string& theirs, const std::string& ours) {
    AddPair("encoder.layer.*." + theirs, "layers.*." + ours, &table.layer);
  };
  layer(post_norm ? "attention.output.LayerNorm" : "attention.ln", "attention_norm");
  for (const std::string part : {"query", "key", "value"}) {
    layer("attention.self." + part, "attention." + part);
  }
  layer("attention.output.dense", "attention.output");
  layer(post_norm ? "output.LayerNorm" : "ln", "mlp_norm");
  layer("intermediate.dense", "mlp.up");
  layer("output.dense", "mlp.down");
  if (!post_norm) AddPair("encoder.ln", "final_norm", &table.end);
  // These belong to tasks; those whose tensors the model lacks are left out.
  AddPair("cls.predictions.transform.dense", "head.transform", &table.end);
  AddPair("cls.predictions.transform.LayerNorm", "head.norm", &table.end);
  table.end.push_back({"cls.predictions.bias", {"head.bias"}});
  AddPair("pooler.dense", "pooler", &table.end);
  AddPair("cls.seq_relationship", "sentence_order", &table.end);
  AddPair("classifier", "classifier", &table.end);
  table.ignored = {"embeddings.position_ids"};
  // transformers saves the tied tensors under either name, or under both.
  table.tied = {{"cls.predictions.decoder.weight", "embeddings.word_embeddings.weight"},
                {"cls.predictions.decoder.bias", "cls.predictions.bias"}};
  table.other_heads = {"cls.", "pooler.", "classifier.", "qa_outputs."};
  return table;
}

const FormTable& BertTable(const v1::ModelSpec& model) {
  static const auto* const post = new FormTable(MakeBert(true));
  static const auto* const pre = new FormTable(MakeBert(false));
  return IsPostNorm(model) ? *post : *pre;
}

v1::ModelSpec WithPretrainingHeads(const v1::ModelSpec& model) {
  v1::ModelSpec pretrained = model;
  pretrained.clear_labels();
  pretrained.set_sentence_order(true);
  return pretrained;
}

// Files of masked language models on the hub often hold both heads of the pretraining.
void CompleteBert(absl::FunctionRef<bool(std::string_view name)> has, v1::ModelSpec* model) {
  // A classifier has one head, whatever else its file holds.
  if (model->labels() == 0 && has("cls.seq_relationship.weight")) model->set_sentence_order(true);
}

}  // namespace

const HuggingFaceForm& BertForm() {
  static const auto* const form = new HuggingFaceForm{.architecture = v1::ARCHITECTURE_BERT,
                                                      .model_types = {"bert", "megatron-bert"},
                                                      .read = ReadBert,
                                                      .write = WriteBert,
                                                      .change = ChangeBert,
                                                      .table = BertTable,
                                                      .is_base = IsBaseBert,
                                                      .with_other_heads = WithPretrainingHeads,
                                                      .complete = CompleteBert};
  return *form;
}

}  // namespace tercio::checkpoint
