#include "checkpoint/megatron/arguments.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/megatron/model_form.h"
#include "checkpoint/megatron/vocabulary.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

using Kind = PickleValue::Kind;

// Far above the sizes of real models; products of two have room in 64 bits.
constexpr int64_t kLargestArgument = 1 << 24;
constexpr int64_t kMostChannels = 256;  // channels of a head

constexpr char kWordEmbeddings[] = "embedding.word_embeddings.weight";
constexpr char kPositionEmbeddings[] = "embedding.position_embeddings.weight";
constexpr char kTypeEmbeddings[] = "embedding.tokentype_embeddings.weight";

// Every one of these changes what the weights compute, and Tercio lacks all of them.
constexpr const char* kOffArguments[] = {"apply_layernorm_1p",
                                         "apply_residual_connection_post_layernorm",
                                         "attention_output_gate",
                                         "embed_layernorm",
                                         "experimental_attention_variant",
                                         "geglu",
                                         "glu_activation",
                                         "heterogeneous_layers_config_path",
                                         "hybrid_override_pattern",
                                         "is_hybrid_model",
                                         "linear_attention_type",
                                         "mtp_num_layers",
                                         "multi_latent_attention",
                                         "no_rope_freq",
                                         "num_experts",
                                         "parallel_attn",
                                         "qk_l2_norm",
                                         "qk_layernorm",
                                         "quick_geglu",
                                         "retro_add_retriever",
                                         "rotary_interleaved",
                                         "squared_relu",
                                         "window_size"};

// A value of an untrusted file, for a message.
std::string ShownValue(const PickleValue& value) {
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.boolean() ? "True" : "False";
    case Kind::kInteger:
      return absl::StrCat(value.integer());
    case Kind::kReal:
      return absl::StrCat(value.real());
    case Kind::kText:
      return absl::StrCat("'", absl::Utf8SafeCEscape(value.text().substr(0, 80)), "'");
    case Kind::kObject:
      return absl::Utf8SafeCEscape(value.class_name().substr(0, 80));
    case Kind::kSequence:
      return "a list";
    case Kind::kBytes:
    case Kind::kMap:
    case Kind::kTensor:
      break;
  }
  return "another type";
}

// Reads arguments and gathers faults. An argument that is None counts as missing.
class ArgumentReader {
 public:
  ArgumentReader(const PickleValue& args, std::string path) : args_(args), path_(std::move(path)) {}

  const PickleValue* Find(const char* name) const {
    const PickleValue* value = args_.Find(name);
    return value == nullptr || value->kind() == Kind::kNone ? nullptr : value;
  }

  int32_t Size(const char* name) {
    if (Find(name) == nullptr) Damaged(absl::StrCat("args.", name, " is missing"));
    // A missing size counts as 1, so that the other faults of the file are found as well.
    return SizeOr(name, 1);
  }
  int32_t SizeOr(const char* name, int64_t fallback) {
    const PickleValue* value = Find(name);
    if (value == nullptr) return static_cast<int32_t>(fallback);
    if (value->kind() == Kind::kInteger && value->integer() >= 1 &&
        value->integer() <= kLargestArgument) {
      return static_cast<int32_t>(value->integer());
    }
    Damaged(absl::StrCat("args.", name, " is ", ShownValue(*value),
                         ", expected a whole number from 1 to ", kLargestArgument));
    return 1;
  }
  double NumberOr(const char* name, double fallback, double least, double most) {
    const PickleValue* value = Find(name);
    if (value == nullptr) return fallback;
    double number = -1;
    if (value->kind() == Kind::kReal) number = value->real();
    if (value->kind() == Kind::kInteger) number = static_cast<double>(value->integer());
    // The comparison is negated, so that NaN is refused, too.
    if (!(number >= least && number <= most)) {
      Damaged(absl::StrCat("args.", name, " is ", ShownValue(*value), ", expected a number from ",
                           least, " to ", most));
      return least;
    }
    return number;
  }
  bool FlagOr(const char* name, bool fallback) {
    const PickleValue* value = Find(name);
    if (value == nullptr) return fallback;
    if (value->kind() == Kind::kBool) return value->boolean();
    Damaged(absl::StrCat("args.", name, " is ", ShownValue(*value), ", expected True or False"));
    return fallback;
  }
  std::string TextOr(const char* name, const std::string& fallback) {
    const PickleValue* value = Find(name);
    if (value == nullptr) return fallback;
    // Forks have enums here, whose members are named by numbers.
    return value->kind() == Kind::kText ? value->text() : ShownValue(*value);
  }

