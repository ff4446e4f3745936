#include "plan/model_tensors.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "model/layer.h"
#include "model/name_pattern.h"
#include "plan/stage_layers.h"
#include "plan/tensor_policy.h"

namespace tercio::plan {
namespace {

// Keys that follow from names begin here, so that none is a place of a tensor in a model.
constexpr uint32_t kFirstNamedKey = 1u << 24;

// And those of adapters, of which a model may have so many that 24 bits are too few.
constexpr uint32_t kFirstAdapterKey = 1u << 31;

// FNV-1a (Fowler, Noll, Vo).
uint64_t HashOfName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Folded to 24 bits.
uint32_t KeyOfName(std::string_view name) {
  const uint64_t hash = HashOfName(name);
  const auto folded = static_cast<uint32_t>(hash ^ (hash >> 24) ^ (hash >> 48));
  return kFirstNamedKey + (folded & (kFirstNamedKey - 1));
}

// Folded to 31 bits.
uint32_t KeyOfAdapter(std::string_view name) {
  const uint64_t hash = HashOfName(name);
  return kFirstAdapterKey | static_cast<uint32_t>(hash ^ (hash >> 32));
}

// All tensors of a model, and all uses of those that are tied, in forward order.
class TensorList {
 public:
  struct Use {
    std::string name;
    size_t tensor;  // of `tensors`
    int layer;
  };

  explicit TensorList(const model::Architecture& architecture)
      : layers(static_cast<int>(architecture.layers.size())),
        keys_by_place_(architecture.keys_by_place),
        adapted_(architecture.adapted),
        trained_(architecture.trained) {
    for (const model::Tensor& tensor : model::EmbeddingTensors(architecture)) Add("", tensor, -1);
    std::vector<std::vector<model::Tensor>> kinds;
    for (const model::Layer& kind : architecture.kinds) {
      kinds.push_back(model::Describe(kind, architecture.hidden, 1).tensors);
    }
    for (int layer = 0; layer < layers; ++layer) {
      const auto kind = static_cast<size_t>(architecture.layers[static_cast<size_t>(layer)]);
      for (const model::Tensor& tensor : kinds[kind]) {
        Add(absl::StrCat("layers.", layer, "."), tensor, layer);
      }
    }
    for (const model::Tensor& tensor : model::HeadTensors(architecture)) Add("", tensor, layers);
    // The head comes last, in flat order too: its gradient is the first to be complete.
    if (architecture.head.reads_token_table()) uses.push_back({kHeadMatrix, 0, layers});
    if (!keys_by_place_) CheckKeysDiffer();
  }

  const int layers;
  std::vector<LogicalTensor> tensors;
  std::vector<Use> uses;

 private:
  void Add(const std::string& prefix, const model::Tensor& declared, int layer) {
    const std::string name = prefix + declared.name;
    if (!declared.ties.empty() && declared.ties != name) {
      uses.push_back({name, IndexOf(declared.ties), layer});
      return;
    }
    uses.push_back({name, tensors.size(), layer});
    LogicalTensor tensor;
    tensor.name = name;
    tensor.rows = declared.rows;
    tensor.columns = declared.columns;
    tensor.is_vector = declared.is_vector;
    tensor.vocabulary = declared.vocabulary;
    tensor.continues = declared.continues;
    tensor.of_task = declared.of_task;
    tensor.partial = declared.partial;
    tensor.shared = !declared.ties.empty();
    tensor.layer = layer;
    tensor.shard = declared.cut;
    // Vectors, which are biases and norms, are never decayed, as is usual.
    tensor.weight_decay = !declared.is_vector;
    tensor.initialization = declared.initialization;
    tensor.index = static_cast<int>(tensors.size());
    tensor.of_adapter = declared.of_adapter;
    tensor.below_adapters = adapted_ && !declared.of_adapter && !IsTrained(name);
    tensor.key = KeyOf(tensor);
    if (!tensor.of_adapter) ++of_model_;
    tensors.push_back(tensor);
  }

  bool IsTrained(const std::string& name) const {
    return std::any_of(trained_.begin(), trained_.end(), [&](const std::string& pattern) {
      return model::MatchesPattern(name, pattern);
    });
  }

  // Those of the model are the same with adapters and without.
  uint32_t KeyOf(const LogicalTensor& tensor) const {
    if (tensor.of_adapter) return KeyOfAdapter(tensor.name);
    return keys_by_place_ ? of_model_ : KeyOfName(tensor.name);
  }

  // The first use of a tensor is the one whose name it has.
  size_t IndexOf(const std::string& name) const {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const auto& tensor) { return tensor.name == name; });
    TERCIO_CHECK(found != tensors.end());
    return static_cast<size_t>(found - tensors.begin());
  }

