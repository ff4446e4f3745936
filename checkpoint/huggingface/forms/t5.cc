#include <algorithm>
#include <initializer_list>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/huggingface/form.h"
#include "checkpoint/huggingface/form_parts.h"

namespace tercio::checkpoint {
namespace {

// A T5 has no largest context; the published ones were trained with this one, which new files no
// longer name.
constexpr int64_t kT5Context = 512;
constexpr int32_t kT5Buckets = 32;
constexpr int32_t kT5Distance = 128;
constexpr int32_t kMostT5Buckets = 256;
constexpr double kT5Eps = 1e-6;
// The ids that T5's vocabularies have for padding, with which the decoder begins, and for the end.
constexpr int kT5Pad = 0;
constexpr int kT5End = 1;
constexpr char kGated[] = "gated-";

const std::vector<ActivationNames>& T5Activations() {
  static const auto* const names = new std::vector<ActivationNames>{
      {v1::ACTIVATION_RELU, {"relu"}},
      {v1::ACTIVATION_GELU_TANH, {"gelu_new", "gelu_pytorch_tanh"}},
      {v1::ACTIVATION_GELU, {"gelu"}},
      {v1::ACTIVATION_SILU, {"silu", "swish"}}};
  return *names;
}

// The other classes have no decoder, or another head.
void CheckT5Class(ConfigReader& config) {
  if (!config.Has("architectures")) return;
  const nlohmann::json& classes = config.Value("architectures");
  if (!classes.is_array() || classes.empty()) return;
  for (const char* known : {"T5ForConditionalGeneration", "T5Model", "T5WithLMHeadModel"}) {
    if (classes[0] == known) return;
  }
  config.Unsupported(absl::StrCat("architectures: ", ConfigReader::Shown(classes[0])));
}

// "relu", or "gated-gelu", which means the approximation by tanh. What newer files have besides
// counts more.
void ReadT5FeedForward(ConfigReader& config, v1::ModelSpec* model) {
  const std::string both = config.TextOr("feed_forward_proj", "relu");
  const bool gated = absl::StartsWith(both, kGated);
  std::string function = gated ? both.substr(sizeof(kGated) - 1) : both;
  if (both == "gated-gelu") function = "gelu_new";
  const std::string named = config.TextOr("dense_act_fn", function);
  if (!SetActivation(named, T5Activations(), model)) {
    config.Unsupported(named == function
                           ? absl::StrCat("feed_forward_proj: ", ConfigReader::Shown(both))
                           : absl::StrCat("dense_act_fn: ", ConfigReader::Shown(named)));
  }
  model->set_gated_mlp(config.FlagOr("is_gated_act", gated));
}

void ReadT5Attention(ConfigReader& config, v1::ModelSpec* model) {
  model->set_heads(config.SizeOr("num_heads", 8));
  model->set_kv_heads(model->heads());
  model->set_head_dim(config.SizeOr("d_kv", 64));
  CheckHeadSize(config, *model, model->head_dim());
  const int32_t buckets = config.SizeOr("relative_attention_num_buckets", kT5Buckets);
  const int32_t distance = config.SizeOr("relative_attention_max_distance", kT5Distance);
  if (buckets > kMostT5Buckets) {
    config.Unsupported(absl::StrCat("relative_attention_num_buckets: ", buckets, " (at most ",
                                    kMostT5Buckets, ")"));
  }
  if (buckets != kT5Buckets) model->set_relative_buckets(buckets);
  if (distance != kT5Distance) model->set_relative_distance(distance);
}

// transformers 5 says tie_word_embeddings: true in every file. The models whose head is a matrix of
// its own are those that do not scale what it reads.
void ReadT5Head(ConfigReader& config, v1::ModelSpec* model) {
  const bool tied = config.FlagOr("tie_word_embeddings", true);
  const bool scaled = config.FlagOr("scale_decoder_outputs", tied);
  if (scaled && !tied) {
    config.Unsupported("scale_decoder_outputs: true with tie_word_embeddings: false");
  }
  model->set_untied_head(!scaled);
}

// Tercio's decoder begins with padding, as every published T5's.
void CheckT5Start(ConfigReader& config) {
  if (!config.Has("decoder_start_token_id")) return;
  const nlohmann::json pad =
      config.Has("pad_token_id") ? config.Value("pad_token_id") : nlohmann::json(kT5Pad);
  const nlohmann::json& start = config.Value("decoder_start_token_id");
  if (start == pad) return;
  config.Unsupported(absl::StrCat("decoder_start_token_id: ", ConfigReader::Shown(start),
                                  " (pad_token_id is ", ConfigReader::Shown(pad), ")"));
}

void ReadT5(ConfigReader& config, v1::ModelSpec* model) {
  CheckT5Class(config);
  model->set_layers(config.Size("num_layers"));
  model->set_decoder_layers(config.SizeOr("num_decoder_layers", model->layers()));
  model->set_hidden(config.Size("d_model"));
  model->set_ffn_hidden(config.Size("d_ff"));
  model->set_context(config.SizeOr("n_positions", kT5Context));
  model->set_norm_eps(config.NumberOr("layer_norm_epsilon", kT5Eps, 1e-12, 1));
  ReadT5Attention(config, model);
  ReadT5FeedForward(config, model);
  ReadT5Head(config, model);
  CheckT5Start(config);
  config.Only("is_encoder_decoder", true, true);
  config.Only("is_decoder", false, false);
  config.Only("tie_encoder_decoder", false, false);
}

nlohmann::ordered_json WriteT5(const v1::ModelSpec& model) {
  const std::string function = ActivationText(model, T5Activations());
  // With a gate, "gelu" stands for the approximation.
  const std::string shown = model.gated_mlp() && function == "gelu_new" ? "gelu" : function;
  return {{"architectures", {"T5ForConditionalGeneration"}},
          {"model_type", "t5"},
          {"is_encoder_decoder", true},
          {"feed_forward_proj", (model.gated_mlp() ? kGated : "") + shown},
          {"dense_act_fn", function},
          {"is_gated_act", model.gated_mlp()},
          {"num_layers", model.layers()},
          {"num_decoder_layers", model.decoder_layers()},
          {"d_model", model.hidden()},
          {"d_ff", model.ffn_hidden()},
          {"num_heads", model.heads()},
          {"d_kv", HeadOf(model)},
          {"n_positions", model.context()},
          {"relative_attention_num_buckets",
           model.relative_buckets() > 0 ? model.relative_buckets() : kT5Buckets},
          {"relative_attention_max_distance",
           model.relative_distance() > 0 ? model.relative_distance() : kT5Distance},
          {"layer_norm_epsilon", NormEpsOf(model, kT5Eps)},
          {"dropout_rate", model.dropout()},
          {"pad_token_id", kT5Pad},
          {"eos_token_id", kT5End},
          {"decoder_start_token_id", kT5Pad}};
}

absl::Status CheckT5(const v1::ModelSpec& model) { return CheckUngrouped("t5", model); }

// The parts of a stream's layers. Each part of theirs is a sublayer with a number of its own.
class T5Rows {
 public:
  T5Rows(const std::string& stack, int stream, std::vector<FormRow>* rows)
      : block_(stack + ".block.*.layer."), stream_(stream), rows_(rows) {}

