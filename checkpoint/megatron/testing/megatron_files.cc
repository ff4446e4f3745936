#include "checkpoint/megatron/testing/megatron_files.h"

#include <fstream>
#include <functional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/megatron/model_form.h"
#include "common/check.h"
#include "common/file.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {
namespace {

using Values = std::map<std::string, TestTensor>;

int64_t WidthOf(const TestTensor& tensor) { return tensor.shape.size() == 2 ? tensor.shape[1] : 1; }

// `count` rows, of which row i is from(i) of the tensor; -1: zeros.
void AppendRows(const TestTensor& tensor, int64_t count,
                const std::function<int64_t(int64_t)>& from, TestTensor* out) {
  const int64_t width = WidthOf(tensor);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = from(i);
    for (int64_t column = 0; column < width; ++column) {
      out->values.push_back(row < 0 ? 0.0f
                                    : tensor.values[static_cast<size_t>(row * width + column)]);
    }
  }
  out->shape = tensor.shape;
  out->shape[0] = static_cast<int64_t>(out->values.size()) / width;
}

class Cutter {
 public:
  Cutter(const WeightSource& source, const TestCut& cut)
      : model_(source.model()),
        cut_(cut),
        form_(MegatronFormOf(source.model())),
        all_(ReadAllTensors(source)) {
    const int64_t multiple = cut.divisible * cut.tensor;
    padded_ = (model_.vocab_size() + multiple - 1) / multiple * multiple;
  }

  std::vector<TestRank> Ranks() {
    std::vector<TestRank> ranks;
    for (int stage = 0; stage < cut_.pipeline; ++stage) {
      for (int rank = 0; rank < cut_.tensor; ++rank) ranks.push_back(Rank(rank, stage));
    }
    return ranks;
  }

 private:
  TestRank Rank(int rank, int stage) {
    TestRank file;
    file.folder = cut_.pipeline > 1 ? absl::StrFormat("mp_rank_%02d_%03d", rank, stage)
                                    : absl::StrFormat("mp_rank_%02d", rank);
    if (cut_.version > 0) file.version = cut_.version;
    file.args = Arguments();
    const int parts = cut_.pipeline * cut_.chunks;
    const int layers = model_.layers() / parts;
    for (int chunk = 0; chunk < cut_.chunks; ++chunk) {
      out_ = &file.chunks.emplace_back();
      const int part = chunk * cut_.pipeline + stage;
      if (part == 0) AddEmbedding(rank);
      for (int layer = 0; layer < layers; ++layer) AddLayer(rank, part * layers + layer, layer);
      if (part == parts - 1) AddEnd(rank, parts > 1);
    }
    return file;
  }

  void AddEmbedding(int rank) {
    Vocabulary("embedding.token.weight", "embedding/word_embeddings/weight", rank);
    Whole("embedding.position.weight", "embedding/position_embeddings/weight");
    Whole("embedding.type.weight", "embedding/tokentype_embeddings/weight");
  }

  void AddLayer(int rank, int layer, int local) {
    const std::string ours = absl::StrCat("layers.", layer, ".");
    const std::string at = absl::StrCat("encoder/layers.", local, ".");
    for (const char* end : {"weight", "bias"}) {
      Whole(ours + "attention_norm." + end, at + "input_layernorm." + end);
      Whole(ours + "mlp_norm." + end, at + "post_attention_layernorm." + end);
      Qkv(ours + "attention.", end, at + "self_attention.query_key_value." + end, rank);
      UpAndGate(ours + "mlp.", end, at + "mlp.dense_h_to_4h." + end, rank);
    }
    Columns(ours + "attention.output.weight", at + "self_attention.dense.weight", rank);
    Whole(ours + "attention.output.bias", at + "self_attention.dense.bias");
    Columns(ours + "mlp.down.weight", at + "mlp.dense_4h_to_h.weight", rank);
    Whole(ours + "mlp.down.bias", at + "mlp.dense_4h_to_h.bias");
  }

  void AddEnd(int rank, bool several) {
    Whole("final_norm.weight", "encoder/final_layernorm.weight");
    Whole("final_norm.bias", "encoder/final_layernorm.bias");
    Vocabulary("head.weight", "output_layer/weight", rank);
    for (const char* end : {"weight", "bias"}) {
      Whole(absl::StrCat("pooler.", end), absl::StrCat("pooler/dense.", end));
      Whole(absl::StrCat("head.transform.", end), absl::StrCat("/lm_head/dense.", end));
      Whole(absl::StrCat("head.norm.", end), absl::StrCat("/lm_head/layernorm.", end));
      Whole(absl::StrCat("sentence_order.", end), absl::StrCat("/binary_head/", end));
      Whole(absl::StrCat("classifier.", end), absl::StrCat("/classification_head/", end));
    }
    Vocabulary("head.bias", "/lm_head/bias", rank);
    const bool tied = form_.tied_head && form_.predicts_tokens;
    if (several && tied) {
      Vocabulary("embedding.token.weight", "/word_embeddings_for_head/weight", rank);
    }
  }