  // Tercio lacks what the argument turns on.
  void Off(const char* name) {
    const PickleValue* value = Find(name);
    if (value == nullptr) return;
    const bool off = (value->kind() == Kind::kBool && !value->boolean()) ||
                     (value->kind() == Kind::kInteger && value->integer() == 0) ||
                     (value->kind() == Kind::kReal && value->real() == 0);
    if (!off) Unsupported(absl::StrCat(name, ": ", ShownValue(*value)));
  }
  void Equals(const char* name, double number, double fallback) {
    if (NumberOr(name, fallback, 0, kLargestArgument) == number) return;
    Unsupported(absl::StrCat(name, ": ", ShownValue(*Find(name))));
  }

  void Damaged(const std::string& what) {
    // Damage decides the kind of error even among other faults, since it puts the whole file in
    // doubt.
    damaged_ = true;
    faults_.push_back(what);
  }
  void Unsupported(const std::string& what) {
    faults_.push_back(absl::StrCat(what, " is not supported by this version"));
  }

  bool good() const { return faults_.empty(); }
  absl::Status status() const {
    if (faults_.empty()) return absl::OkStatus();
    const std::string message = absl::StrCat(path_, ": ", absl::StrJoin(faults_, "; "));
    return damaged_ ? absl::DataLossError(message) : absl::InvalidArgumentError(message);
  }

 private:
  const PickleValue& args_;
  const std::string path_;
  std::vector<std::string> faults_;
  bool damaged_ = false;
};

const TorchTensor* FindTensor(const MegatronChunk& chunk, const char* name) {
  const auto found = chunk.find(name);
  return found == chunk.end() ? nullptr : found->second.tensor;
}

// An extent of a stored tensor as a size of the model; 0 where there is no such tensor, or its
// extent is no size.
int32_t ExtentOf(const MegatronChunk& chunk, const char* name, size_t axis) {
  const TorchTensor* tensor = FindTensor(chunk, name);
  if (tensor == nullptr || tensor->shape.size() <= axis) return 0;
  const int64_t extent = tensor->shape[axis];
  return extent < 1 || extent > kLargestArgument ? 0 : static_cast<int32_t>(extent);
}

// The tensors say whether it is a BERT, since the arguments of both pretrainings are the same.
bool IsMegatronBert(const MegatronChunk& first, const MegatronChunk& last) {
  return first.contains(kTypeEmbeddings) || last.contains("lm_head.dense.weight") ||
         last.contains("classification_head.weight");
}

struct Activation {
  bool exact = false;  // GELU itself, else its form with tanh
  const char* argument = nullptr;
};

// bias_gelu_impl in megatron/core/fusions/fused_bias_gelu.py and openai_gelu compute the form with
// tanh; the MLP without both takes torch's GELU.
Activation ActivationOf(ArgumentReader& args) {
  if (args.FlagOr("openai_gelu", false)) return {false, "openai_gelu: True"};
  if (args.FlagOr("bias_gelu_fusion", true)) return {false, "bias_gelu_fusion: True"};
  return {true, "bias_gelu_fusion: False"};
}

// Megatron-LM chooses between the two forms by how fast they are, and its own converters change
// them, so either is accepted.
void NoteActivation(const Activation& activation, bool exact, std::vector<std::string>* notes) {
  if (activation.exact == exact) return;
  notes->push_back(absl::StrCat("the checkpoint was trained with GELU ",
                                activation.exact ? "itself" : "approximated by tanh", " (",
                                activation.argument, "), and Tercio computes ",
                                exact ? "it exactly" : "its approximation by tanh",
                                " in this architecture: an activation differs by less than 5e-4"));
}

// What is the same in all models.
void ReadSizes(ArgumentReader& args, v1::ModelSpec* model) {
  model->set_layers(args.Size("num_layers"));
  model->set_hidden(args.Size("hidden_size"));
  model->set_heads(args.Size("num_attention_heads"));
  model->set_kv_heads(args.FlagOr("group_query_attention", false) ? args.Size("num_query_groups")
                                                                  : model->heads());
  model->set_context(args.SizeOr("max_position_embeddings", args.SizeOr("seq_length", 0)));
  if (model->context() == 0) args.Damaged("args.max_position_embeddings is missing");
  model->set_ffn_hidden(args.SizeOr("ffn_hidden_size", 4 * int64_t{model->hidden()}));
  // The argument was renamed in 2023.
  model->set_norm_eps(
      args.NumberOr("norm_epsilon", args.NumberOr("layernorm_epsilon", 1e-5, 1e-12, 1), 1e-12, 1));
  for (const char* name : kOffArguments) args.Off(name);
  args.Equals("expert_model_parallel_size", 1, 1);
  if (const std::string kind = args.TextOr("attention_head_type", "multihead");
      kind != "multihead") {
    args.Unsupported(absl::StrCat("attention_head_type: ", kind));
  }
}

