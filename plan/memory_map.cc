#include "plan/memory_map.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/scratch.h"
#include "kernels/exact_sum.h"
#include "kernels/ops.h"
#include "plan/buckets.h"
#include "plan/fp8.h"
#include "plan/gpu_reserve.h"
#include "plan/lanes.h"
#include "plan/model_tensors.h"
#include "plan/model_traits.h"
#include "plan/precision.h"
#include "plan/reduction_scratch.h"
#include "plan/reproducibility.h"
#include "plan/schedule.h"
#include "plan/snapshots.h"

namespace tercio::plan {
namespace {

constexpr int64_t kAlignment = 256;  // bytes: of vector accesses on any device
constexpr int64_t kFloat = sizeof(float);
// Full vectors of every instruction set, and no more lengths than are worth telling apart.
constexpr int64_t kLengthUnit = 16;
// Rows of the head at once on a GPU: its products are as fast as larger ones, and the logits of
// 50,304 tokens take 0.8 GB in 16 bits.
constexpr int64_t kGpuChunkRows = 8192;
// The workspace of cuDNN's gradients of attention: all scores of 32 heads of 2,048 tokens. Calls
// that want more are cut (kernels/cuda/attention_cudnn.h), at the least to the queries of one key
// head; that these fit is worth this much, for our own kernel is far slower.
constexpr int64_t kAttentionWorkspace = int64_t{296} << 20;
constexpr int64_t kMostAttentionWorkspace = int64_t{2304} << 20;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Hands out consecutive pieces, in bytes.
class Cutter {
 public:
  int64_t Take(int64_t bytes) {
    const int64_t at = next_;
    // A piece without bytes, such as a buffer this stage does not need, leaves the end where it is.
    if (bytes > 0) end_ = at + bytes;
    next_ += RoundUp(bytes, kAlignment);
    return at;
  }
  int64_t total() const { return next_; }
  // The end of the last piece.
  int64_t end() const { return end_; }

 private:
  int64_t next_ = 0;
  int64_t end_ = 0;
};

class TableBuilder {
 public:
  // Buffers that are not needed are entered with 0 bytes, so that every name is found.
  void Add(const std::string& name, v1::BufferKind kind, int64_t bytes) {
    const int64_t offset = table_.total_bytes();
    v1::Buffer* buffer = Append(name, kind, bytes);
    buffer->set_offset_bytes(offset);
    table_.set_total_bytes(offset + RoundUp(bytes, kAlignment));
  }
  // What lies on the host has an arena of its own.
  void AddOnHost(const std::string& name, v1::BufferKind kind, int64_t bytes) {
    const int64_t offset = table_.host_bytes();
    v1::Buffer* buffer = Append(name, kind, bytes);
    buffer->set_on_host(true);
    buffer->set_offset_bytes(offset);
    table_.set_host_bytes(offset + RoundUp(bytes, kAlignment));
  }
  void Floats(const std::string& name, v1::BufferKind kind, int64_t count) {
    Add(name, kind, count * kFloat);
  }
  void Values(const std::string& name, v1::BufferKind kind, const Precision& precision,
              int64_t count) {
    Add(name, kind, count * precision.bytes());
  }
  v1::MemoryTable Finish() { return std::move(table_); }

 private:
  v1::Buffer* Append(const std::string& name, v1::BufferKind kind, int64_t bytes) {
    v1::Buffer* buffer = table_.add_buffers();
    buffer->set_name(name);
    buffer->set_kind(kind);
    buffer->set_size_bytes(bytes);
    return buffer;
  }

