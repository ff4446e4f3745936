// The units of a stage as one rank computes them: sizes, the declarations of its layers, and where
// their fields lie in an activation slot. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/architecture.h"
#include "model/layer.h"
#include "plan/precision.h"
#include "plan/stage_layers.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::plan {

// Which values are recomputed in the backward pass instead of kept. kSelective: norms and
// activations, which cost little. kFull: all of a layer but its input (Chen et al. 2016).
// Attention's probabilities are never kept.
enum class Recompute { kNone, kSelective, kFull };

// Rows of one stream of the model in a micro-batch (model::Stream).
struct StreamShape {
  int64_t tokens = 0;  // of a sequence
  int64_t rows = 0;    // sequences * tokens
  // Rows of the residual stream, of norms and of dropout that a rank works on: a tensor rank's
  // share with sequence parallelism (Korthikanti et al. 2022), else all.
  int64_t local_rows = 0;
  bool has_layers = false;  // on the stage
};

// Sizes of one rank of a stage, from which every buffer follows. Counts are elements.
struct StageShape {
  int64_t sequences = 0;             // sequences of a micro-batch
  std::vector<StreamShape> streams;  // at least one; the last one is the head's
  int64_t hidden = 0;
  int64_t vocabulary = 0;  // local, padded
  int tensor = 1;          // tensor parallel degree
  StageRuns runs;          // layers of each chunk
  bool first = false;      // its first chunk is the model's
  bool last = false;       // its last chunk is the model's
  bool sequence_parallel = false;
  // Whether any unit of it has a backward pass (plan/program.h).
  bool has_backward = true;
  Recompute recompute = Recompute::kNone;
  int tensor_overlap = 1;  // parts (PiecesOfRows) of products that are summed over tensor ranks
  int64_t sequences_per_rank = 0;
  // One stream only: micro-batches whose sequences are all shorter than the context are computed up
  // to the longest one's end, rounded up to a multiple of this; 0: always up to the context.
  int64_t length_unit = 0;
  int64_t chunk_rows = 0;  // rows of the head that are worked on at once
  bool fp8 = false;        // plan/fp8.h
  Precision precision;     // for activations, their gradients and the weights that the model reads

  const StreamShape& stream(int i) const { return streams[static_cast<size_t>(i)]; }
  // What the head predicts.
  const StreamShape& head_stream() const { return streams.back(); }
  // The most of any stream that the stage computes, by which the scratch of units is sized.
  StreamShape most() const;
  // All streams of the micro-batch together.
  int64_t local_rows_of_all() const;
};
StageShape ShapeOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage);

// Whether the samples say which of a causal model's tokens are predicted. Else all of them are.
bool ChoosesTargets(const v1::JobSpec& job);

// Whether sequences hold several documents, which do not see each other.
bool PacksDocuments(const v1::JobSpec& job);

// Rows of a field or of scratch of a layer that works on the stream.
int64_t RowsOf(model::Rows rows, const StageShape& shape, int stream);

// Positions of each sequence of the only stream that a micro-batch computes whose longest sequence
// has `longest` tokens; see length_unit.
int64_t ComputedTokens(const StageShape& shape, int64_t longest);

// Rows cut into runs of nearly equal length, ascending; none is empty.
struct RowPiece {
  int64_t first;
  int64_t count;
};
std::vector<RowPiece> PiecesOfRows(int64_t rows, int parts);

// The model, and what its layers declare on a tensor rank of the stage.
struct StageUnits {
  model::Architecture architecture;
  std::vector<model::LayerDescription> kinds;  // for each of the architecture's kinds
  std::vector<int> layers;                     // the kind of each layer of the stage, ascending

  const model::LayerDescription& layer(size_t i) const {
    return kinds[static_cast<size_t>(layers[i])];
  }
  int stream_of(size_t i) const { return layer(i).stream; }
  bool has_kind(int kind) const {
    return std::find(layers.begin(), layers.end(), kind) != layers.end();
  }
};
StageUnits UnitsOfStage(const v1::ModelSpec& model, const v1::Layout& layout, int stage);

// The values that the forward pass of a micro-batch leaves for its backward pass: offsets in bytes
// into an activation slot, or, where a field is computed again, into a buffer that all layers
// share. Statistics are fp32, everything else is of the shape's precision.
struct FieldPlace {
  int64_t offset = 0;
  bool shared = false;
};
// Where a chunk has a stream (local rows x hidden): as it comes from the chunk before, and as it is
// sent on, or goes into the final norm. A stream without layers in the chunk stays where it came.
struct StreamPlace {
  int64_t input = 0;
  int64_t output = 0;
};
struct SlotActivations {
  std::vector<std::vector<FieldPlace>> layers;    // of the stage: the places of each one's fields
  std::vector<std::vector<StreamPlace>> streams;  // of each chunk
  int64_t final_norm = 0, final_mean = 0, final_rstd = 0;  // last stage
  int64_t embedding_sum = 0, embedding_mean = 0,
          embedding_rstd = 0;  // what the embedding's norm reads
  int64_t total = 0;
  int64_t shared_total = 0;  // of the shared buffer
};
SlotActivations ActivationsOfSlot(const StageShape& shape, const StageUnits& units);

}  // namespace tercio::plan