  const TestTensor* Find(const std::string& name) const {
    const auto found = all_.find(name);
    return found == all_.end() ? nullptr : &found->second;
  }

  void Whole(const std::string& ours, const std::string& name) {
    if (const TestTensor* tensor = Find(ours)) Put(name, *tensor);
  }

  void Vocabulary(const std::string& ours, const std::string& name, int rank) {
    const TestTensor* tensor = Find(ours);
    if (tensor == nullptr) return;
    TestTensor part;
    const int64_t rows = padded_ / cut_.tensor;
    AppendRows(
        *tensor, rows,
        [&](int64_t i) { return rank * rows + i < tensor->shape[0] ? rank * rows + i : -1; },
        &part);
    Put(name, part);
  }

  void Columns(const std::string& ours, const std::string& name, int rank) {
    const TestTensor& tensor = *Find(ours);
    TestTensor part;
    const int64_t width = tensor.shape[1] / cut_.tensor;
    part.shape = {tensor.shape[0], width};
    for (int64_t row = 0; row < tensor.shape[0]; ++row) {
      for (int64_t column = 0; column < width; ++column) {
        part.values.push_back(
            tensor.values[static_cast<size_t>(row * tensor.shape[1] + rank * width + column)]);
      }
    }
    Put(name, part);
  }

  void UpAndGate(const std::string& ours, const std::string& end, const std::string& name,
                 int rank) {
    TestTensor part;
    for (const char* half : {"gate.", "up."}) {
      const TestTensor* tensor = Find(ours + half + end);
      if (tensor == nullptr) continue;
      const int64_t rows = tensor->shape[0] / cut_.tensor;
      AppendRows(
          *tensor, rows, [&](int64_t i) { return rank * rows + i; }, &part);
    }
    if (!part.shape.empty()) Put(name, part);
  }

  // One row at a time, by the version's order of (head, part, channel).
  void Qkv(const std::string& ours, const std::string& end, const std::string& name, int rank) {
    const TestTensor* parts[] = {Find(ours + "query." + end), Find(ours + "key." + end),
                                 Find(ours + "value." + end)};
    if (parts[0] == nullptr) return;
    const int64_t d = form_.head_dim;
    const int64_t groups = form_.kv_heads / cut_.tensor;
    const int64_t queries = model_.heads() / form_.kv_heads;
    const int64_t heads = groups * queries;
    TestTensor joined;
    const auto add = [&](int part, int64_t head, int64_t channel) {
      const int64_t first = rank * (part == 0 ? heads : groups);
      AppendRows(
          *parts[part], 1, [&](int64_t) { return (first + head) * d + channel; }, &joined);
    };
    if (cut_.version == 0) {
      for (int part = 0; part < 3; ++part) {
        for (int64_t row = 0; row < heads * d; ++row) add(part, row / d, row % d);
      }
    } else if (cut_.version == 1) {
      for (int64_t row = 0; row < heads * d * 3; ++row) {
        add(static_cast<int>(row % 3), row / 3 / d, row / 3 % d);
      }
    } else {
      for (int64_t group = 0; group < groups; ++group) {
        for (int64_t row = 0; row < (queries + 2) * d; ++row) {
          const int64_t head = row / d;
          const int part = head < queries ? 0 : head == queries ? 1 : 2;
          add(part, part == 0 ? group * queries + head : group, row % d);
        }
      }
    }
    Put(name, joined);
  }

  // The name is that of the legacy layout below language_model, or with '/' before it beside it.
  void Put(const std::string& legacy, TestTensor tensor) {
    std::string name = legacy.front() == '/' ? legacy.substr(1) : "language_model/" + legacy;
    switch (cut_.names) {
      case TestNames::kOldest:
        name = absl::StrReplaceAll(
            name, {{"/encoder/", "/transformer/"}, {"self_attention.", "attention."}});
        break;
      case TestNames::kLegacy:
        break;
      case TestNames::kNorm:
        name = absl::StrReplaceAll(name, {{"layernorm", "norm"}});
        break;
      case TestNames::kCore:
      case TestNames::kFused:
        name = CoreName(name);
        break;
    }
    (*out_)[name] = std::move(tensor);
  }