  // Two tensors with one key would begin with the same numbers.
  void CheckKeysDiffer() const {
    std::set<uint32_t> keys;
    for (const LogicalTensor& tensor : tensors) {
      if (tensor.is_vector || tensor.of_adapter) continue;
      TERCIO_CHECK(keys.insert(tensor.key).second);
    }
  }

  const bool keys_by_place_;
  const bool adapted_;
  const std::vector<std::string> trained_;  // patterns
  uint32_t of_model_ = 0;                   // tensors so far that are not of adapters
};

// Sixteen floats are 64 bytes: a cache line, and the widest vectors.
int64_t RoundUp16(int64_t value) { return (value + 15) / 16 * 16; }

class StageBuilder {
 public:
  StageBuilder(const v1::ModelSpec& model, const v1::Layout& layout)
      : tensor_degree_(layout.tensor()),
        padded_(PaddedVocabulary(model.vocab_size(), layout.tensor())) {}

  void Add(const LogicalTensor& tensor, const std::string& use, int layer, bool in_layer,
           bool frozen) {
    StageTensor entry;
    entry.frozen = frozen;
    entry.in_layer = in_layer;
    entry.tensor = tensor;
    entry.use = use;
    entry.layer = layer;
    entry.further_use = use != tensor.name;
    const auto [holder, is_first] = holders_.emplace(tensor.index, stage_.tensors.size());
    entry.own_parameter = is_first;
    // The first rank has the most rows, and all ranks use the same offsets.
    const TensorShard shard = ShardOfRank(tensor, tensor_degree_, 0, padded_);
    entry.elements = shard.local_rows * shard.local_columns;
    int64_t& elements = frozen ? frozen_elements_ : stage_.gradient_elements;
    // Gaps would tear apart what is read as one matrix.
    if (!tensor.continues) {
      elements = RoundUp16(elements);
      if (entry.own_parameter) stage_.parameter_elements = RoundUp16(stage_.parameter_elements);
    }
    entry.gradient_offset = elements;
    elements += entry.elements;
    if (entry.own_parameter) {
      entry.parameter_offset = stage_.parameter_elements;
      stage_.parameter_elements += entry.elements;
    } else {
      entry.parameter_offset = stage_.tensors[holder->second].parameter_offset;
    }
    stage_.tensors.push_back(entry);
  }

  // Uses that are one matrix of a product.
  void AddQuantized(const std::vector<LogicalTensor>& tensors, kernels::BaseFormat format) {
    stage_.base_format = format;
    int64_t elements = 0;
    for (const LogicalTensor& tensor : tensors) {
      const TensorShard shard = ShardOfRank(tensor, tensor_degree_, 0, padded_);
      QuantizedTensor entry;
      entry.tensor = tensor;
      entry.rows = shard.local_rows;
      entry.columns = shard.local_columns;
      entry.codes = Take(kernels::CodesBytes(format, entry.elements()));
      entry.scales = Take(entry.blocks());
      // Groups are those of the whole tensor, on each of its ranks.
      entry.group_count = kernels::GroupsOf(tensor.rows * tensor.columns / kernels::kBaseBlock);
      entry.groups = Take((1 + entry.group_count) * static_cast<int64_t>(sizeof(float)));
      elements += entry.elements();
      stage_.quantized.push_back(entry);
    }
    stage_.dequantized_elements = std::max(stage_.dequantized_elements, elements);
  }

  StageTensors Finish() { return std::move(stage_); }

 private:
  // A place behind the others, at a multiple of 16 bytes.
  int64_t Take(int64_t bytes) {
    const int64_t place = RoundUp16(stage_.base_bytes);
    stage_.base_bytes = place + bytes;
    return place;
  }

  int tensor_degree_;
  int64_t padded_;
  StageTensors stage_;
  int64_t frozen_elements_ = 0;
  absl::flat_hash_map<int, size_t> holders_;  // the entry with a parameter, by tensor number
};

// Uses that follow each other in a unit of the model, as one matrix or alone; frozen only together.
struct Run {
  const TensorList::Use* first;
  size_t count = 0;
  bool frozen = true;
};

// By tensors of the list. Few patterns match many names, so it is done once.
using FrozenFlags = std::vector<bool>;
FrozenFlags FrozenOf(const TensorList& all, const v1::TrainingSpec& training) {
  FrozenFlags frozen;
  for (const LogicalTensor& tensor : all.tensors) {
    frozen.push_back(PolicyOf(tensor, training).frozen);
  }
  return frozen;
}

