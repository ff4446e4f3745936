// The one table of a model's logical tensors: canonical names, global shapes, how each is cut over
// tensor ranks, which get weight decay, how they are initialised; and where a stage keeps its
// slices. Pure. Plans, checkpoints, randomness keys and gradient tests all use these names.
//
//   embedding.token.weight [V, C]          embedding.position.weight [T, C]
//   layers.N.attention_norm.weight|bias [C]
//   layers.N.attention.query.weight [C, C] (cut by rows = heads)             ...bias [C] (cut)
//   layers.N.attention.key|value.weight [K, C] (cut by rows = heads)         ...bias [K] (cut)
//   layers.N.attention.output.weight [C, C] (cut by columns)                 ...bias [C] (whole)
//   layers.N.mlp_norm.weight|bias [C]
//   layers.N.mlp.gate.weight [F, C] (cut by rows; llama)
//   layers.N.mlp.up.weight [F, C] (cut by rows)   ...bias [F] (cut)
//   layers.N.mlp.down.weight [C, F] (cut by columns)   ...bias [C] (whole)
//   final_norm.weight|bias [C]
//   head.weight [V, C] (cut by rows; absent where the head is tied to embedding.token.weight)
// K = C * kv_heads / heads. llama has no position table and no norm biases. bert has besides
//   embedding.type.weight [types, C]       embedding.norm.weight|bias [C] (post-norm, which has no
//                                          final_norm)
//   head.transform.weight [C, C]  ...bias [C]   head.norm.weight|bias [C]   head.bias [V] (cut)
//   pooler.weight [C, C]  ...bias [C]
//   sentence_order.weight [2, C]  ...bias [2], or classifier.weight [labels, C]  ...bias [labels]
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base_format.h"
#include "model/architecture.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

using Shard = model::Cut;
using Initialization = model::Initialization;

// The matrix view of a vector of n elements is n rows x 1 column, so that kRows cuts it.
struct LogicalTensor {
  std::string name;
  int64_t rows = 0;  // logical, never padded
  int64_t columns = 1;
  bool is_vector = false;
  bool vocabulary = false;      // rows are token ids: padded where they are cut
  bool continues = false;       // lies right behind the tensor before it, as one matrix
  bool of_task = false;         // a model of another task may bring its own
  bool partial = false;         // whole, but a rank has the gradient of its own heads only
  bool shared = false;          // several layers have it
  bool of_adapter = false;      // is trained beside the model
  bool below_adapters = false;  // of a model with adapters, and not trained itself
  int layer = -1;               // -1: embedding; `layers`: final norm and head
  Shard shard = Shard::kWhole;
  bool weight_decay = false;
  Initialization initialization = Initialization::kZeros;
  int index = 0;     // position in ModelTensors(): the canonical order
  uint32_t key = 0;  // of its random numbers: the same in every later version of the model
};

// All tensors of the model in canonical order, those that are tied once. REQUIRES: vocab_size > 0.
std::vector<LogicalTensor> ModelTensors(const v1::ModelSpec& model);

// What ties the head's matrix to the token table.
inline constexpr char kHeadMatrix[] = "head.weight";

// Whether the model, when it starts from the weights of one with another task or without adapters,
// may bring this tensor itself: that of a masked head, a pooler, a classifier or an adapter.
bool BelongsToTask(const v1::ModelSpec& model, std::string_view name);

// Whether the token table is read by the head, too.
bool IsTied(const v1::ModelSpec& model);

// Vocabulary rounded up to a multiple of 16 * tensor.
int64_t PaddedVocabulary(int64_t vocab_size, int tensor);

// The part of a tensor that a tensor rank holds, in logical coordinates; rows/columns may be empty
// for a rank whose vocabulary rows are all padding.
struct TensorShard {
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t column_begin = 0;
  int64_t column_end = 0;
  int64_t local_rows = 0;  // including padding rows
  int64_t local_columns = 0;
};
TensorShard ShardOfRank(const LogicalTensor& tensor, int tensor_degree, int tensor_index,
                        int64_t padded_vocabulary);

// One entry of a stage's flat buffers. Offsets count elements; every tensor starts at a multiple of
// 16, except that query, key, value (weights, and biases), and gate and up, follow each other
// without a gap, as one matrix.
//
// Frozen tensors (plan/tensor_policy.h) have weights only. In the embedding, in each layer and in
// the head they come before the others, so that these are two runs. One matrix is never torn apart:
// where a part of it is trained, all of it has gradients and optimizer state.
//
// A tied tensor has an entry for each use. Each has a gradient of its own; the first one on a stage
// has the stage's copy of the parameter, which the others read.
struct StageTensor {
  LogicalTensor tensor;
  std::string use;               // the tensor's name but for further uses
  bool further_use = false;      // of a tensor whose first use is elsewhere in the model
  bool own_parameter = true;     // no entry before it on the stage has the parameter
  int layer = -1;                // of the use: as in `tensor`, but `layers` for a tied head
  bool in_layer = false;         // the use is a layer's, not the embedding's or the head's
  bool frozen = false;           // no gradient, no optimizer state
  int64_t elements = 0;          // local
  int64_t parameter_offset = 0;  // without a parameter of its own: that of the entry which has it
  // Frozen ones, which have no gradient, are counted on their own.
  int64_t gradient_offset = 0;
};

