// Every buffer of a rank, before the first allocation: names, kinds, offsets in one arena. Pure;
// the planner predicts with it, the trainer allocates from it, and nothing else is allocated in a
// step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/model_tensors.h"
#include "plan/precision.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// Which values are recomputed in the backward pass instead of kept. kSelective: norms and
// activations, which cost little. kFull: all of a layer but its input (Chen et al. 2016).
// Attention's probabilities are never kept.
enum class Recompute { kNone, kSelective, kFull };

// Sizes of one rank of a stage, from which every buffer follows. Counts are elements.
struct StageShape {
  int64_t sequences = 0;  // sequences of a micro-batch
  int64_t tokens = 0;     // tokens of a sequence
  int64_t rows = 0;       // sequences * tokens
  // Rows of the residual stream, of norms and of dropout that a rank works on: a tensor rank's
  // share with sequence parallelism (Korthikanti et al. 2022), else all.
  int64_t local_rows = 0;
  int64_t hidden = 0;
  int64_t attention = 0;  // local heads * head dimension
  int64_t heads = 0;      // local
  int64_t head_dim = 0;
  int64_t key_heads = 0;   // local
  int64_t qkv = 0;         // local width of query, key and value
  int64_t ffn = 0;         // local
  int64_t up = 0;          // local width before the activation: ffn, or gate and up
  int64_t vocabulary = 0;  // local, padded
  int layers = 0;          // layers of a chunk
  int chunks = 1;          // plan/schedule.h
  bool first = false;      // its first chunk is the model's
  bool last = false;       // its last chunk is the model's
  bool rotary = false;
  bool causal = true;
  bool post_norm = false;
  bool masked_head = false;  // plan/model_traits.h
  int64_t classes = 0;
  bool sequence_parallel = false;
  Recompute recompute = Recompute::kNone;
  int tensor_overlap = 1;  // parts (PiecesOfRows) of products that are summed over tensor ranks
  int64_t sequences_per_rank = 0;
  // Micro-batches whose sequences are all shorter than the context are computed up to the longest
  // one's end, rounded up to a multiple of this; 0: always up to the context.
  int64_t length_unit = 0;
  int64_t chunk_rows = 0;  // rows of the head that are worked on at once
  bool fp8 = false;        // plan/fp8.h
  Precision precision;     // for activations, their gradients and the weights that the model reads
};
StageShape ShapeOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage);

// Positions of each sequence that a micro-batch computes whose longest sequence has `longest`
// tokens; see length_unit.
int64_t ComputedTokens(const StageShape& shape, int64_t longest);

// Rows cut into runs of nearly equal length, ascending; none is empty.
struct RowPiece {
  int64_t first;
  int64_t count;
};
std::vector<RowPiece> PiecesOfRows(int64_t rows, int parts);

// The values that the forward pass of a micro-batch leaves for its backward pass: offsets in bytes
// into an activation slot, or, where it is computed again, into a buffer that all layers share. Per
// layer, then the chunk's output, then (last stage) the final norm. Means, rstds and lses are fp32,
// everything else is of the shape's precision.
struct LayerField {
  int64_t offset = 0;
  bool shared = false;
};
struct LayerActivations {
  // Post-norm: norm1 is the sum that the layer's second norm reads, mean1 and rstd1 are that
  // norm's; norm2 is the first norm's result.
  LayerField input, norm1, mean1, rstd1, qkv, attention, lse, middle, norm2, mean2, rstd2, up, gelu;
  int64_t total = 0;         // in the slot
  int64_t shared_total = 0;  // in the shared buffer
};
LayerActivations ActivationsOfLayer(const StageShape& shape);

struct SlotActivations {
  int64_t layer_stride;  // layer i of the stage starts at i * layer_stride
  int64_t output;        // rows x hidden: what is sent on, or goes into the final norm
  int64_t final_norm, final_mean, final_rstd;
  int64_t embedding_sum, embedding_mean, embedding_rstd;  // what a norm of the embedding reads
  int64_t total;
};
SlotActivations ActivationsOfSlot(const StageShape& shape);

// Doubles per sequence of the global batch that all ranks learn after a step: the sum of its
// tokens' losses, and, where the architecture does not fix them, how many tokens were predicted,
// and the loss of the sequence as a whole.
int SumsPerSequence(const v1::ModelSpec& model);
// All doubles of that exchange (worker/engine/exchange_vector.h).
int64_t ExchangedNumbers(const v1::JobSpec& job);

// Doubles with which data-parallel ranks compare `tensors` tensors (worker/engine/replica_check.h).
int64_t ReplicaExchange(const v1::Layout& layout, int64_t tensors);

// The data rank that saves each tensor of a stage, and its moments, in checkpoints: by index in
// `tensors`, -1 for a tied head, which its lookup's rank saves. All data ranks save about as much:
// the largest tensors are given out first, each to the rank that has the least (Graham 1969, LPT).
std::vector<int> SavingDataRanks(const StageTensors& tensors, int data);

// Bytes a rank needs per buffer for a stage; the same for all its ranks. `threads` enters
// through per-thread scratch. REQUIRES: a layout that CheckLayout accepts; model.vocab_size > 0.
v1::MemoryTable MemoryOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage,
                              int threads);

// Why our own kernels compute the attention of the stage, or its gradients, on GPUs, slower than
// cuDNN would (kernels/cuda/attention_choice.h), as a sentence for people; empty: cuDNN computes
// both. `capability` is the major compute capability of the GPUs; 0: not known.
std::string WhyOwnAttention(const v1::JobSpec& job, const StageShape& shape, int capability);

// The most memory that a rank should take beside its arena, which is measured but not limited: on
// the CPU kHostReserveBytes, and one tensor of the stage, which is whole on the host while it is
// initialised or loaded; on a GPU what plans leave free (GpuReserveBytes).
inline constexpr int64_t kHostReserveBytes = int64_t{256} << 20;
int64_t MostBytesOutside(const v1::JobSpec& job, const v1::Layout& layout, int stage);

// The buffer of that name. REQUIRES: it exists.
const v1::Buffer& FindBuffer(const v1::MemoryTable& table, const std::string& name);

// For people: one line per kind of buffer, and the total.
std::string MemoryTableText(const v1::MemoryTable& table);

}  // namespace tercio::plan