// The uses on a stage in flat order: in the embedding, in each layer and in the head first what is
// frozen.
std::vector<Run> RunsOf(const TensorList& all, const FrozenFlags& frozen,
                        absl::FunctionRef<bool(const TensorList::Use&)> is_here) {
  std::vector<Run> runs;
  size_t unit = 0;  // the first run of it
  const auto order = [&] {
    std::stable_partition(runs.begin() + static_cast<std::ptrdiff_t>(unit), runs.end(),
                          [](const Run& run) { return run.frozen; });
    unit = runs.size();
  };
  int layer = 0;
  for (const TensorList::Use& use : all.uses) {
    if (!is_here(use)) continue;
    if (use.layer != layer) order();
    layer = use.layer;
    if (runs.size() == unit || !all.tensors[use.tensor].continues) runs.push_back({&use});
    Run& run = runs.back();
    ++run.count;
    run.frozen = run.frozen && frozen[use.tensor];
  }
  order();
  return runs;
}

// Matrices of layers are those of their products, but for tables that layers share.
bool IsQuantized(const TensorList& all, const Run& run, kernels::BaseFormat format) {
  const LogicalTensor& first = all.tensors[run.first->tensor];
  const bool in_layer = run.first->layer >= 0 && run.first->layer < all.layers;
  return format != kernels::BaseFormat::kNone && run.frozen && in_layer && !first.is_vector &&
         !first.shared;
}

StageTensors TensorsOfStage(const TensorList& all, const FrozenFlags& frozen,
                            const v1::ModelSpec& spec, const v1::Layout& layout, int stage) {
  // The layers are ascending, which the search below relies on.
  const std::vector<int> mine = LayersOfStage(all.layers, layout, stage);
  const auto is_inner = [&](const TensorList::Use& use) {
    return use.layer >= 0 && use.layer < all.layers;
  };
  const auto is_here = [&](const TensorList::Use& use) {
    if (is_inner(use)) return std::binary_search(mine.begin(), mine.end(), use.layer);
    return use.layer < 0 ? stage == 0 : stage == layout.pipeline() - 1;
  };
  StageBuilder builder(spec, layout);
  const kernels::BaseFormat format = BaseFormatOf(spec);
  for (const Run& run : RunsOf(all, frozen, is_here)) {
    if (IsQuantized(all, run, format)) {
      std::vector<LogicalTensor> matrix;
      for (size_t i = 0; i < run.count; ++i) matrix.push_back(all.tensors[run.first[i].tensor]);
      builder.AddQuantized(matrix, format);
      continue;
    }
    for (const TensorList::Use* use = run.first; use != run.first + run.count; ++use) {
      builder.Add(all.tensors[use->tensor], use->name, use->layer, is_inner(*use), run.frozen);
    }
  }
  return builder.Finish();
}

}  // namespace