bool HasBiases(ArgumentReader& args) {
  // Checkpoints of NVIDIA's foundation models have the opposite flag.
  return args.FlagOr("add_bias_linear", true) && !args.FlagOr("disable_bias_linear", false);
}

bool IsRotary(ArgumentReader& args) {
  const std::string positions = args.TextOr("position_embedding_type", "learned_absolute");
  if (positions == "rope" || args.FlagOr("use_rotary_position_embeddings", false)) return true;
  if (positions != "learned_absolute") {
    args.Unsupported(
        absl::StrCat("position_embedding_type: ", absl::Utf8SafeCEscape(positions.substr(0, 80))));
  } else if (!args.FlagOr("add_position_embedding", true)) {
    args.Unsupported("add_position_embedding: False");
  }
  return false;
}

// A gpt2 or a bert: whatever makes it a llama is refused.
void ReadPlain(ArgumentReader& args, bool bert, std::vector<std::string>* notes,
               v1::ModelSpec* model) {
  model->set_architecture(bert ? v1::ARCHITECTURE_BERT : v1::ARCHITECTURE_GPT2);
  model->set_bias(true);
  const std::string what = bert ? " in a BERT" : " without rotary positions";
  if (!HasBiases(args)) args.Unsupported(absl::StrCat("add_bias_linear: False", what));
  if (args.FlagOr("swiglu", false)) args.Unsupported(absl::StrCat("swiglu: True", what));
  const std::string norm = args.TextOr("normalization", "LayerNorm");
  if (norm != "LayerNorm") args.Unsupported(absl::StrCat("normalization: ", norm, what));
  model->set_untied_head(args.FlagOr("untie_embeddings_and_output_weights", false));
  NoteActivation(ActivationOf(args), /*exact=*/bert, notes);
  if (!bert) return;
  if (IsRotary(args)) args.Unsupported("position_embedding_type: rope in a BERT");
  if (model->untied_head()) {
    args.Unsupported("untie_embeddings_and_output_weights: True in a BERT");
  }
  if (model->kv_heads() != model->heads()) {
    args.Unsupported("group_query_attention: True in a BERT");
  }
}

void ReadRotaryModel(ArgumentReader& args, v1::ModelSpec* model) {
  model->set_architecture(v1::ARCHITECTURE_LLAMA);
  const char* what = " with rotary positions";
  if (HasBiases(args)) args.Unsupported(absl::StrCat("add_bias_linear: True", what));
  if (args.FlagOr("add_qkv_bias", false)) args.Unsupported("add_qkv_bias: True");
  if (!args.FlagOr("swiglu", false)) args.Unsupported(absl::StrCat("swiglu: False", what));
  const std::string norm = args.TextOr("normalization", "LayerNorm");
  if (norm != "RMSNorm") args.Unsupported(absl::StrCat("normalization: ", norm, what));
  model->set_untied_head(args.FlagOr("untie_embeddings_and_output_weights", false));
  model->set_rope_theta(args.NumberOr("rotary_base", 10000, 1, 1e12));
  args.Equals("rotary_percent", 1, 1);
  args.Equals("rotary_seq_len_interpolation_factor", 1, 1);
  if (!args.FlagOr("use_rope_scaling", false)) return;
  v1::RopeScaling* scaling = model->mutable_rope_scaling();
  scaling->set_factor(args.NumberOr("rope_scaling_factor", 8, 1, 1e6));
  scaling->set_low_freq_factor(kMegatronLowFrequency);
  scaling->set_high_freq_factor(kMegatronHighFrequency);
  scaling->set_original_context(kMegatronOriginalContext);
}

// What the tensors say of a BERT.
void ReadBertHeads(const MegatronChunk& first, const MegatronChunk& last, ArgumentReader& args,
                   v1::ModelSpec* model) {
  model->set_norm(v1::NORM_PLACEMENT_PRE);
  model->set_token_types(ExtentOf(first, kTypeEmbeddings, 0));
  if (model->token_types() == 0) {
    args.Unsupported("a BERT without token types (bert_binary_head: False)");
  }
  model->set_labels(ExtentOf(last, "classification_head.weight", 0));
  model->set_sentence_order(model->labels() == 0 && last.contains("binary_head.weight"));
}

