#include "plan/stage_units.h"

#include <algorithm>
#include <numeric>

#include "kernels/ops.h"
#include "plan/model_tensors.h"
#include "plan/tensor_policy.h"

namespace tercio::plan {
namespace {

constexpr int64_t kFieldAlignment = 256;  // bytes: of vector accesses on any device
// Full vectors of every instruction set, and no more lengths than are worth telling apart.
constexpr int64_t kLengthUnit = 16;
// Rows of the head at once on a GPU: its products are as fast as larger ones, and the logits of
// 50,304 tokens take 0.8 GB in 16 bits.
constexpr int64_t kGpuChunkRows = 8192;

// Hands out consecutive pieces, in bytes.
class Cutter {
 public:
  int64_t Take(int64_t bytes) {
    const int64_t at = next_;
    // A piece without bytes, such as a buffer this stage does not need, leaves the end where it is.
    if (bytes > 0) end_ = at + bytes;
    next_ += (bytes + kFieldAlignment - 1) / kFieldAlignment * kFieldAlignment;
    return at;
  }
  int64_t total() const { return next_; }
  // The end of the last piece.
  int64_t end() const { return end_; }

 private:
  int64_t next_ = 0;
  int64_t end_ = 0;
};

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

bool IsMadeAgain(model::Kept kept, Recompute recompute) {
  switch (kept) {
    case model::Kept::kAlways:
      return false;
    case model::Kept::kUnlessCheap:
      return recompute != Recompute::kNone;
    case model::Kept::kUnlessFull:
      return recompute == Recompute::kFull;
  }
  return false;
}

int64_t BytesOf(const model::Field& field, const StageShape& shape, int stream) {
  const int64_t rows = RowsOf(field.rows, shape, stream);
  const auto element =
      field.statistic ? static_cast<int64_t>(sizeof(float)) : shape.precision.bytes();
  return rows * field.width * element;
}

// The places of a layer's fields: in the slot those after what is taken already. What is computed
// again lies in a buffer that all layers share, for one layer needs it at a time.
std::vector<FieldPlace> PlacesOf(const model::LayerDescription& layer, const StageShape& shape,
                                 Cutter* own, Cutter* shared) {
  std::vector<FieldPlace> places;
  for (const model::Field& field : layer.fields) {
    const bool again = IsMadeAgain(field.kept, shape.recompute);
    places.push_back({(again ? shared : own)->Take(BytesOf(field, shape, layer.stream)), again});
  }
  return places;
}

// The streams of a chunk of layers, whose fields have their places already.
std::vector<StreamPlace> PlaceStreams(const StageShape& shape, const StageUnits& units,
                                      const SlotActivations& at, int chunk, Cutter* cut) {
  std::vector<StreamPlace> places;
  for (size_t stream = 0; stream < shape.streams.size(); ++stream) {
    const int64_t bytes = shape.streams[stream].local_rows * shape.hidden * shape.precision.bytes();
    StreamPlace place;
    place.output = cut->Take(bytes);
    place.input = place.output;
    for (auto i = static_cast<size_t>(shape.runs.first(chunk));
         i < static_cast<size_t>(shape.runs.end(chunk)); ++i) {
      if (units.stream_of(i) != static_cast<int>(stream)) continue;
      // The first field of a layer is its input.
      place.input = at.layers[i].front().offset;
      break;
    }
    places.push_back(place);
  }
  return places;
}

}  // namespace

int64_t RowsOf(model::Rows rows, const StageShape& shape, int stream) {
  switch (rows) {
    case model::Rows::kAll:
      return shape.stream(stream).rows;
    case model::Rows::kLocal:
      return shape.stream(stream).local_rows;
    case model::Rows::kMemory:
      break;
  }
  return shape.streams.front().rows;
}

StreamShape StageShape::most() const {
  StreamShape most;
  for (const StreamShape& stream : streams) {
    // Rows are divided, or gathered, where the embedding makes them; the head reads the last
    // stream.
    const bool of_embedding = first && sequence_parallel;
    const bool of_head = last && &stream == &streams.back();
    if (!stream.has_layers && !of_embedding && !of_head) continue;
    most.tokens = std::max(most.tokens, stream.tokens);
    most.rows = std::max(most.rows, stream.rows);
    most.local_rows = std::max(most.local_rows, stream.local_rows);
  }
  return most;
}

int64_t StageShape::local_rows_of_all() const {
  int64_t rows = 0;
  for (const StreamShape& stream : streams) rows += stream.local_rows;
  return rows;
}

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
  const int64_t all = shape.streams.front().tokens;
  return unit == 0 ? all : std::min((longest + unit - 1) / unit * unit, all);
}