kernels::BaseFormat BaseFormatOf(const v1::ModelSpec& model) {
  switch (model.base_format()) {
    case v1::BASE_FORMAT_NF4:
      return kernels::BaseFormat::kNf4;
    case v1::BASE_FORMAT_INT8:
      return kernels::BaseFormat::kInt8;
    case v1::BASE_FORMAT_UNSPECIFIED:
    case v1::BASE_FORMAT_NONE:
    case v1::BaseFormat_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::BaseFormat_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return kernels::BaseFormat::kNone;
}

std::vector<LogicalTensor> ModelTensors(const v1::ModelSpec& spec) {
  // Padding and offsets are undefined without a vocabulary; a plan fills it in before.
  TERCIO_CHECK_GT(spec.vocab_size(), 0);
  return std::move(TensorList(model::ArchitectureOf(spec)).tensors);
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

StageTensors TensorsOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage) {
  TERCIO_CHECK_GT(job.model().vocab_size(), 0);
  const TensorList all(model::ArchitectureOf(job.model()));
  return TensorsOfStage(all, FrozenOf(all, job.training()), job.model(), layout, stage);
}

StageTensors TensorsOfStage(const v1::ModelSpec& spec, const v1::Layout& layout, int stage) {
  TERCIO_CHECK_GT(spec.vocab_size(), 0);
  const TensorList all(model::ArchitectureOf(spec));
  return TensorsOfStage(all, FrozenFlags(all.tensors.size()), spec, layout, stage);
}

struct StageTables::Lists {
  explicit Lists(const v1::JobSpec& job)
      : all(model::ArchitectureOf(job.model())), frozen(FrozenOf(all, job.training())) {}

  const TensorList all;
  const FrozenFlags frozen;
  // By tensor degree, stages, chunks of a stage, stage, and what the layout says of layers.
  std::map<std::tuple<int, int, int, int, std::vector<int>>, StageTensors> stages;
};

StageTables::StageTables(const v1::JobSpec& job) : job_(job) {
  TERCIO_CHECK_GT(job.model().vocab_size(), 0);
  lists_ = std::make_unique<Lists>(job);
}
StageTables::~StageTables() = default;

const std::vector<LogicalTensor>& StageTables::tensors() const { return lists_->all.tensors; }

const StageTensors& StageTables::Of(const v1::Layout& layout, int stage) {
  const auto [found, is_new] =
      lists_->stages.try_emplace({layout.tensor(),
                                  layout.pipeline(),
                                  std::max(1, layout.virtual_pipeline()),
                                  stage,
                                  {layout.stage_layers().begin(), layout.stage_layers().end()}});
  if (is_new) {
    found->second = TensorsOfStage(lists_->all, lists_->frozen, job_.model(), layout, stage);
  }
  return found->second;
}

std::vector<LogicalTensor> TensorsSharedByLayers(const v1::JobSpec& job) {
  std::vector<LogicalTensor> shared = ModelTensors(job.model());
  std::erase_if(shared, [&](const LogicalTensor& tensor) {
    return !tensor.shared || PolicyOf(tensor, job.training()).frozen;
  });
  return shared;
}

std::vector<bool> TensorsWithGradients(const v1::JobSpec& job) {
  const TensorList all(model::ArchitectureOf(job.model()));
  std::vector<bool> with(all.tensors.size());
  const auto runs = RunsOf(all, FrozenOf(all, job.training()), [](const auto&) { return true; });
  for (const Run& run : runs) {
    for (const TensorList::Use* use = run.first; use != run.first + run.count; ++use) {
      with[use->tensor] = !run.frozen;
    }
  }
  return with;
}

std::vector<bool> TensorsQuantized(const v1::JobSpec& job) {
  const TensorList all(model::ArchitectureOf(job.model()));
  std::vector<bool> quantized(all.tensors.size());
  const auto runs = RunsOf(all, FrozenOf(all, job.training()), [](const auto&) { return true; });
  for (const Run& run : runs) {
    if (!IsQuantized(all, run, BaseFormatOf(job.model()))) continue;
    for (size_t i = 0; i < run.count; ++i) quantized[run.first[i].tensor] = true;
  }
  return quantized;
}

int FirstTrainedLayer(const v1::JobSpec& job) {
  const TensorList all(model::ArchitectureOf(job.model()));
  const FrozenFlags frozen = FrozenOf(all, job.training());
  int first = all.layers;
  for (const TensorList::Use& use : all.uses) {
    if (!frozen[use.tensor]) first = std::min(first, use.layer);
  }
  return first;
}

bool TrainsAnything(const v1::JobSpec& job) {
  const TensorList all(model::ArchitectureOf(job.model()));
  const FrozenFlags frozen = FrozenOf(all, job.training());
  return std::find(frozen.begin(), frozen.end(), false) != frozen.end();
}

bool BelongsToTask(const v1::ModelSpec& spec, std::string_view name) {
  const model::Architecture architecture = model::ArchitectureOf(spec);
  for (const model::Tensor& tensor : model::HeadTensors(architecture)) {
    if (tensor.of_task && tensor.name == name) return true;
  }
  return architecture.adapted && model::IsOfAdapter(name);
}

bool IsTied(const v1::ModelSpec& spec) {
  return model::ArchitectureOf(spec).head.reads_token_table();
}

int64_t ParameterCount(const v1::ModelSpec& model) {
  int64_t count = 0;
  for (const LogicalTensor& tensor : ModelTensors(model)) count += tensor.rows * tensor.columns;
  return count;
}

double FlopsPerToken(const v1::ModelSpec& spec, AttentionCount count) {
  const model::Architecture architecture = model::ArchitectureOf(spec);
  // A masked model looks at some 15 % of its positions' tokens (Devlin et al. 2019).
  const double of_stream = architecture.head.language.has_value() ? 1
                           : architecture.head.masked.has_value() ? 0.15
                                                                  : 0;
  const double predicted = of_stream * static_cast<double>(architecture.streams.back().tokens) /
                           static_cast<double>(architecture.tokens_of_sequence());
  const double products =
      model::WeightsInProducts(architecture) +
      predicted * static_cast<double>(spec.hidden()) * static_cast<double>(spec.vocab_size());
  // Scores and values are two products of two operations each, once forward and twice backward.
  const double attention = 12.0 * model::ElementsTimesKeys(architecture, count);
  // Each weight costs two operations in the forward pass and four in the backward pass.
  return 6 * products + attention;
}

}  // namespace tercio::plan