void CheckHeadSizes(ArgumentReader& args, const v1::ModelSpec& model) {
  // After a fault sizes may be 1, and further messages about them would mislead.
  if (!args.good()) return;
  if (model.hidden() % model.heads() != 0) {
    return args.Damaged(absl::StrCat("args.hidden_size ", model.hidden(), " is not a multiple of ",
                                     model.heads(), " heads"));
  }
  const int64_t head = model.hidden() / model.heads();
  args.Equals("kv_channels", static_cast<double>(head), static_cast<double>(head));
  if (head > kMostChannels) {
    args.Unsupported(absl::StrCat("a head size of ", head, " (at most ", kMostChannels, ")"));
  }
  if (!MegatronFormOf(model).learned_positions && head % 2 != 0) {
    args.Unsupported(absl::StrCat("an odd head size, ", head));
  }
  if (model.heads() % model.kv_heads() != 0) {
    args.Damaged(absl::StrCat("args.num_query_groups ", model.kv_heads(), " does not divide the ",
                              model.heads(), " heads"));
  }
}

// The names of ranks and what the arguments say about their number.
void CheckDegrees(ArgumentReader& args, const MegatronFiles& files) {
  const struct {
    const char* name;
    int32_t given;
    int32_t found;
  } degrees[] = {
      // The first versions had tensor parallelism only, and called it so.
      {"tensor_model_parallel_size",
       args.SizeOr("tensor_model_parallel_size", args.SizeOr("model_parallel_size", files.tensor)),
       files.tensor},
      {"pipeline_model_parallel_size", args.SizeOr("pipeline_model_parallel_size", files.pipeline),
       files.pipeline}};
  for (const auto& [name, given, found] : degrees) {
    if (given == found) continue;
    args.Damaged(absl::StrCat("args.", name, " is ", given, ", but ", files.folder,
                              " holds the ranks of ", found,
                              given > found ? "; copy the files of all ranks" : ""));
  }
}

std::string KeptPadding(int64_t padded) {
  return absl::StrCat(
      "neither the arguments nor a tokenizer beside the checkpoint say how many of the ", padded,
      " token ids are padding: all of them are kept");
}

// The ids that the model really has, of as many rows as the table has.
int64_t RealVocabulary(ArgumentReader& args, int64_t padded, int64_t tokenizer,
                       std::vector<std::string>* notes) {
  int64_t real = tokenizer;
  const char* source = "the tokenizer beside the checkpoint";
  const PickleValue* given = args.Find("vocab_size");
  if (tokenizer == 0 && given != nullptr && given->kind() == Kind::kInteger) {
    // The argument of a training on token ids leaves out the token that ends a document
    // (_NullTokenizer in megatron/training/tokenizer/tokenizer.py).
    const bool without_end = args.TextOr("tokenizer_type", "") == "NullTokenizer";
    real = std::max<int64_t>(0, given->integer()) + (without_end ? 1 : 0);
    source = "args.vocab_size";
  }
  if (real == 0) {
    notes->push_back(KeptPadding(padded));
    return padded;
  }
  if (real > padded) {
    args.Damaged(absl::StrCat(source, " has ", real, " token ids, but the table has only ", padded,
                              " rows"));
    return padded;
  }
  return real;
}

// The models that NVIDIA published before checkpoints had arguments: 24 layers of 1,024 with 16
// heads (megatron_lm_345m and megatron_bert_345m).
absl::StatusOr<v1::ModelSpec> PublishedModel(const MegatronFiles& files, const MegatronRank& first,
                                             const MegatronChunk& last) {
  constexpr int kPublishedLayers = 24;
  constexpr int kPublishedHidden = 1024;
  constexpr int kPublishedHeads = 16;
  const MegatronChunk& chunk = first.chunks().front();
  v1::ModelSpec model;
  const bool bert = IsMegatronBert(chunk, last);
  model.set_architecture(bert ? v1::ARCHITECTURE_BERT : v1::ARCHITECTURE_GPT2);
  model.set_hidden(ExtentOf(chunk, kWordEmbeddings, 1));
  const int64_t layers = LayersOf(chunk);
  if (files.pipeline != 1 || layers != kPublishedLayers || model.hidden() != kPublishedHidden) {
    return absl::InvalidArgumentError(
        absl::StrCat(first.path(),
                     ": holds no 'args', so the number of heads is not known; convert it with the "
                     "version of Megatron-LM that wrote it"));
  }
  model.set_layers(kPublishedLayers);
  model.set_heads(kPublishedHeads);
  model.set_kv_heads(kPublishedHeads);
  model.set_ffn_hidden(4 * kPublishedHidden);
  model.set_bias(true);
  model.set_norm_eps(1e-5);
  model.set_context(ExtentOf(chunk, kPositionEmbeddings, 0));
  if (model.context() == 0) {
    return absl::DataLossError(absl::StrCat(first.path(), ": has no position embeddings"));
  }
  if (!bert) return model;
  model.set_norm(v1::NORM_PLACEMENT_PRE);
  model.set_token_types(ExtentOf(chunk, kTypeEmbeddings, 0));
  model.set_sentence_order(last.contains("binary_head.weight"));
  return model;
}

}  // namespace