  std::string CoreName(std::string name) const {
    name = absl::StrReplaceAll(name, {{"language_model/", ""},
                                      {"encoder/", form_.causal ? "decoder." : "encoder."},
                                      {"lm_head/bias", "output_layer.bias"},
                                      {"lm_head/layernorm", "lm_head.layer_norm"},
                                      {"word_embeddings_for_head", "output_layer"},
                                      {"query_key_value", "linear_qkv"},
                                      {"self_attention.dense", "self_attention.linear_proj"},
                                      {"post_attention_layernorm", "pre_mlp_layernorm"},
                                      {"dense_h_to_4h", "linear_fc1"},
                                      {"dense_4h_to_h", "linear_fc2"},
                                      {"/", "."}});
    if (cut_.names == TestNames::kCore) return name;
    return absl::StrReplaceAll(name,
                               {{".input_layernorm.", ".self_attention.linear_qkv.layer_norm_"},
                                {".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_"}});
  }

  TorchMembers Arguments() const {
    const auto number = [](int64_t value) { return TorchValue{value}; };
    const bool rotary = !form_.learned_positions;
    TorchMembers args = {{"num_layers", number(model_.layers())},
                         {"hidden_size", number(model_.hidden())},
                         {"ffn_hidden_size", number(model_.ffn_hidden())},
                         {"num_attention_heads", number(model_.heads())},
                         {"max_position_embeddings", number(model_.context())},
                         {"layernorm_epsilon", {model_.norm_eps()}},
                         {"padded_vocab_size", number(padded_)},
                         {"vocab_size", number(model_.vocab_size())},
                         {"bias_gelu_fusion", {form_.causal}},
                         {"openai_gelu", {false}},
                         {"apply_residual_connection_post_layernorm", {false}}};
    if (cut_.version < 2) {
      // Pipelines came with version 3 and its names.
      args.push_back({"model_parallel_size", number(cut_.tensor)});
      return args;
    }
    args.push_back({"tensor_model_parallel_size", number(cut_.tensor)});
    args.push_back({"pipeline_model_parallel_size", number(cut_.pipeline)});
    args.push_back({"group_query_attention", {form_.kv_heads != model_.heads()}});
    args.push_back({"num_query_groups", number(form_.kv_heads)});
    args.push_back(
        {"position_embedding_type", {std::string(rotary ? "rope" : "learned_absolute")}});
    args.push_back({"normalization", {std::string(form_.rms_norm ? "RMSNorm" : "LayerNorm")}});
    args.push_back({"swiglu", {form_.gated_mlp}});
    args.push_back({"add_bias_linear", {model_.bias()}});
    args.push_back({"untie_embeddings_and_output_weights", {!form_.tied_head}});
    args.push_back({"rotary_base", number(static_cast<int64_t>(model_.rope_theta()))});
    return args;
  }

  const v1::ModelSpec model_;
  const TestCut cut_;
  const MegatronForm form_;
  const Values all_;
  int64_t padded_ = 0;
  std::map<std::string, TestTensor>* out_ = nullptr;
};

// Nested maps of the tensors, whose values are appended to *bytes in the order of a walk.
TorchDict MapsOf(const std::map<std::string, TestTensor>& tensors, const std::string& prefix,
                 std::string* bytes) {
  TorchDict dict;
  std::set<std::string> done;
  for (const auto& [path, tensor] : tensors) {
    if (!absl::StartsWith(path, prefix)) continue;
    const std::string rest = path.substr(prefix.size());
    const std::string key = rest.substr(0, rest.find('/'));
    if (!done.insert(key).second) continue;
    if (key != rest) {
      dict.members.push_back({key, {MapsOf(tensors, prefix + key + "/", bytes)}});
      continue;
    }
    dict.members.push_back({key, {TorchTensorForm{FloatFormat::kF32, tensor.shape}}});
    bytes->append(reinterpret_cast<const char*>(tensor.values.data()),
                  tensor.values.size() * sizeof(float));
  }
  return dict;
}

class MadeUp : public WeightSource {
 public:
  explicit MadeUp(const v1::ModelSpec& model) : model_(model) {
    // Steps of 1/256 up to 127/256 in size have at most seven bits.
    uint32_t state = 1;
    for (const plan::LogicalTensor& tensor : plan::ModelTensors(model)) {
      TestTensor& made = all_[tensor.name];
      made.shape.push_back(tensor.rows);
      if (!tensor.is_vector) made.shape.push_back(tensor.columns);
      for (int64_t i = 0; i < tensor.rows * tensor.columns; ++i) {
        state = state * 1664525u + 1013904223u;
        made.values.push_back(static_cast<float>(static_cast<int>(state >> 24) - 128) / 256.0f);
      }
    }
  }

  const v1::ModelSpec& model() const override { return model_; }
  absl::StatusOr<std::string> TokenizerJson() const override {
    return absl::NotFoundError("made up");
  }
  bool Has(const std::string& tensor) const override { return all_.contains(tensor); }
  absl::Status ReadSlice(const v1::TensorSlice& slice, float* out) const override {
    const TestTensor& tensor = all_.at(slice.tensor());
    for (int64_t row = slice.row_begin(); row < slice.row_end(); ++row) {
      for (int64_t column = slice.column_begin(); column < slice.column_end(); ++column) {
        *out++ = tensor.values[static_cast<size_t>(row * WidthOf(tensor) + column)];
      }
    }
    return absl::OkStatus();
  }