  void Add(const std::string& theirs, const std::string& ours, RowForm form = RowForm::kPlain) {
    rows_->push_back(
        {block_ + theirs + ".weight", {"layers.*." + ours + ".weight"}, form, stream_});
  }
  void AddAttention(const std::string& theirs, const std::string& ours) {
    for (const auto& [part, name] : std::initializer_list<std::pair<const char*, const char*>>{
             {"q", "query"}, {"k", "key"}, {"v", "value"}, {"o", "output"}}) {
      Add(absl::StrCat(theirs, ".", part), absl::StrCat(ours, ".", name));
    }
  }

 private:
  const std::string block_;
  const int stream_;
  std::vector<FormRow>* const rows_;
};

void AddT5Stream(const std::string& stack, int stream, bool gated, FormTable* table) {
  T5Rows rows(stack, stream, &table->layer);
  rows.Add("0.layer_norm", "attention_norm");
  rows.AddAttention("0.SelfAttention", "attention");
  // Only the first layer of a stream has it. Theirs is buckets x heads.
  rows.Add("0.SelfAttention.relative_attention_bias", "attention.relative_bias",
           RowForm::kTransposed);
  if (stream > 0) {
    rows.Add("1.layer_norm", "cross_attention_norm");
    rows.AddAttention("1.EncDecAttention", "cross_attention");
  }
  const std::string last = stream > 0 ? "2." : "1.";
  rows.Add(last + "layer_norm", "mlp_norm");
  if (gated) rows.Add(last + "DenseReluDense.wi_0", "mlp.gate");
  rows.Add(last + (gated ? "DenseReluDense.wi_1" : "DenseReluDense.wi"), "mlp.up");
  rows.Add(last + "DenseReluDense.wo", "mlp.down");
}

FormTable MakeT5(bool gated) {
  FormTable table;
  AddWeight("shared", "embedding.token", &table.embedding);
  AddT5Stream("encoder", 0, gated, &table);
  // Only the last layer of the encoder has it.
  AddWeight("encoder.final_layer_norm", "layers.*.encoder_norm", &table.layer);
  AddT5Stream("decoder", 1, gated, &table);
  AddWeight("decoder.final_layer_norm", "final_norm", &table.end);
  AddWeight("lm_head", "head", &table.end);
  // Old versions saved a bias that they never added.
  table.ignored = {"decoder.block.*.layer.1.EncDecAttention.relative_attention_bias.weight"};
  table.copies = {{"encoder.embed_tokens.weight", "shared.weight"},
                  {"decoder.embed_tokens.weight", "shared.weight"}};
  table.tied = {{"lm_head.weight", "shared.weight"}};
  return table;
}

const FormTable& T5Table(const v1::ModelSpec& model) {
  static const auto* const gated = new FormTable(MakeT5(true));
  static const auto* const plain = new FormTable(MakeT5(false));
  return model.gated_mlp() ? *gated : *plain;
}

}  // namespace

const HuggingFaceForm& T5Form() {
  static const auto* const form = new HuggingFaceForm{.architecture = v1::ARCHITECTURE_T5,
                                                      .model_types = {"t5"},
                                                      .context_key = "n_positions",
                                                      .usual_context = kT5Context,
                                                      .read = ReadT5,
                                                      .write = WriteT5,
                                                      .check = CheckT5,
                                                      .table = T5Table};
  return *form;
}

}  // namespace tercio::checkpoint
