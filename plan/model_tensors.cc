#include "plan/model_tensors.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "plan/model_traits.h"

namespace tercio::plan {
namespace {

class TensorList {
 public:
  explicit TensorList(const v1::ModelSpec& model) : model_(model), traits_(TraitsOf(model)) {}

  void Embedding() {
    Matrix("embedding.token.weight", model_.vocab_size(), model_.hidden(), Shard::kRows,
           // Rows of the token table are cut as those of the head, so that both can be one tensor.
           Initialization::kNormal);
    tensors.back().vocabulary = true;
    // Rotary positions are computed inside attention and have no weights.
    if (!traits_.learned_positions) return;
    Matrix("embedding.position.weight", model_.context(), model_.hidden(), Shard::kWhole,
           Initialization::kNormal);
    if (traits_.token_types == 0) return;
    Matrix("embedding.type.weight", traits_.token_types, model_.hidden(), Shard::kWhole,
           Initialization::kNormal);
    if (traits_.post_norm) Norm("embedding.norm");
  }
  void Outputs() {
    if (!traits_.post_norm) Norm("final_norm");
    if (traits_.head == Head::kMaskedToken) MaskedHead();
    if (traits_.classes > 0) Pooler();
    // A tied head is the token table; listing it twice would save it twice.
    if (traits_.tied_head || traits_.head == Head::kNone) return;
    Matrix("head.weight", model_.vocab_size(), model_.hidden(), Shard::kRows,
           Initialization::kNormal);
    tensors.back().vocabulary = true;
  }

  void MaskedHead() {
    Linear("head.transform", model_.hidden());
    Norm("head.norm");
    Bias("head.bias", model_.vocab_size(), Shard::kRows);
    tensors.back().vocabulary = true;
  }
  void Pooler() {
    Linear("pooler", model_.hidden());
    Linear(traits_.head == Head::kNone ? "classifier" : "sentence_order", traits_.classes);
  }
  // From the hidden size, on every tensor rank.
  void Linear(const std::string& name, int64_t rows) {
    Matrix(name + ".weight", rows, model_.hidden(), Shard::kWhole, Initialization::kNormal);
    Bias(name + ".bias", rows, Shard::kWhole);
  }

  void Matrix(const std::string& name, int64_t rows, int64_t columns, Shard shard,
              Initialization initialization) {
    Add(name, rows, columns, false, shard, initialization);
  }
  void Vector(const std::string& name, int64_t size, Shard shard, Initialization initialization) {
    Add(name, size, 1, true, shard, initialization);
  }
  // Biases exist only where the model has them.
  void Bias(const std::string& name, int64_t size, Shard shard) {
    if (model_.bias()) Vector(name, size, shard, Initialization::kZeros);
  }
  void Norm(const std::string& name) {
    Vector(name + ".weight", model_.hidden(), Shard::kWhole, Initialization::kOnes);
    if (!traits_.rms_norm) Bias(name + ".bias", model_.hidden(), Shard::kWhole);
  }
  // The order within a layer is that of the forward pass;
  // keys of randomness and flat offsets follow from it.
  void Layer(int layer) {
    const std::string at = absl::StrCat("layers.", layer, ".");
    const int64_t c = model_.hidden();
    const int64_t f = model_.ffn_hidden();
    // Post-norm residual sums do not grow with the depth.
    const Initialization residual =
        traits_.post_norm ? Initialization::kNormal : Initialization::kResidualNormal;
    Norm(at + "attention_norm");
    const int64_t k = traits_.kv_heads * traits_.head_dim;
    // Grouped-query attention has fewer heads of keys and values than of queries.
    const std::pair<const char*, int64_t> parts[] = {{"query", c}, {"key", k}, {"value", k}};
    for (const auto& [part, rows] : parts) {
      Matrix(absl::StrCat(at, "attention.", part, ".weight"), rows, c, Shard::kRows,
             Initialization::kNormal);
    }
    // Weights come first, then biases: each three lie side by side as one matrix and one vector.
    for (const auto& [part, rows] : parts) {
      Bias(absl::StrCat(at, "attention.", part, ".bias"), rows, Shard::kRows);
    }
    // A product cut by columns needs one sum after it, and its bias is added once, after the sum.
    Matrix(at + "attention.output.weight", c, c, Shard::kColumns, residual);
    Bias(at + "attention.output.bias", c, Shard::kWhole);
    Norm(at + "mlp_norm");
    // The gate and the up part are multiplied elementwise, so both are cut alike.
    if (traits_.gated_mlp) {
      Matrix(at + "mlp.gate.weight", f, c, Shard::kRows, Initialization::kNormal);
    }
    Matrix(at + "mlp.up.weight", f, c, Shard::kRows, Initialization::kNormal);
    Bias(at + "mlp.up.bias", f, Shard::kRows);
    Matrix(at + "mlp.down.weight", c, f, Shard::kColumns, residual);
    Bias(at + "mlp.down.bias", c, Shard::kWhole);
  }