// A matrix that is kept as codes of few bits (model.base_format; kernels/quantized_base.h): a
// frozen one of a layer's products, as a whole. Every data rank has all of it. Offsets are bytes in
// the buffer kBaseBuffer.
struct QuantizedTensor {
  LogicalTensor tensor;
  int64_t rows = 0;  // local, as `columns`, which are whole blocks
  int64_t columns = 0;
  int64_t codes = 0;   // row by row
  int64_t scales = 0;  // a code for each block of 64 elements
  int64_t groups = 0;  // floats: the mean of the whole tensor's scales, and of each 256 their scale
  int64_t group_count = 0;

  int64_t elements() const { return rows * columns; }
  int64_t blocks() const { return elements() / kernels::kBaseBlock; }
};
inline constexpr char kBaseBuffer[] = "parameters.base";
// Scratch in which the weights of one product lie while it is computed.
inline constexpr char kDequantizedBuffer[] = "workspace.dequantized";

// What a tensor is in checkpoints, in the place of its values, as floats in which four bytes of
// codes each lie as they are, codes of scales as numbers, and the groups.
inline constexpr char kBasePrefix[] = "training.base.";
inline constexpr char kBaseCodes[] = "training.base.codes.";
inline constexpr char kBaseScales[] = "training.base.scales.";
inline constexpr char kBaseGroups[] = "training.base.groups.";

struct StageTensors {
  // In flat order: that of the forward pass, ascending gradient_offset, of frozen ones as well;
  // without those that are quantised.
  std::vector<StageTensor> tensors;
  int64_t parameter_elements = 0;
  int64_t gradient_elements = 0;
  // In the order of the forward pass; those of one product follow each other.
  std::vector<QuantizedTensor> quantized;
  kernels::BaseFormat base_format = kernels::BaseFormat::kNone;
  int64_t base_bytes = 0;            // of kBaseBuffer
  int64_t dequantized_elements = 0;  // of the product with the most
};

// model.base_format.
kernels::BaseFormat BaseFormatOf(const v1::ModelSpec& model);

// The table of one stage; the same for all its tensor and data ranks.
StageTensors TensorsOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage);
// That of a model of which nothing is frozen.
StageTensors TensorsOfStage(const v1::ModelSpec& model, const v1::Layout& layout, int stage);

// The same for many stages and layouts of one job, whose tensors are listed once. A table is made
// when it is first asked for, and stays as long as this does. Not for several threads at a time.
class StageTables {
 public:
  // REQUIRES: vocab_size > 0. `job` must outlive it.
  explicit StageTables(const v1::JobSpec& job);
  ~StageTables();
  StageTables(const StageTables&) = delete;
  StageTables& operator=(const StageTables&) = delete;

  // ModelTensors.
  const std::vector<LogicalTensor>& tensors() const;
  const StageTensors& Of(const v1::Layout& layout, int stage);

 private:
  struct Lists;

  const v1::JobSpec& job_;
  std::unique_ptr<Lists> lists_;
};

// Tensors that several layers share and that are not frozen, in the order of the model: one entry
// for each, by its name.
std::vector<LogicalTensor> TensorsSharedByLayers(const v1::JobSpec& job);

// By ModelTensors: whether a tensor has gradients and optimizer state, for it is not frozen, or is
// a part of a matrix that is not.
std::vector<bool> TensorsWithGradients(const v1::JobSpec& job);

// By ModelTensors: whether a tensor is a QuantizedTensor of the job.
std::vector<bool> TensorsQuantized(const v1::JobSpec& job);

// The first use in the model of a tensor that is not frozen, as StageTensor::layer: the backward
// pass ends there. The number of the model's layers stands for the head, also where all is frozen.
int FirstTrainedLayer(const v1::JobSpec& job);
// Whether anything is left to train. vocab_size may be 0.
bool TrainsAnything(const v1::JobSpec& job);

int64_t ParameterCount(const v1::ModelSpec& model);

using AttentionCount = model::AttentionCount;

// Model FLOPs of one token, forward and backward: 6 * (weights in products) + attention; where a
// model has several streams, on average over the tokens of a sequence.
double FlopsPerToken(const v1::ModelSpec& model, AttentionCount count);

}  // namespace tercio::plan