 private:
  const v1::ModelSpec model_;
  Values all_;
};

}  // namespace

std::unique_ptr<WeightSource> MadeUpWeights(const v1::ModelSpec& model) {
  return std::make_unique<MadeUp>(model);
}

std::map<std::string, v1::ModelSpec> SharedModels() {
  v1::ModelSpec gpt;
  gpt.set_architecture(v1::ARCHITECTURE_GPT2);
  gpt.set_layers(4);
  gpt.set_hidden(16);
  gpt.set_heads(4);
  gpt.set_kv_heads(4);
  gpt.set_ffn_hidden(24);
  gpt.set_context(8);
  gpt.set_vocab_size(21);
  gpt.set_bias(true);
  gpt.set_norm_eps(2e-5);
  v1::ModelSpec grouped = gpt;
  grouped.set_kv_heads(2);
  grouped.set_untied_head(true);
  v1::ModelSpec llama = grouped;
  llama.set_architecture(v1::ARCHITECTURE_LLAMA);
  llama.set_bias(false);
  llama.set_rope_theta(500000);
  v1::ModelSpec bert = gpt;
  bert.set_architecture(v1::ARCHITECTURE_BERT);
  bert.set_norm(v1::NORM_PLACEMENT_PRE);
  bert.set_token_types(2);
  v1::ModelSpec classifier = bert;
  classifier.set_labels(3);
  bert.set_sentence_order(true);
  return {{"gpt", gpt},
          {"gpt with groups and a head", grouped},
          {"llama", llama},
          {"bert", bert},
          {"classifier", classifier}};
}

std::map<std::string, TestTensor> ReadAllTensors(const WeightSource& source) {
  Values all;
  for (const plan::LogicalTensor& tensor : plan::ModelTensors(source.model())) {
    TestTensor& read = all[tensor.name];
    v1::TensorSlice slice;
    slice.set_tensor(tensor.name);
    read.shape.push_back(tensor.rows);
    if (!tensor.is_vector) read.shape.push_back(tensor.columns);
    for (const int64_t extent : read.shape) slice.add_shape(extent);
    slice.set_row_end(tensor.rows);
    slice.set_column_end(tensor.columns);
    read.values.resize(static_cast<size_t>(tensor.rows * tensor.columns));
    const absl::Status status = source.ReadSlice(slice, read.values.data());
    TERCIO_CHECK(status.ok());
  }
  return all;
}

TorchValue& TestRank::arg(const std::string& name) {
  for (auto& [key, value] : args) {
    if (key == name) return value;
  }
  return args.emplace_back(name, TorchValue{}).second;
}

std::vector<TestRank> CutAsMegatron(const WeightSource& source, const TestCut& cut) {
  return Cutter(source, cut).Ranks();
}

void WriteTestRank(const TestRank& rank, const std::string& directory) {
  TorchDict root;
  if (!rank.args.empty()) root.members.push_back({"args", {TorchNamespace{rank.args}}});
  if (rank.version.has_value()) root.members.push_back({"checkpoint_version", {*rank.version}});
  root.members.push_back({"iteration", {rank.iteration}});
  std::string bytes;
  for (size_t chunk = 0; chunk < rank.chunks.size(); ++chunk) {
    root.members.push_back({rank.chunks.size() == 1 ? "model" : absl::StrCat("model", chunk),
                            {MapsOf(rank.chunks[chunk], "", &bytes)}});
  }
  for (const auto& member : rank.more) root.members.push_back(member);
  std::string file;
  const TakePart write = [&file](std::string_view part) {
    file.append(part);
    return absl::OkStatus();
  };
  TorchWriter writer({std::move(root)});
  TERCIO_CHECK(writer.Add(bytes, write).ok());
  TERCIO_CHECK(writer.Finish(write).ok());
  const std::string folder = absl::StrCat(directory, "/", rank.folder);
  TERCIO_CHECK(MakeDirectories(folder).ok());
  // The disk need not have it: tests write hundreds of these.
  std::ofstream stream(folder + "/model_optim_rng.pt", std::ios::binary);
  stream.write(file.data(), static_cast<std::streamsize>(file.size()));
  TERCIO_CHECK(stream.flush().good());
}

void WriteTestCheckpoint(const std::vector<TestRank>& ranks, const std::string& directory) {
  for (const TestRank& rank : ranks) WriteTestRank(rank, directory + "/iter_0000007");
  TERCIO_CHECK(WriteFileDurably(directory + "/latest_checkpointed_iteration.txt", "7").ok());
}

}  // namespace tercio::checkpoint