  v1::MemoryTable table_;
};

// Elements of the first tensor rank's part of a tensor, which has the most: without rows that pad
// the vocabulary, for those are in no checkpoint.
int64_t LogicalElements(const v1::JobSpec& job, const v1::Layout& layout,
                        const LogicalTensor& tensor) {
  const TensorShard shard = ShardOfRank(
      tensor, layout.tensor(), 0, PaddedVocabulary(job.model().vocab_size(), layout.tensor()));
  return (shard.row_end - shard.row_begin) * shard.local_columns;
}

// All that a rank needs to continue: weights and both moments of its tensors. A tied head beside
// its lookup shares the lookup's.
int64_t CopyElements(const v1::JobSpec& job, const v1::Layout& layout, const StageTensors& stage) {
  int64_t elements = 0;
  for (const StageTensor& entry : stage.tensors) {
    const bool shared = entry.role == TensorRole::kHead && layout.pipeline() == 1;
    if (!shared) elements += 3 * LogicalElements(job, layout, entry.tensor);
  }
  return elements;
}

// The most that any data rank saves: weights and both moments of its tensors; the first one saves
// `of_first` beside them.
int64_t SavedElements(const v1::JobSpec& job, const v1::Layout& layout, const StageTensors& stage,
                      int64_t of_first) {
  // The largest load counts: all data ranks of a stage get the same memory table.
  std::vector<int64_t> elements(static_cast<size_t>(layout.data()));
  elements[0] = of_first;
  const std::vector<int> savers = SavingDataRanks(stage, layout.data());
  for (size_t i = 0; i < savers.size(); ++i) {
    if (savers[i] < 0) continue;
    elements[static_cast<size_t>(savers[i])] +=
        3 * LogicalElements(job, layout, stage.tensors[i].tensor);
  }
  return *std::max_element(elements.begin(), elements.end());
}

// Every rank needs the step guard's state, the first one saves it; of the scales of 8 bits those of
// its stage, and the stage's first one.
int64_t SnapshotElements(const v1::JobSpec& job, const v1::Layout& layout,
                         const StageTensors& stage_tensors, int stage) {
  const bool copies = KeepsCopies(job);
  int64_t guard = copies || stage == 0 ? StateElements(job) : 0;
  if (HasFp8(job)) guard += kFp8StateOfLayer * job.model().layers() / layout.pipeline();
  // The guard's state is in no buffer, so that also a save in place needs a copy of it.
  if (SavesInPlace(job)) return guard;
  return copies ? guard + CopyElements(job, layout, stage_tensors)
                : SavedElements(job, layout, stage_tensors, guard);
}

// Null: cuDNN takes the model's calls.
const char* WhyNotCudnn(const StageShape& shape) {
  return kernels::cuda::WhyNotCudnn({.format = shape.precision.format,
                                     .sequences = shape.sequences,
                                     .tokens = shape.tokens,
                                     .heads = shape.heads,
                                     .head_dim = shape.head_dim,
                                     .stride = shape.qkv});
}

// Scratch of cuDNN's gradients of attention for some heads of some sequences.
int64_t AttentionBytes(const v1::JobSpec& job, const StageShape& shape, int64_t sequences,
                       int64_t heads) {
  return kernels::cuda::LibraryAttentionBytes({.sequences = sequences,
                                               .tokens = shape.tokens,
                                               .heads = heads,
                                               .group = shape.heads / shape.key_heads,
                                               .head_dim = shape.head_dim,
                                               .dropout = job.model().dropout() > 0});
}
int64_t LeastAttentionBytes(const v1::JobSpec& job, const StageShape& shape) {
  return AttentionBytes(job, shape, 1, shape.heads / shape.key_heads);
}

// Workspace of cuDNN's attention, where it takes the model's calls.
int64_t AttentionWorkspace(const v1::JobSpec& job, const StageShape& shape) {
  if (WhyNotCudnn(shape) != nullptr) return 0;
  int64_t least = LeastAttentionBytes(job, shape);
  if (least > kMostAttentionWorkspace) least = 0;  // our own kernel does the gradients
  return std::min(AttentionBytes(job, shape, shape.sequences, shape.heads),
                  std::max(kAttentionWorkspace, least));
}

// For the operations of a GPU: of layers, of the head, and over whole tensors.
int64_t DeviceWorkspace(const v1::JobSpec& job, const StageShape& shape,
                        const StageTensors& tensors) {
  // Operations of the CPU have buffers of their own, which are sized for their threads.
  if (!OnGpu(job)) return 0;
  kernels::cuda::ScratchShapes layers;
  layers.rows = shape.rows;
  layers.norm_columns = shape.hidden;
  layers.sum_columns = std::max({shape.qkv, shape.up, shape.hidden});
  layers.heads = shape.heads;
  layers.product_bytes = kernels::cuda::kProductWorkspaceBytes;
  layers.library_attention_bytes = AttentionWorkspace(job, shape);
  for (const StageTensor& entry : tensors.tensors) {
    // Digests look at one tensor at a time, norms at all of them in one pass.
    layers.digest_count = std::max(layers.digest_count, entry.elements);
    layers.squares_count += entry.elements;
  }
  kernels::cuda::ScratchShapes head;
  head.rows = shape.chunk_rows;
  head.sum_columns = shape.last ? shape.vocabulary : 0;
  // The head and the layers never run at the same time, so they share the room.
  return std::max(kernels::cuda::CudaScratchBytes(layers), kernels::cuda::CudaScratchBytes(head));
}

void AddWorkspace(const v1::JobSpec& job, const StageShape& shape, const StageTensors& tensors,
                  int threads, TableBuilder* table) {
  // The widest gradient is that of query, key and value or that of
  // the feed-forward part, and only one of them is alive.
  const int64_t wide = std::max(shape.qkv, shape.up);
  const auto add = [&](const char* name, int64_t count) {
    table->Values(name, v1::BUFFER_KIND_WORKSPACE, shape.precision, count);
  };
  add("workspace.branch", shape.rows * shape.hidden);
  // Without dropout a branch's gradient is that of its sum.
  add("workspace.branch_gradient", job.model().dropout() > 0 ? shape.local_rows * shape.hidden : 0);
  // A gathered input and a sum of local rows exist only where ranks hold parts of the rows.
  add("workspace.gathered", shape.sequence_parallel ? shape.rows * shape.hidden : 0);
  add("workspace.local_sum", shape.sequence_parallel ? shape.local_rows * shape.hidden : 0);
  add("workspace.norm_gradient", shape.rows * shape.hidden);
  add("workspace.wide_gradient", shape.rows * wide);
  add("workspace.attention_gradient", shape.rows * shape.attention);
  // The gradient of a gated MLP's product cannot be made in place.
  add("workspace.gated_gradient", shape.up > shape.ffn ? shape.rows * shape.ffn : 0);
  table->Floats("workspace.rotary", v1::BUFFER_KIND_WORKSPACE,
                shape.rotary ? shape.tokens * shape.head_dim : 0);
  table->Add("workspace.device", v1::BUFFER_KIND_WORKSPACE, DeviceWorkspace(job, shape, tensors));
  table->Floats("workspace.attention", v1::BUFFER_KIND_WORKSPACE,
                OnGpu(job) ? 0 : kernels::AttentionScratch(shape.tokens, shape.head_dim, threads));
}

// Classes of whole sequences: everything has one row per sequence.
void AddClasses(const StageShape& shape, TableBuilder* table) {
  if (shape.classes == 0) return;
  for (const char* name : {"classes.first", "classes.pooled", "classes.dropped", "classes.gradient",
                           "classes.pooled_gradient"}) {
    table->Values(name, v1::BUFFER_KIND_WORKSPACE, shape.precision, shape.sequences * shape.hidden);
  }
  table->Values("classes.logits", v1::BUFFER_KIND_WORKSPACE, shape.precision,
                shape.sequences * shape.classes);
  const auto add = [&](const char* name, int64_t count) {
    table->Floats(name, v1::BUFFER_KIND_WORKSPACE, shape.sequences * count);
  };
  add("classes.stats", kernels::kCrossEntropyStats);
  add("classes.lse", 1);
  add("classes.loss", 1);
}

void AddHead(const StageShape& shape, int tensor, TableBuilder* table) {
  if (!shape.last) return;
  const auto add = [&](const char* name, int64_t count) {
    table->Floats(name, v1::BUFFER_KIND_WORKSPACE, count);
  };
  AddClasses(shape, table);
  // A classifier predicts no tokens, so there is nothing more to make room for.
  if (shape.classes > 0 && !shape.masked_head) return;
  if (shape.masked_head) {
    for (const char* name : {"head.rows", "head.transform", "head.activation", "head.norm",
                             "head.gradient", "head.transform_gradient"}) {
      table->Values(name, v1::BUFFER_KIND_WORKSPACE, shape.precision,
                    // A masked head works on the predicted rows only; in
                    // the worst case these are all of them.
                    shape.chunk_rows * shape.hidden);
    }
    add("head.norm_mean", shape.chunk_rows);
    add("head.norm_rstd", shape.chunk_rows);
  }
  table->Values("head.logits", v1::BUFFER_KIND_WORKSPACE, shape.precision,
                shape.chunk_rows * shape.vocabulary);
  add("head.stats", shape.chunk_rows * kernels::kCrossEntropyStats);
  // The statistics of all tensor ranks are gathered, since each has a part of the vocabulary.
  add("head.all_stats", shape.chunk_rows * kernels::kCrossEntropyStats * tensor);
  add("head.lse", shape.chunk_rows);
  add("head.loss", shape.chunk_rows);
}

// Elements of the largest sum over tensor ranks: the rows of a micro-batch, or, where each rank has
// the gradient of its rows only, a tensor that all of them hold.
int64_t LargestTensorSum(const v1::ModelSpec& model, const v1::Layout& layout,
                         const StageShape& shape, int stage) {
  int64_t largest = shape.rows * shape.hidden;
  if (!shape.sequence_parallel) return largest;
  for (const StageTensor& entry : TensorsOfStage(model, layout, stage).tensors) {
    if (entry.tensor.shard == Shard::kWhole) largest = std::max(largest, entry.elements);
  }
  return largest;
}

// Weights of 8 bits; the factors of one product; scales, and what they are made from: the largest
// values of this rank's step, then of all tensor and data ranks (worker/engine/linear_layers.h).
void AddFp8(const v1::Layout& layout, const StageShape& shape, TableBuilder* table) {
  if (!shape.fp8) return;
  const int64_t layers = int64_t{shape.layers} * shape.chunks;
  table->Add("parameters.fp8", v1::BUFFER_KIND_PARAMETER, layers * Fp8LayerBytes(shape));
  const auto add = [&](const char* name, int64_t bytes) {
    table->Add(name, v1::BUFFER_KIND_WORKSPACE, bytes);
  };
  add("fp8.input", shape.rows * MostFp8Inputs(shape));
  // One linear part is computed at a time, so the largest of the four sizes the buffers.
  add("fp8.gradient", shape.rows * MostFp8Outputs(shape));
  add("fp8.turned_gradient", shape.rows * MostFp8Outputs(shape));
  const int64_t slots = layers * kFp8SlotsOfLayer;
  const auto scale = static_cast<int64_t>(sizeof(kernels::Scale));
  add("fp8.scales", slots * scale);
  add("fp8.weight_scales", layers * static_cast<int64_t>(kLinears.size()) * scale);
  add("fp8.largest", slots * kFloat);
  const auto gathered = [&](const char* name, int64_t ranks) {
    table->Floats(name, v1::BUFFER_KIND_COMMUNICATION, slots * ranks);
  };
  gathered("fp8.tensor_largest", layout.tensor());
  gathered("fp8.all_largest", int64_t{layout.tensor()} * layout.data());
}

void AddCommunication(const v1::JobSpec& job, const v1::Layout& layout, const StageShape& shape,
                      int stage, TableBuilder* table) {
  const auto add = [&](const char* name, int64_t count) {
    table->Floats(name, v1::BUFFER_KIND_COMMUNICATION, count);
  };
  // Buckets are reduced one after the other, so that the largest one sizes the scratch.
  int64_t bucket = 0;
  for (const v1::BucketRange& range : BucketsOfStage(job, layout, stage)) {
    bucket = std::max(bucket, range.end() - range.begin());
  }
  const int64_t flow = shape.local_rows * shape.hidden;
  table->Values("gradient_flow.0", v1::BUFFER_KIND_COMMUNICATION, shape.precision, flow);
  // The second buffer receives while the first one is computed in; one stage receives nothing.
  table->Values("gradient_flow.1", v1::BUFFER_KIND_COMMUNICATION, shape.precision,
                layout.pipeline() > 1 ? flow : 0);
  // Sums of GPUs are NCCL's, which has buffers of its own, or are made on the host.
  const auto add_scratch = [&](const char* name, int64_t count, int ranks) {
    add(name, OnGpu(job) ? 0 : AllReduceScratch(count, ranks));
  };
  add_scratch("tensor_scratch", LargestTensorSum(job.model(), layout, shape, stage),
              layout.tensor());
  add_scratch("data_scratch", bucket, layout.data());
  const ModelTraits traits = TraitsOf(job.model());
  const bool tied = traits.tied_head && traits.head != Head::kNone;
  // On one stage both uses of the table add to the same rank, so that nothing is exchanged.
  const bool tied_exchange = tied && layout.pipeline() > 1 && (shape.first || shape.last);
  add("tied_gradient", tied_exchange ? shape.vocabulary * shape.hidden : 0);
  const auto here = static_cast<int64_t>(TensorsOfStage(job.model(), layout, stage).tensors.size());
  table->Add("replica_exchange", v1::BUFFER_KIND_COMMUNICATION,
             ReplicaExchange(layout, here) * static_cast<int64_t>(sizeof(double)));
  table->Add("replica_digests", v1::BUFFER_KIND_COMMUNICATION,
             layout.data() > 1 ? 3 * here * static_cast<int64_t>(sizeof(uint64_t)) : 0);
  table->Add("exchange", v1::BUFFER_KIND_COMMUNICATION,
             ExchangedNumbers(job) * static_cast<int64_t>(sizeof(double)));
}

// The embedding reads inputs, and types; a head what it predicts; a bert's attention lengths.
void AddTokens(const StageShape& shape, TableBuilder* table) {
  const auto add = [&](const char* name, bool needed, int64_t of_sequence) {
    // All tokens of a step are loaded at once, so they cost memory for every micro-batch.
    const int64_t bytes =
        shape.sequences_per_rank * of_sequence * static_cast<int64_t>(sizeof(int32_t));
    table->Add(name, v1::BUFFER_KIND_WORKSPACE, needed ? bytes : 0);
  };
  const bool encoder = !shape.causal;
  add("tokens.inputs", shape.first, shape.tokens);
  add("tokens.targets", shape.last && (shape.causal || shape.masked_head), shape.tokens);
  add("tokens.types", shape.first && encoder, shape.tokens);
  add("tokens.predicted", shape.last && shape.masked_head, shape.tokens);
  add("tokens.lengths", encoder, 1);
  add("tokens.labels", shape.last && shape.classes > 0, 1);
  add("tokens.first_rows", shape.last && shape.classes > 0, 1);
}

const char* KindName(v1::BufferKind kind) {
  switch (kind) {
    case v1::BUFFER_KIND_PARAMETER:
      return "parameters";
    case v1::BUFFER_KIND_GRADIENT:
      return "gradients";
    case v1::BUFFER_KIND_OPTIMIZER:
      return "optimizer";
    case v1::BUFFER_KIND_ACTIVATION:
      return "activations";
    case v1::BUFFER_KIND_WORKSPACE:
      return "workspace";
    case v1::BUFFER_KIND_COMMUNICATION:
      return "communication";
    case v1::BUFFER_KIND_SNAPSHOT:
      return "snapshot";
    default:
      return "other";
  }
}

// Layouts of older versions lack the word.
Recompute RecomputeOf(const v1::Layout& layout) {
  switch (layout.recompute()) {
    case v1::RECOMPUTE_SELECTIVE:
      return Recompute::kSelective;
    case v1::RECOMPUTE_FULL:
      return Recompute::kFull;
    case v1::RECOMPUTE_UNSPECIFIED:
    case v1::RECOMPUTE_NONE:
    case v1::Recompute_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::Recompute_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return Recompute::kNone;
}

}  // namespace

std::vector<RowPiece> PiecesOfRows(int64_t rows, int parts) {
  std::vector<RowPiece> pieces;
  for (int64_t i = 0; i < parts; ++i) {
    // Multiplying before dividing keeps the lengths within one row of each other.
    const int64_t first = rows * i / parts;
    const int64_t end = rows * (i + 1) / parts;
    if (end > first) pieces.push_back({first, end - first});
  }
  return pieces;
}

int64_t ComputedTokens(const StageShape& shape, int64_t longest) {
  const int64_t unit = shape.length_unit;
  if (unit == 0) return shape.tokens;
  return std::min((longest + unit - 1) / unit * unit, shape.tokens);
}

StageShape ShapeOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage) {
  const v1::ModelSpec& model = job.model();
  const ModelTraits traits = TraitsOf(model);
  StageShape shape;
  shape.sequences = layout.micro_batch();
  shape.tokens = model.context();
  shape.rows = shape.sequences * shape.tokens;
  shape.precision = PrecisionOf(job);
  shape.fp8 = HasFp8(job);
  shape.sequence_parallel = layout.sequence_parallel() && layout.tensor() > 1;
  shape.local_rows = shape.sequence_parallel ? shape.rows / layout.tensor() : shape.rows;
  shape.tensor_overlap =
      // Sums in pieces are not built for rows that are divided already (config/job_file.cc).
      layout.tensor() > 1 && !shape.sequence_parallel ? std::max(1, layout.tensor_overlap()) : 1;
  shape.hidden = model.hidden();
  shape.attention = model.hidden() / layout.tensor();
  shape.heads = model.heads() / layout.tensor();
  shape.head_dim = traits.head_dim;
  shape.key_heads = traits.kv_heads / layout.tensor();
  shape.qkv = shape.attention + 2 * shape.key_heads * shape.head_dim;
  shape.ffn = model.ffn_hidden() / layout.tensor();
  shape.up = traits.gated_mlp ? 2 * shape.ffn : shape.ffn;
  shape.rotary = !traits.learned_positions;
  shape.causal = traits.causal;
  shape.post_norm = traits.post_norm;
  shape.masked_head = traits.head == Head::kMaskedToken;
  shape.classes = traits.classes;
  shape.vocabulary = PaddedVocabulary(model.vocab_size(), layout.tensor()) / layout.tensor();
  // A layout without interleaving may leave this at 0.
  shape.chunks = std::max(1, layout.virtual_pipeline());
  shape.layers = model.layers() / (layout.pipeline() * shape.chunks);
  shape.recompute = RecomputeOf(layout);
  shape.first = stage == 0;
  shape.last = stage == layout.pipeline() - 1;
  shape.sequences_per_rank = int64_t{layout.micro_batch()} * layout.micro_batches();
  // Only encoders have padding. A GPU's products are timed and planned for one number of rows.
  if (!shape.causal && !OnGpu(job)) {
    shape.length_unit = std::lcm(kLengthUnit, shape.sequence_parallel ? layout.tensor() : 1);
  }
  // Whole sequences where they are short, pieces of one sequence where they are long.
  const int64_t most = OnGpu(job) ? kGpuChunkRows : kernels::kPieceRows;
  const int64_t whole = std::max<int64_t>(1, most / shape.tokens);
  shape.chunk_rows = std::min(most, std::min(whole, shape.sequences) * shape.tokens);
  // A masked head goes from sequence to sequence: each has its own number of rows.
  if (shape.masked_head) shape.chunk_rows = std::min(most, shape.tokens);
  return shape;
}

LayerActivations ActivationsOfLayer(const StageShape& shape) {
  Cutter own;
  Cutter shared;
  // What is computed again lies in a buffer that all
  // layers share, for one layer needs it at a time.
  const auto take = [&](bool again, int64_t bytes) {
    return LayerField{again ? shared.Take(bytes) : own.Take(bytes), again};
  };
  const int64_t value = shape.precision.bytes();
  const bool full = shape.recompute == Recompute::kFull;
  const bool cheap = shape.recompute != Recompute::kNone;
  const int64_t residual = shape.local_rows * shape.hidden * value;
  const int64_t statistic = shape.local_rows * kFloat;
  LayerActivations at;
  at.input = take(false, residual);
  at.norm1 = take(cheap && !shape.post_norm, residual);
  at.mean1 = take(full && !shape.post_norm, statistic);
  at.rstd1 = take(full && !shape.post_norm, statistic);
  at.qkv = take(full, shape.rows * shape.qkv * value);
  at.attention = take(full, shape.rows * shape.attention * value);
  at.lse = take(full, shape.rows * shape.heads * kFloat);
  at.middle = take(full, residual);
  at.norm2 = take(cheap, residual);
  at.mean2 = take(full, statistic);
  at.rstd2 = take(full, statistic);
  at.up = take(full, shape.rows * shape.up * value);
  at.gelu = take(cheap, shape.rows * shape.ffn * value);
  at.total = own.total();
  at.shared_total = shared.end();
  return at;
}

SlotActivations ActivationsOfSlot(const StageShape& shape) {
  Cutter cut;
  SlotActivations at;
  const int64_t value = shape.precision.bytes();
  at.layer_stride = ActivationsOfLayer(shape).total;
  cut.Take(at.layer_stride * shape.layers);
  at.output = cut.Take(shape.local_rows * shape.hidden * value);
  // The final norm belongs to the last stage alone, and post-norm models have none.
  const int64_t final_rows = shape.last && !shape.post_norm ? shape.local_rows : 0;
  at.final_norm = cut.Take(final_rows * shape.hidden * value);
  at.final_mean = cut.Take(final_rows * kFloat);
  at.final_rstd = cut.Take(final_rows * kFloat);
  const int64_t embedding_rows = shape.first && shape.post_norm ? shape.local_rows : 0;
  at.embedding_sum = cut.Take(embedding_rows * shape.hidden * value);
  at.embedding_mean = cut.Take(embedding_rows * kFloat);
  at.embedding_rstd = cut.Take(embedding_rows * kFloat);
  at.total = cut.end();
  return at;
}

int SumsPerSequence(const v1::ModelSpec& model) {
  // The number of predicted tokens is known beforehand only where every token is predicted.
  return TraitsOf(model).head == Head::kNextToken ? 1 : 3;
}

int64_t ExchangedNumbers(const v1::JobSpec& job) {
  const auto tensors = static_cast<int64_t>(ModelTensors(job.model()).size());
  // The last one is the signal of rank 0.
  return SumsPerSequence(job.model()) * job.training().global_batch() + kernels::kSumLimbs +
         tensors + 1;
}

// Two halves of each digest of each replica; or a vote for each rank of the job.
int64_t ReplicaExchange(const v1::Layout& layout, int64_t tensors) {
  if (layout.data() == 1) return 0;
  const int64_t world = int64_t{layout.tensor()} * layout.pipeline() * layout.data();
  const int64_t members = std::max(layout.data(), layout.tensor());
  return std::max(2 * tensors * members, world + 2);
}

std::vector<int> SavingDataRanks(const StageTensors& tensors, int data) {
  const std::vector<StageTensor>& all = tensors.tensors;
  std::vector<size_t> largest_first;
  for (size_t i = 0; i < all.size(); ++i) {
    // A tied head is saved with the lookup, whose weight it is.
    if (all[i].role != TensorRole::kHead) largest_first.push_back(i);
  }
  // The sort is stable: every rank has to come to the same assignment by itself.
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](size_t a, size_t b) { return all[a].elements > all[b].elements; });
  std::vector<int> savers(all.size(), -1);
  std::vector<int64_t> load(static_cast<size_t>(data));
  for (const size_t i : largest_first) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += all[i].elements;
    savers[i] = static_cast<int>(least - load.begin());
  }
  return savers;
}