  std::vector<LogicalTensor> tensors;

 private:
  void Add(const std::string& name, int64_t rows, int64_t columns, bool is_vector, Shard shard,
           Initialization initialization) {
    LogicalTensor tensor;
    tensor.name = name;
    tensor.rows = rows;
    tensor.columns = columns;
    tensor.is_vector = is_vector;
    tensor.shard = shard;
    // Vectors, which are biases and norms, are never decayed, as is usual.
    tensor.weight_decay = !is_vector;
    tensor.initialization = initialization;
    // The index is the key of the tensor's random numbers:
    // inserting a tensor in the middle would change every run.
    tensor.index = static_cast<int>(tensors.size());
    tensors.push_back(tensor);
  }

  const v1::ModelSpec& model_;
  const ModelTraits traits_;
};

// Layer that a name belongs to, or -1.
int LayerOfName(const std::string& name) {
  if (name.rfind("layers.", 0) != 0) return -1;
  return std::stoi(name.substr(7));
}

// Key and value follow the query, up follows the gate.
bool FollowsWithoutGap(const std::string& name, bool gated) {
  return name.find("attention.key.") != std::string::npos ||
         name.find("attention.value.") != std::string::npos ||
         (gated && name.find("mlp.up.weight") != std::string::npos);
}

// Sixteen floats are 64 bytes: a cache line, and the widest vectors.
int64_t RoundUp16(int64_t value) { return (value + 15) / 16 * 16; }

class StageBuilder {
 public:
  StageBuilder(const v1::ModelSpec& model, const v1::Layout& layout)
      : gated_(TraitsOf(model).gated_mlp),
        tensor_degree_(layout.tensor()),
        padded_(PaddedVocabulary(model.vocab_size(), layout.tensor())) {}

  void Add(const LogicalTensor& tensor, TensorRole role, int layer, bool own_parameter) {
    StageTensor entry;
    entry.tensor = tensor;
    entry.role = role;
    entry.layer = layer;
    // The first rank has the most rows, and all ranks use the same offsets.
    const TensorShard shard = ShardOfRank(tensor, tensor_degree_, 0, padded_);
    entry.elements = shard.local_rows * shard.local_columns;
    // Gaps would tear apart what is read as one matrix.
    if (!FollowsWithoutGap(tensor.name, gated_)) {
      stage_.gradient_elements = RoundUp16(stage_.gradient_elements);
      if (own_parameter) stage_.parameter_elements = RoundUp16(stage_.parameter_elements);
    }
    entry.gradient_offset = stage_.gradient_elements;
    stage_.gradient_elements += entry.elements;
    if (own_parameter) {
      entry.parameter_offset = stage_.parameter_elements;
      stage_.parameter_elements += entry.elements;
    } else {
      // A tied head beside its lookup reads the lookup's weights, which are the first of the stage.
      entry.parameter_offset = stage_.tensors.front().parameter_offset;
    }
    stage_.tensors.push_back(entry);
  }

  StageTensors Finish() { return std::move(stage_); }