StageShape ShapeOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage) {
  const v1::ModelSpec& spec = job.model();
  const model::Architecture architecture = model::ArchitectureOf(spec);
  StageShape shape;
  shape.sequences = layout.micro_batch();
  shape.precision = PrecisionOf(job);
  shape.fp8 = HasFp8(job);
  shape.sequence_parallel = layout.sequence_parallel() && layout.tensor() > 1;
  for (const model::Stream& stream : architecture.streams) {
    const int64_t rows = shape.sequences * stream.tokens;
    shape.streams.push_back(
        {stream.tokens, rows, shape.sequence_parallel ? rows / layout.tensor() : rows});
  }
  for (const int layer : LayersOfStage(model::LayersOf(spec), layout, stage)) {
    shape.streams[static_cast<size_t>(architecture.layer(layer).stream)].has_layers = true;
  }
  shape.tensor_overlap =
      // Sums in pieces are not built for rows that are divided already (config/job_file.cc).
      layout.tensor() > 1 && !shape.sequence_parallel ? std::max(1, layout.tensor_overlap()) : 1;
  shape.hidden = spec.hidden();
  shape.tensor = layout.tensor();
  shape.vocabulary = PaddedVocabulary(spec.vocab_size(), layout.tensor()) / layout.tensor();
  shape.runs = RunsOfStage(model::LayersOf(spec), layout, stage);
  shape.recompute = RecomputeOf(layout);
  shape.first = stage == 0;
  shape.last = stage == layout.pipeline() - 1;
  // The head of the last stage has one.
  if (!shape.last && FreezesAnything(job)) {
    const int last_layer = LayersOfStage(model::LayersOf(spec), layout, stage).back();
    shape.has_backward = last_layer >= FirstTrainedLayer(job);
  }
  shape.sequences_per_rank = int64_t{layout.micro_batch()} * layout.micro_batches();
  // Only encoders have padding. A GPU's products are timed and planned for one number of rows.
  if (!architecture.causal && !OnGpu(job)) {
    shape.length_unit = std::lcm(kLengthUnit, shape.sequence_parallel ? layout.tensor() : 1);
  }
  // Whole sequences where they are short, pieces of one sequence where they are long.
  const int64_t most = OnGpu(job) ? kGpuChunkRows : kernels::kPieceRows;
  const int64_t tokens = shape.head_stream().tokens;
  const int64_t whole = std::max<int64_t>(1, most / tokens);
  shape.chunk_rows = std::min(most, std::min(whole, shape.sequences) * tokens);
  // Chosen targets go from sequence to sequence: each has its own number of rows.
  if (architecture.head.masked.has_value() || ChoosesTargets(job)) {
    shape.chunk_rows = std::min(most, tokens);
  }
  return shape;
}

bool ChoosesTargets(const v1::JobSpec& job) {
  return job.data().has_chat() && model::ArchitectureOf(job.model()).causal;
}

bool PacksDocuments(const v1::JobSpec& job) {
  return ChoosesTargets(job) && job.data().chat().packing();
}

StageUnits UnitsOfStage(const v1::ModelSpec& spec, const v1::Layout& layout, int stage) {
  StageUnits units;
  units.architecture = model::ArchitectureOf(spec);
  for (const model::Layer& kind : units.architecture.kinds) {
    units.kinds.push_back(model::Describe(kind, units.architecture.hidden, layout.tensor()));
  }
  for (const int layer : LayersOfStage(model::LayersOf(spec), layout, stage)) {
    units.layers.push_back(units.architecture.layers[static_cast<size_t>(layer)]);
  }
  return units;
}

SlotActivations ActivationsOfSlot(const StageShape& shape, const StageUnits& units) {
  SlotActivations at;
  // A slot holds one chunk's layers at a time, so that the largest chunk sizes it.
  int64_t largest_chunk = 0;
  for (int chunk = 0; chunk < shape.runs.chunks(); ++chunk) {
    Cutter own;
    for (int i = shape.runs.first(chunk); i < shape.runs.end(chunk); ++i) {
      Cutter shared;
      at.layers.push_back(PlacesOf(units.layer(static_cast<size_t>(i)), shape, &own, &shared));
      at.shared_total = std::max(at.shared_total, shared.end());
    }
    largest_chunk = std::max(largest_chunk, own.total());
  }
  Cutter cut;
  cut.Take(largest_chunk);
  const Cutter behind_layers = cut;
  for (int chunk = 0; chunk < shape.runs.chunks(); ++chunk) {
    // All chunks have their streams in the same room.
    cut = behind_layers;
    at.streams.push_back(PlaceStreams(shape, units, at, chunk, &cut));
  }
  const int64_t value = shape.precision.bytes();
  const int64_t hidden = shape.hidden;
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  const bool has_final_norm = shape.last && units.architecture.head.norm.has_value();
  const int64_t final_rows = has_final_norm ? shape.head_stream().local_rows : 0;
  at.final_norm = cut.Take(final_rows * hidden * value);
  at.final_mean = cut.Take(final_rows * kFloat);
  at.final_rstd = cut.Take(final_rows * kFloat);
  // An embedding with a norm makes one stream.
  const bool has_embedding_norm = shape.first && units.architecture.embedding.norm.has_value();
  const int64_t embedding_rows = has_embedding_norm ? shape.streams.front().local_rows : 0;
  at.embedding_sum = cut.Take(embedding_rows * hidden * value);
  at.embedding_mean = cut.Take(embedding_rows * kFloat);
  at.embedding_rstd = cut.Take(embedding_rows * kFloat);
  at.total = cut.end();
  return at;
}

}  // namespace tercio::plan