v1::MemoryTable MemoryOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage,
                              int threads) {
  const StageShape shape = ShapeOfStage(job, layout, stage);
  const StageTensors tensors = TensorsOfStage(job.model(), layout, stage);
  const int slots = ActivationSlots(ShapeOfSchedule(layout), stage);
  const int lanes = LanesPerDataRank(LanesOf(job, layout), layout.data());
  TableBuilder table;
  table.Floats("parameters", v1::BUFFER_KIND_PARAMETER, tensors.parameter_elements);
  // In fp32 the model reads the master weights themselves.
  if (shape.precision.format != kernels::Format::kFloat32) {
    table.Values("parameters.compute", v1::BUFFER_KIND_PARAMETER, shape.precision,
                 tensors.parameter_elements);
  }
  const LaneBuffers buffers = LaneBuffersOf(layout.micro_batch(), shape.sequences_per_rank, lanes);
  for (int i = 0; i < buffers.whole; ++i) {
    table.Floats(absl::StrCat("gradients.", i), v1::BUFFER_KIND_GRADIENT,
                 tensors.gradient_elements);
  }
  for (int i = 0; i < buffers.shared; ++i) {
    table.Floats(absl::StrCat("gradients.shared.", i), v1::BUFFER_KIND_GRADIENT,
                 LargestBucket(job.model(), layout, stage));
  }
  table.Floats("adamw.m", v1::BUFFER_KIND_OPTIMIZER, tensors.parameter_elements);
  table.Floats("adamw.v", v1::BUFFER_KIND_OPTIMIZER, tensors.parameter_elements);
  for (int slot = 0; slot < slots; ++slot) {
    table.Add(absl::StrCat("activations.", slot), v1::BUFFER_KIND_ACTIVATION,
              ActivationsOfSlot(shape).total);
  }
  table.Add("activations.shared", v1::BUFFER_KIND_ACTIVATION,
            ActivationsOfLayer(shape).shared_total);
  AddWorkspace(job, shape, tensors, threads, &table);
  AddFp8(layout, shape, &table);
  AddHead(shape, layout.tensor(), &table);
  AddCommunication(job, layout, shape, stage, &table);
  AddTokens(shape, &table);
  const int64_t snapshot = SnapshotElements(job, layout, tensors, stage) * kFloat;
  if (OnGpu(job)) {
    table.AddOnHost("snapshot", v1::BUFFER_KIND_SNAPSHOT, snapshot);
  } else {
    table.Add("snapshot", v1::BUFFER_KIND_SNAPSHOT, snapshot);
  }
  return table.Finish();
}