 private:
  bool gated_;
  int tensor_degree_;
  int64_t padded_;
  StageTensors stage_;
};

}  // namespace

std::vector<LogicalTensor> ModelTensors(const v1::ModelSpec& model) {
  // Padding and offsets are undefined without a vocabulary; a plan fills it in before.
  TERCIO_CHECK_GT(model.vocab_size(), 0);
  TensorList list(model);
  list.Embedding();
  for (int layer = 0; layer < model.layers(); ++layer) list.Layer(layer);
  list.Outputs();
  return std::move(list.tensors);
}

bool BelongsToTask(std::string_view name) {
  for (const std::string_view prefix : {"head.transform.", "head.norm.", "head.bias", "pooler.",
                                        "sentence_order.", "classifier."}) {
    if (name.substr(0, prefix.size()) == prefix) return true;
  }
  return false;
}

int64_t PaddedVocabulary(int64_t vocab_size, int tensor) {
  // Every tensor rank gets the same number of rows, a
  // multiple of what vectors and tensor cores take.
  const int64_t unit = int64_t{16} * tensor;
  return (vocab_size + unit - 1) / unit * unit;
}

TensorShard ShardOfRank(const LogicalTensor& tensor, int tensor_degree, int tensor_index,
                        int64_t padded_vocabulary) {
  TensorShard shard;
  shard.row_end = shard.local_rows = tensor.rows;
  shard.column_end = shard.local_columns = tensor.columns;
  if (tensor.shard == Shard::kRows) {
    // Padding belongs to the last ranks; what lies beyond the vocabulary is held but not saved.
    shard.local_rows = (tensor.vocabulary ? padded_vocabulary : tensor.rows) / tensor_degree;
    shard.row_begin = std::min(tensor.rows, tensor_index * shard.local_rows);
    shard.row_end = std::min(tensor.rows, (tensor_index + 1) * shard.local_rows);
  } else if (tensor.shard == Shard::kColumns) {
    shard.local_columns = tensor.columns / tensor_degree;
    shard.column_begin = tensor_index * shard.local_columns;
    shard.column_end = shard.column_begin + shard.local_columns;
  }
  return shard;
}

StageTensors TensorsOfStage(const v1::ModelSpec& model, const v1::Layout& layout, int stage) {
  const std::vector<LogicalTensor> all = ModelTensors(model);
  // The layers are ascending, which the search below relies on.
  const std::vector<int> mine = LayersOfStage(model.layers(), layout, stage);
  const bool first = stage == 0;
  const bool last = stage == layout.pipeline() - 1;
  const ModelTraits traits = TraitsOf(model);
  const bool tied = traits.tied_head && traits.head != Head::kNone;
  StageBuilder builder(model, layout);
  for (const LogicalTensor& tensor : all) {
    const int layer = LayerOfName(tensor.name);
    if (tensor.name == "embedding.token.weight") {
      if (first) builder.Add(tensor, tied ? TensorRole::kLookup : TensorRole::kPlain, -1, true);
    } else if (tensor.name.rfind("embedding.", 0) == 0) {
      if (first) builder.Add(tensor, TensorRole::kPlain, -1, true);
    } else if (layer >= 0) {
      if (!std::binary_search(mine.begin(), mine.end(), layer)) continue;
      builder.Add(tensor, TensorRole::kPlain, layer, true);
    } else if (last) {
      builder.Add(tensor, TensorRole::kPlain, model.layers(), true);
    }
  }
  // The head comes last, in flat order too: its gradient is the first to be complete.
  if (last && tied) builder.Add(all.front(), TensorRole::kHead, model.layers(), !first);
  return builder.Finish();
}

std::vector<int> LayersOfStage(int layers, const v1::Layout& layout, int stage) {
  const int chunks = std::max(1, layout.virtual_pipeline());
  TERCIO_CHECK_EQ(layers % (layout.pipeline() * chunks), 0);
  const int run = layers / (layout.pipeline() * chunks);
  std::vector<int> result;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    // Chunks go round the stages, so that a stage's chunks are pipeline runs apart.
    for (int i = 0; i < run; ++i) result.push_back((chunk * layout.pipeline() + stage) * run + i);
  }
  return result;
}

int64_t ParameterCount(const v1::ModelSpec& model) {
  int64_t count = 0;
  for (const LogicalTensor& tensor : ModelTensors(model)) count += tensor.rows * tensor.columns;
  return count;
}

double FlopsPerToken(const v1::ModelSpec& model, AttentionCount count) {
  const ModelTraits traits = TraitsOf(model);
  const double c = model.hidden();
  const double f = model.ffn_hidden();
  const double layers = model.layers();
  const double keys = static_cast<double>(traits.kv_heads * traits.head_dim);
  // A masked model looks at some 15 % of its positions' tokens (Devlin et al. 2019).
  const double predicted = traits.head == Head::kNextToken     ? 1
                           : traits.head == Head::kMaskedToken ? 0.15
                                                               : 0;
  const double products = layers * (2 * c * (c + keys) + (traits.gated_mlp ? 3 : 2) * c * f) +
                          predicted * c * model.vocab_size();
  const bool half = count == AttentionCount::kCausalHalf && traits.causal;
  // Scores and values are two products of two operations each, once forward and twice backward.
  const double attention = (half ? 6.0 : 12.0) * layers * c * model.context();
  // Each weight costs two operations in the forward pass and four in the backward pass.
  return 6 * products + attention;
}

}  // namespace tercio::plan