absl::StatusOr<MegatronDescription> DescribeMegatron(const MegatronFiles& files,
                                                     const MegatronRank& first,
                                                     const MegatronRank& last, int64_t tokenizer) {
  MegatronDescription description;
  v1::ModelSpec& model = description.model;
  const MegatronChunk& begin = first.chunks().front();
  const MegatronChunk& end = last.chunks().back();
  const int64_t rows = ExtentOf(begin, kWordEmbeddings, 0);
  description.padded_vocabulary = rows * files.tensor;
  if (rows == 0 || description.padded_vocabulary > kLargestArgument) {
    return absl::DataLossError(
        absl::StrCat(first.path(), ": has no table of word embeddings, or an impossible one"));
  }
  if (first.args() == nullptr) {
    TERCIO_ASSIGN_OR_RETURN(model, PublishedModel(files, first, end));
    const bool known = tokenizer > 0 && tokenizer <= description.padded_vocabulary;
    if (!known) description.notes.push_back(KeptPadding(description.padded_vocabulary));
    model.set_vocab_size(static_cast<int32_t>(known ? tokenizer : description.padded_vocabulary));
    return description;
  }
  ArgumentReader args(*first.args(), first.path());
  ReadSizes(args, &model);
  CheckDegrees(args, files);
  const bool bert = IsMegatronBert(begin, end);
  if (!bert && IsRotary(args)) {
    ReadRotaryModel(args, &model);
  } else {
    ReadPlain(args, bert, &description.notes, &model);
  }
  if (bert) ReadBertHeads(begin, end, args, &model);
  CheckHeadSizes(args, model);
  model.set_vocab_size(static_cast<int32_t>(
      RealVocabulary(args, description.padded_vocabulary, tokenizer, &description.notes)));
  TERCIO_RETURN_IF_ERROR(args.status());
  return description;
}

absl::StatusOr<MegatronDescription> DescribeMegatronFiles(const std::string& directory,
                                                          const MegatronFiles& files) {
  TERCIO_ASSIGN_OR_RETURN(const auto first, MegatronRank::Open(files.path(0, 0)));
  TERCIO_ASSIGN_OR_RETURN(const int64_t tokenizer, VocabularyBeside(directory));
  if (files.pipeline == 1) return DescribeMegatron(files, *first, *first, tokenizer);
  TERCIO_ASSIGN_OR_RETURN(const auto last, MegatronRank::Open(files.path(0, files.pipeline - 1)));
  return DescribeMegatron(files, *first, *last, tokenizer);
}

absl::Status CheckSameTraining(const MegatronRank& one, const MegatronRank& other) {
  const auto differs = [&](const std::string& what, const std::string& a, const std::string& b) {
    return absl::DataLossError(absl::StrCat(other.path(), ": ", what, " is ", b, ", but ", a,
                                            " in ", one.path(),
                                            "; both must be of the same checkpoint"));
  };
  if (one.iteration() != other.iteration()) {
    return differs("iteration", absl::StrCat(one.iteration()), absl::StrCat(other.iteration()));
  }
  if (one.version() != other.version()) {
    return differs("checkpoint_version", absl::StrCat(one.version()),
                   absl::StrCat(other.version()));
  }
  if ((one.args() == nullptr) != (other.args() == nullptr)) {
    return differs("'args'", one.args() == nullptr ? "missing" : "there",
                   other.args() == nullptr ? "missing" : "there");
  }
  if (one.args() == nullptr) return absl::OkStatus();
  for (const char* name :
       {"num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
        "max_position_embeddings", "position_embedding_type", "padded_vocab_size", "vocab_size",
        "normalization", "swiglu", "untie_embeddings_and_output_weights", "rotary_base",
        "tensor_model_parallel_size", "model_parallel_size", "pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size", "consumed_train_samples"}) {
    const PickleValue* a = one.args()->Find(name);
    const PickleValue* b = other.args()->Find(name);
    const std::string shown_a = a == nullptr ? "missing" : ShownValue(*a);
    const std::string shown_b = b == nullptr ? "missing" : ShownValue(*b);
    if (shown_a != shown_b) return differs(absl::StrCat("args.", name), shown_a, shown_b);
  }
  return absl::OkStatus();
}

}  // namespace tercio::checkpoint