std::string WhyOwnAttention(const v1::JobSpec& job, const StageShape& shape, int capability) {
  const char* why = WhyNotCudnn(shape);
  const bool forward = why != nullptr;
  if (!forward && capability != 0) {
    why = kernels::cuda::WhyNotCudnnGradients({.capability = capability,
                                               .head_dim = shape.head_dim,
                                               .has_dropout = job.model().dropout() > 0});
  }
  if (why == nullptr && LeastAttentionBytes(job, shape) > kMostAttentionWorkspace) {
    why = "needs more workspace for this model.context than plans give it";
  }
  if (why == nullptr) return "";
  return absl::StrCat(
      forward ? "attention is" : "gradients of attention are",
      " computed by our own kernels, which are much slower than cuDNN's, whose form of it ", why);
}

int64_t MostBytesOutside(const v1::JobSpec& job, const v1::Layout& layout, int stage) {
  if (OnGpu(job)) return GpuReserveBytes(job, layout);
  int64_t largest = 0;
  for (const StageTensor& entry : TensorsOfStage(job.model(), layout, stage).tensors) {
    largest = std::max(largest, entry.elements);
  }
  return kHostReserveBytes + largest * kFloat;
}

const v1::Buffer& FindBuffer(const v1::MemoryTable& table, const std::string& name) {
  for (const v1::Buffer& buffer : table.buffers()) {
    if (buffer.name() == name) return buffer;
  }
  // The table comes from this same file: a missing name is a fault of the program, not of a job.
  std::fprintf(stderr, "no buffer %s in the memory table\n", name.c_str());
  std::abort();
}

std::string MemoryTableText(const v1::MemoryTable& table) {
  std::map<v1::BufferKind, int64_t> bytes;
  for (const v1::Buffer& buffer : table.buffers()) bytes[buffer.kind()] += buffer.size_bytes();
  std::string text;
  for (const auto& [kind, size] : bytes) {
    absl::StrAppendFormat(&text, "  %-14s %12.3f MiB\n", KindName(kind),
                          static_cast<double>(size) / (1 << 20));
  }
  absl::StrAppendFormat(&text, "  %-14s %12.3f MiB\n", "total",
                        static_cast<double>(table.total_bytes()) / (1 << 20));
  return text;
}

}  // namespace tercio::plan
