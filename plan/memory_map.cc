#include "plan/memory_map.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "kernels/exact_sum.h"
#include "kernels/ops.h"
#include "plan/base_format.h"
#include "plan/buckets.h"
#include "plan/device_memory.h"
#include "plan/distillation.h"
#include "plan/fp8.h"
#include "plan/head_memory.h"
#include "plan/lanes.h"
#include "plan/model_tensors.h"
#include "plan/offload.h"
#include "plan/packed_units.h"
#include "plan/precision.h"
#include "plan/preference.h"
#include "plan/reproducibility.h"
#include "plan/schedule.h"
#include "plan/snapshots.h"
#include "plan/stage_layers.h"
#include "plan/state_shards.h"
#include "plan/table_builder.h"
#include "plan/teacher_memory.h"
#include "plan/tensor_policy.h"
#include "plan/token_buffers.h"

namespace tercio::plan {
namespace {

constexpr int64_t kFloat = sizeof(float);

struct Places {
  Place master;
  Place moments;
  Place activations;
};
Places PlacesOf(const v1::JobSpec& job, const v1::Layout& layout) {
  const auto place_of = [&](v1::OffloadTier tier) {
    if (!IsElsewhere(job, tier)) return Place::kDevice;
    return tier == v1::OFFLOAD_TIER_NVME ? Place::kDisk : Place::kHost;
  };
  const v1::OffloadSpec& offload = job.offload();
  Places places = {Place::kDevice, place_of(offload.optimizer()), place_of(offload.activations())};
  if (OffloadedShare(job, layout) == kLeastShare) places.moments = Place::kDevice;
  if (GathersWeights(job, layout)) {
    places.master = place_of(offload.parameters());
  } else if (OptimizerHasMasterWeights(job, layout)) {
    places.master = places.moments;
  }
  return places;
}

// Elements of the state's buffers. What is not split is wholly in the first one.
struct StateSizes {
  SplitElements master;
  SplitElements moments;
};
StateSizes SizesOfState(const v1::JobSpec& job, const v1::Layout& layout,
                        const StageTensors& tensors, const std::vector<UnitKind>& kinds) {
  StateSizes sizes;
  sizes.moments = SplitElementsOf(kinds);
  if (OptimizerHasMasterWeights(job, layout)) {
    sizes.master = sizes.moments;
  } else {
    // Where all weights are there, frozen ones are among them: the model reads these.
    sizes.master.far =
        DividesMasterWeights(job, layout) ? ShardElements(kinds) : tensors.parameter_elements;
  }
  return sizes;
}

// A buffer at its place, and beside it that of the units that stay in the device's memory.
void AddSplit(Place place, const std::string& name, v1::BufferKind kind, const SplitElements& size,
              TableBuilder* table) {
  table->AddAt(place, name, kind, kFloat * size.far);
  table->Floats(absl::StrCat(name, kNearSuffix), kind, size.near);
}

// Elements of the first tensor rank's part of a tensor, which has the most: without rows that pad
// the vocabulary, for those are in no checkpoint.
int64_t LogicalElements(const v1::JobSpec& job, const v1::Layout& layout,
                        const LogicalTensor& tensor) {
  const TensorShard shard = ShardOfRank(
      tensor, layout.tensor(), 0, PaddedVocabulary(job.model().vocab_size(), layout.tensor()));
  return (shard.row_end - shard.row_begin) * shard.local_columns;
}

// Weights and both moments, or weights alone.
int KindsOfState(const StageTensor& entry) { return entry.frozen ? 1 : 3; }

// The most that any data rank has of a divided state, without rows that pad the vocabulary.
// `saves`: without what another stage saves; `of_first`: what the first rank has beside it.
int64_t ElementsOfShard(const v1::JobSpec& job, const v1::Layout& layout, const StageTensors& stage,
                        const std::vector<UnitKind>& kinds, bool saves, int64_t of_first) {
  const auto counted = [&](bool frozen) {
    return ElementsOfShards(stage, kinds, [&](const StageTensor& entry) -> int64_t {
      if (entry.frozen != frozen) return 0;
      if (saves ? entry.further_use : !entry.own_parameter) return 0;
      return LogicalElements(job, layout, entry.tensor);
    });
  };
  std::vector<int64_t> elements = counted(/*frozen=*/true);
  const std::vector<int64_t> trained = counted(/*frozen=*/false);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] += 3 * trained[i];
  elements.front() += of_first;
  return *std::max_element(elements.begin(), elements.end());
}

// All that a rank needs to continue: the state of its tensors. A tied head beside its lookup shares
// the lookup's.
int64_t CopyElements(const v1::JobSpec& job, const v1::Layout& layout, const StageTensors& stage,
                     const std::vector<UnitKind>& kinds) {
  if (ShardRanks(layout) > 1) {
    return ElementsOfShard(job, layout, stage, kinds, /*saves=*/false, 0);
  }
  int64_t elements = 0;
  for (const StageTensor& entry : stage.tensors) {
    if (!entry.own_parameter) continue;
    elements += KindsOfState(entry) * LogicalElements(job, layout, entry.tensor);
  }
  return elements;
}

// The most that any data rank saves: the state of its tensors; the first one saves `of_first`
// beside it.
int64_t SavedElements(const v1::JobSpec& job, const v1::Layout& layout, const StageTensors& stage,
                      const std::vector<UnitKind>& kinds, int64_t of_first) {
  if (ShardRanks(layout) > 1) {
    return ElementsOfShard(job, layout, stage, kinds, /*saves=*/true, of_first);
  }
  // The largest load counts: all data ranks of a stage get the same memory table.
  std::vector<int64_t> elements(static_cast<size_t>(layout.data()));
  elements[0] = of_first;
  const std::vector<int> savers = SavingDataRanks(stage, layout.data());
  for (size_t i = 0; i < savers.size(); ++i) {
    if (savers[i] < 0) continue;
    elements[static_cast<size_t>(savers[i])] +=
        KindsOfState(stage.tensors[i]) * LogicalElements(job, layout, stage.tensors[i].tensor);
  }
  return *std::max_element(elements.begin(), elements.end());
}

// Every rank needs the step guard's state, the first one saves it; of the scales of 8 bits those of
// its stage, and the stage's first one.
int64_t SnapshotElements(const v1::JobSpec& job, const v1::Layout& layout,
                         const StageTensors& tensors, const std::vector<UnitKind>& kinds,
                         int stage) {
  const bool copies = KeepsCopies(job);
  int64_t guard = copies || stage == 0 ? StateElements(job) : 0;
  // Those of the first data rank, as the guard's state.
  guard += BaseSnapshotElements(tensors);
  if (HasFp8(job)) {
    guard += kFp8StateOfLayer * RunsOfStage(model::LayersOf(job.model()), layout, stage).layers();
  }
  // The guard's state is in no buffer, so that also a save in place needs a copy of it.
  if (SavesInPlace(job)) return guard;
  return copies ? guard + CopyElements(job, layout, tensors, kinds)
                : SavedElements(job, layout, tensors, kinds, guard);
}

// Buckets of relative positions, -(T - 1) to T - 1, of each stream's T tokens.
int64_t RelativeBucketBytes(const StageShape& shape, const StageUnits& units) {
  const auto attentions = model::AttentionsOf(units.architecture);
  if (std::none_of(attentions.begin(), attentions.end(),
                   [](const auto* attention) { return attention->relative.has_value(); })) {
    return 0;
  }
  int64_t distances = 0;
  for (const StreamShape& stream : shape.streams) distances += 2 * stream.tokens - 1;
  return distances * static_cast<int64_t>(sizeof(int32_t));
}

// Scratch that blocks declare: those of equal name share a buffer.
void AddBlockScratch(const StageShape& shape, const StageUnits& units, TableBuilder* table) {
  std::vector<std::pair<const char*, int64_t>> buffers;
  for (size_t i = 0; i < units.kinds.size(); ++i) {
    const model::LayerDescription& kind = units.kinds[i];
    for (const model::Scratch& scratch : kind.scratch) {
      // Buffers of other stages' layers are entered, too, so that their names are found.
      // All scratch is the backward pass's.
      const bool is_here = shape.has_backward && units.has_kind(static_cast<int>(i));
      const int64_t rows = is_here ? RowsOf(scratch.rows, shape, kind.stream) : 0;
      const auto same = [&](const auto& buffer) {
        return std::string_view(buffer.first) == scratch.name;
      };
      const auto found = std::find_if(buffers.begin(), buffers.end(), same);
      if (found == buffers.end()) {
        buffers.emplace_back(scratch.name, rows * scratch.width);
      } else {
        found->second = std::max(found->second, rows * scratch.width);
      }
    }
  }
  for (const auto& [name, count] : buffers) {
    table->Values(absl::StrCat("workspace.", name), v1::BUFFER_KIND_WORKSPACE, shape.precision,
                  count);
  }
}

// The most rows that tensor ranks sum or gather: those of units, of the first stream where another
// one attends to it, and of all streams in the embedding.
StreamShape ExchangedRows(const StageShape& shape, const StageUnits& units) {
  StreamShape most = shape.most();
  const auto include = [&most](const StreamShape& stream) {
    most.rows = std::max(most.rows, stream.rows);
    most.local_rows = std::max(most.local_rows, stream.local_rows);
  };
  for (const int kind : units.layers) {
    const std::vector<model::Scratch>& scratch = units.kinds[static_cast<size_t>(kind)].scratch;
    const bool attends = std::any_of(scratch.begin(), scratch.end(), [](const auto& buffer) {
      return buffer.rows == model::Rows::kMemory;
    });
    if (attends) include(shape.streams.front());
  }
  // All streams begin in the embedding, whose rows are summed.
  for (const StreamShape& stream : shape.streams) {
    if (shape.first) include(stream);
  }
  return most;
}

void AddWorkspace(const v1::JobSpec& job, const StageShape& shape, const StageUnits& units,
                  const StageTensors& tensors, const DeviceMemory& device,
                  const TeacherScratch& of_teacher, int threads, TableBuilder* table) {
  const auto add = [&](const char* name, int64_t count) {
    table->Values(name, v1::BUFFER_KIND_WORKSPACE, shape.precision, count);
  };
  const StreamShape most = shape.most();
  add("workspace.branch", most.rows * shape.hidden);
  // Without dropout a branch's gradient is that of its sum.
  const bool has_branch_gradient = job.model().dropout() > 0 && shape.has_backward;
  add("workspace.branch_gradient", has_branch_gradient ? most.local_rows * shape.hidden : 0);
  // A gathered input and a sum of local rows exist only where ranks hold parts of the rows.
  const StreamShape exchanged = ExchangedRows(shape, units);
  add("workspace.gathered", shape.sequence_parallel ? exchanged.rows * shape.hidden : 0);
  add("workspace.local_sum", shape.sequence_parallel ? exchanged.local_rows * shape.hidden : 0);
  // Weights that are rounded as they are loaded are so in there, too, and the scales of those that
  // are quantised reach other ranks from there.
  const bool has_norm_gradient = shape.has_backward || !tensors.quantized.empty() ||
                                 shape.precision.format != kernels::Format::kFloat32;
  add("workspace.norm_gradient", has_norm_gradient ? most.rows * shape.hidden : 0);
  AddBlockScratch(shape, units, table);
  int64_t rotary = 0;
  for (const model::AttentionOptions* options : model::AttentionsOf(units.architecture)) {
    if (options->rotary.has_value()) rotary = std::max(rotary, options->rotary->width);
  }
  int64_t positions = 0;
  for (const StreamShape& stream : shape.streams) positions = std::max(positions, stream.tokens);
  table->Floats("workspace.rotary", v1::BUFFER_KIND_WORKSPACE, positions * rotary);
  table->Add("workspace.buckets", v1::BUFFER_KIND_WORKSPACE, RelativeBucketBytes(shape, units));
  table->Add("workspace.device", v1::BUFFER_KIND_WORKSPACE,
             std::max(device.Workspace(shape, units, tensors), of_teacher.device_bytes));
  table->Floats(
      "workspace.attention", v1::BUFFER_KIND_WORKSPACE,
      std::max(device.AttentionScratch(shape, units, threads), of_teacher.attention_floats));
}

// Elements of the largest sum over tensor ranks: the rows of a micro-batch, or, where each rank has
// the gradient of its rows only, a tensor that all of them hold.
int64_t LargestTensorSum(const StageShape& shape, const StageUnits& units,
                         const StageTensors& tensors) {
  int64_t largest = ExchangedRows(shape, units).rows * shape.hidden;
  if (!shape.sequence_parallel) return largest;
  for (const StageTensor& entry : tensors.tensors) {
    if (entry.tensor.shard == Shard::kWhole && !entry.frozen) {
      largest = std::max(largest, entry.elements);
    }
  }
  return largest;
}

// Weights of 8 bits; the factors of one product; scales, and what they are made from: the largest
// values of this rank's step, then of all tensor and data ranks (worker/blocks/products.h).
void AddFp8(const v1::Layout& layout, const StageShape& shape, const StageUnits& units,
            TableBuilder* table) {
  if (!shape.fp8) return;
  const int64_t layers = shape.runs.layers();
  table->Add("parameters.fp8", v1::BUFFER_KIND_PARAMETER, Fp8WeightsOf(shape, units).bytes);
  const auto add = [&](const char* name, int64_t bytes) {
    table->Add(name, v1::BUFFER_KIND_WORKSPACE, bytes);
  };
  const int64_t rows = shape.most().rows;
  add("fp8.input", rows * MostFp8Inputs(units));
  // One linear part is computed at a time, so the largest one sizes the buffers.
  add("fp8.gradient", rows * MostFp8Outputs(units));
  add("fp8.turned_gradient", rows * MostFp8Outputs(units));
  const int64_t slots = layers * kFp8SlotsOfLayer;
  const auto scale = static_cast<int64_t>(sizeof(kernels::Scale));
  add("fp8.scales", slots * scale);
  add("fp8.weight_scales", layers * kFp8ProductsOfLayer * scale);
  add("fp8.largest", slots * kFloat);
  const auto gathered = [&](const char* name, int64_t ranks) {
    table->Floats(name, v1::BUFFER_KIND_COMMUNICATION, slots * ranks);
  };
  gathered("fp8.tensor_largest", layout.tensor());
  gathered("fp8.all_largest", int64_t{layout.tensor()} * layout.data());
}

// What travels in a block format, one unit at a time (worker/engine/packed_exchange.h).
void AddPacked(const v1::JobSpec& job, const v1::Layout& layout, const StageTensors& tensors,
               TableBuilder* table) {
  const PackedBuffers weights = PackedWeights(job, layout, tensors);
  const PackedBuffers gradients = PackedGradients(job, layout, tensors);
  const auto add = [&](const char* name, int64_t bytes) {
    table->Add(name, v1::BUFFER_KIND_COMMUNICATION, bytes);
  };
  add("packed.weights", weights.packed);
  add("packed.gradients", gradients.packed);
  add("packed.received", gradients.received);
  add("packed.sum", gradients.floats);
}

// Whether a use of the token table on the stage has a gradient.
bool TrainsTokenTable(const StageTensors& tensors) {
  return std::any_of(tensors.tensors.begin(), tensors.tensors.end(), [](const StageTensor& entry) {
    return entry.tensor.name == model::kTokenTable && !entry.frozen;
  });
}

// `tensors`: of the model.
int64_t NumbersOfExchange(const v1::JobSpec& job, size_t tensors) {
  // The last one is the signal of rank 0.
  return SumsPerSequence(job) * job.training().global_batch() + kernels::kSumLimbs +
         static_cast<int64_t>(tensors) + 1;
}

// Tensors of which a rank has the weights from update to update: all but those of layers that are
// gathered. Each counts once, however often the stage uses it.
int64_t TensorsAlwaysThere(const StageTensors& tensors, bool gathers) {
  std::vector<StateUnit> units = StateUnitsOf(tensors, 1);
  if (gathers) PlaceWeights(tensors, /*places=*/1, &units);
  int64_t count = 0;
  for (const StateUnit& unit : units) {
    if (unit.stage_layer >= 0) continue;
    for (size_t i = unit.first_tensor; i < unit.first_tensor + unit.tensor_count; ++i) {
      if (tensors.tensors[i].own_parameter) ++count;
    }
  }
  return count;
}

void AddCommunication(const v1::JobSpec& job, const v1::Layout& layout, const StageShape& shape,
                      const StageUnits& units, const StageTensors& tensors,
                      const std::vector<UnitKind>& kinds,
                      const std::vector<LogicalTensor>& of_model, const DeviceMemory& device,
                      TableBuilder* table) {
  const auto add = [&](const char* name, int64_t count) {
    table->Floats(name, v1::BUFFER_KIND_COMMUNICATION, count);
  };
  // Buckets are reduced one after the other, so that the largest one sizes the scratch.
  int64_t bucket = 0;
  for (const v1::BucketRange& range : BucketsOfTensors(job, layout, tensors)) {
    bucket = std::max(bucket, range.end() - range.begin());
  }
  const int shards = ShardRanks(layout);
  int64_t data_scratch = device.SumScratch(bucket, layout.data());
  if (shards > 1) {
    const int64_t part = LargestPart(kinds);
    // Parts of a block format have buffers of their own.
    const int64_t parts =
        PackedGradients(job, layout, tensors).packed > 0 ? 0 : device.PartsScratch(part, shards);
    data_scratch = std::max(parts, device.SumScratch(part, ReplicasOf(layout)));
  }
  const int64_t flow = shape.has_backward ? shape.local_rows_of_all() * shape.hidden : 0;
  table->Values("gradient_flow.0", v1::BUFFER_KIND_COMMUNICATION, shape.precision, flow);
  // The second buffer receives while the first one is computed in; one stage receives nothing.
  table->Values("gradient_flow.1", v1::BUFFER_KIND_COMMUNICATION, shape.precision,
                layout.pipeline() > 1 ? flow : 0);
  add("tensor_scratch",
      device.SumScratch(LargestTensorSum(shape, units, tensors), layout.tensor()));
  add("data_scratch", data_scratch);
  AddPacked(job, layout, tensors, table);
  // On one stage both uses of the table add to the same rank, so that nothing is exchanged.
  int64_t shared = 0;
  for (const LogicalTensor& tensor : of_model) {
    if (!tensor.shared || PolicyOf(tensor, job.training()).frozen) continue;
    shared += tensor.rows / layout.tensor() * tensor.columns;
  }
  add("shared_gradients", shared);
  const bool tied_exchange = units.architecture.head.reads_token_table() && layout.pipeline() > 1 &&
                             (shape.first || shape.last) && TrainsTokenTable(tensors);
  int64_t table_part = shape.vocabulary * shape.hidden;
  for (const UnitKind& kind : kinds) {
    // Ranks exchange the sums of their shards.
    if (shards > 1 && kind.unit.elements() == table_part) table_part = LargestPart(kind.unit);
  }
  add("tied_gradient", tied_exchange ? table_part : 0);
  const auto here = static_cast<int64_t>(tensors.tensors.size());
  table->Add(
      "replica_exchange", v1::BUFFER_KIND_COMMUNICATION,
      ReplicaExchange(layout, TensorsAlwaysThere(tensors, GathersWeights(job, layout)), here) *
          static_cast<int64_t>(sizeof(double)));
  table->Add("replica_digests", v1::BUFFER_KIND_COMMUNICATION,
             layout.data() > 1 ? 3 * here * static_cast<int64_t>(sizeof(uint64_t)) : 0);
  table->Add("exchange", v1::BUFFER_KIND_COMMUNICATION,
             NumbersOfExchange(job, of_model.size()) * static_cast<int64_t>(sizeof(double)));
}

void AddTokens(const v1::JobSpec& job, const StageShape& shape,
               const model::Architecture& architecture, TableBuilder* table) {
  for (const TokenBuffer& buffer : TokenBuffersOf(job, shape, architecture)) {
    // All tokens of a step are loaded at once, so they cost memory for every micro-batch.
    table->Add(buffer.name, v1::BUFFER_KIND_WORKSPACE,
               shape.sequences_per_rank * buffer.elements * static_cast<int64_t>(sizeof(int32_t)));
  }
}

// What a rank has of gradients: sums of its lanes, or, where ranks keep sums of their shards only,
// those and what a round writes before it is summed over ranks.
void AddGradients(const v1::JobSpec& job, const v1::Layout& layout, const StageShape& shape,
                  const StageTensors& tensors, const std::vector<UnitKind>& kinds,
                  TableBuilder* table) {
  const auto add = [&](const char* name, int i, int64_t count) {
    table->Floats(absl::StrCat(name, i), v1::BUFFER_KIND_GRADIENT, count);
  };
  if (DividesGradients(layout)) {
    std::array<int64_t, 2> turns = {tensors.gradient_elements, 0};
    if (MicroBatchesAreRounds(layout, LanesOf(job, layout))) {
      turns = ElementsOfTurns(layout, tensors);
    }
    add("gradients.", 0, turns[0]);
    add("gradients.", 1, turns[1]);
    const int64_t sums = SumElements(kinds);
    for (int i = 0; i < SumLevels(job, layout); ++i) add("gradients.sums.", i, sums);
    return;
  }
  const LaneBuffers buffers = LaneBuffersOf(layout.micro_batch(), shape.sequences_per_rank,
                                            LanesPerDataRank(LanesOf(job, layout), layout.data()));
  for (int i = 0; i < buffers.whole; ++i) add("gradients.", i, tensors.gradient_elements);
  const int64_t bucket = LargestBucket(tensors);
  for (int i = 0; i < buffers.shared; ++i) add("gradients.shared.", i, bucket);
}

}  // namespace

int SumsPerSequence(const v1::JobSpec& job) {
  // The number of predicted tokens is known beforehand only where every token is predicted.
  if (!model::ArchitectureOf(job.model()).head.language.has_value()) return 3;
  const int of_tokens = ChoosesTargets(job) ? 2 : 1;
  // The divergence from a teacher is the last one.
  if (LearnsFromTeacher(job.training())) return of_tokens + 1;
  return LearnsPreferences(job.training()) ? 4 : of_tokens;
}

int64_t ExchangedNumbers(const v1::JobSpec& job) {
  return NumbersOfExchange(job, ModelTensors(job.model()).size());
}

// Two halves of each digest of each member of a group; or a vote for each rank of the job, which
// are more than the two halves of one digest that tensor ranks exchange.
int64_t ReplicaExchange(const v1::Layout& layout, int64_t whole, int64_t tensors) {
  if (layout.data() == 1) return 0;
  const int64_t world = int64_t{layout.tensor()} * layout.pipeline() * layout.data();
  const int64_t replicas = ShardRanks(layout) > 1 ? ReplicasOf(layout) : 1;
  return std::max(
      {2 * whole * layout.data(), replicas > 1 ? 2 * tensors * replicas : 0, world + 2});
}

std::vector<int> SavingDataRanks(const StageTensors& tensors, int data) {
  const std::vector<StageTensor>& all = tensors.tensors;
  std::vector<size_t> largest_first;
  for (size_t i = 0; i < all.size(); ++i) {
    // Further uses of a tensor are saved with the first one.
    if (!all[i].further_use) largest_first.push_back(i);
  }
  // The sort is stable: every rank has to come to the same assignment by itself.
  const auto size_of = [&](size_t i) { return KindsOfState(all[i]) * all[i].elements; };
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](size_t a, size_t b) { return size_of(a) > size_of(b); });
  std::vector<int> savers(all.size(), -1);
  // The first of those ranks that have the least is next.
  using Load = std::pair<int64_t, int>;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (int rank = 0; rank < data; ++rank) loads.emplace(0, rank);
  for (const size_t i : largest_first) {
    const auto [elements, rank] = loads.top();
    loads.pop();
    loads.emplace(elements + size_of(i), rank);
    savers[i] = rank;
  }
  return savers;
}

v1::MemoryTable MemoryOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage,
                              int threads) {
  return MemoryTables(job).OfStage(layout, stage, threads);
}

v1::MemoryTable MemoryTables::OfStage(const v1::Layout& layout, int stage, int threads) {
  const v1::JobSpec& job = job_;
  const StageShape shape = ShapeOfStage(job, layout, stage);
  const StageUnits units = UnitsOfStage(job.model(), layout, stage);
  const StageTensors& tensors = stages_.Of(layout, stage);
  const std::vector<UnitKind> kinds =
      UnitKindsOf(tensors, ShardRanks(layout), OffloadedShare(job, layout));
  const SlotActivations activations = ActivationsOfSlot(shape, units);
  const std::unique_ptr<DeviceMemory> device = DeviceMemoryOf(job);
  const int slots = ActivationSlots(ShapeOfSchedule(layout), stage);
  TableBuilder table;
  const Places places = PlacesOf(job, layout);
  const StateSizes state = SizesOfState(job, layout, tensors, kinds);
  AddSplit(places.master, "parameters", v1::BUFFER_KIND_PARAMETER, state.master, &table);
  // In fp32 the model reads the master weights themselves, where all of them are there.
  int64_t kept = 0;  // elements of gathered layers that this rank keeps
  if (GathersWeights(job, layout)) {
    // Places of weights are the same for all shards.
    std::vector<StateUnit> state_units = StateUnitsOf(tensors, 1);
    table.Values(WeightsBuffer(job, layout), v1::BUFFER_KIND_PARAMETER, shape.precision,
                 PlaceWeights(tensors, PlacesOfLayers(layout), &state_units));
    if (const int ranks = SecondaryRanks(layout); ranks > 0) {
      kept = KeepOverNeighbours(ranks, &state_units);
    }
  } else if (RoundsWeights(job)) {
    table.Values("parameters.compute", v1::BUFFER_KIND_PARAMETER, shape.precision,
                 tensors.parameter_elements);
  }
  const int64_t frozen = KeepsFrozenApart(job, layout) ? FrozenElements(kinds) : 0;
  table.AddAt(places.master, kFrozenBuffer, v1::BUFFER_KIND_PARAMETER,
              frozen * FrozenPrecision(job).bytes());
  // Tables of jobs without a base stay as they are.
  if (!tensors.quantized.empty()) {
    table.Add(kBaseBuffer, v1::BUFFER_KIND_PARAMETER, tensors.base_bytes);
    table.Values(kDequantizedBuffer, v1::BUFFER_KIND_WORKSPACE, shape.precision,
                 tensors.dequantized_elements);
  }
  table.Values("parameters.secondary", v1::BUFFER_KIND_PARAMETER, shape.precision, kept);
  AddGradients(job, layout, shape, tensors, kinds, &table);
  for (const char* name : {"adamw.m", "adamw.v"}) {
    AddSplit(places.moments, name, v1::BUFFER_KIND_OPTIMIZER, state.moments, &table);
  }
  for (int slot = 0; slot < slots; ++slot) {
    table.AddAt(places.activations, absl::StrCat("activations.", slot), v1::BUFFER_KIND_ACTIVATION,
                activations.total);
  }
  table.Add("activations.shared", v1::BUFFER_KIND_ACTIVATION, activations.shared_total);
  AddWorkspace(job, shape, units, tensors, *device, TeacherScratchOf(job, layout, stage, threads),
               threads, &table);
  AddFp8(layout, shape, units, &table);
  AddHead(job, shape, units.architecture.head, &table);
  AddCommunication(job, layout, shape, units, tensors, kinds, stages_.tensors(), *device, &table);
  AddTokens(job, shape, units.architecture, &table);
  AddTeacher(job, layout, stage, threads, &table);
  const int64_t snapshot = SnapshotElements(job, layout, tensors, kinds, stage) * kFloat;
  if (device->SnapshotsOnHost()) {
    table.AddOnHost("snapshot", v1::BUFFER_KIND_SNAPSHOT, snapshot);
  } else {
    // Where the state has no room in memory, neither has its copy.
    const bool on_disk = places.moments == Place::kDisk || places.master == Place::kDisk;
    table.AddAt(on_disk ? Place::kDisk : Place::kDevice, "snapshot", v1::BUFFER_KIND_SNAPSHOT,
                snapshot);
  }
  return table.Finish();
}

const MemoryTables::Activations& MemoryTables::ActivationsOf(const v1::Layout& layout, int stage) {
  const auto [found, is_new] =
      activations_.try_emplace({stage,
                                layout.tensor(),
                                layout.pipeline(),
                                layout.virtual_pipeline(),
                                layout.micro_batch(),
                                layout.tensor_overlap(),
                                layout.sequence_parallel(),
                                static_cast<int>(layout.recompute()),
                                {layout.stage_layers().begin(), layout.stage_layers().end()}});
  if (is_new) {
    const SlotActivations slot = ActivationsOfSlot(ShapeOfStage(job_, layout, stage),
                                                   UnitsOfStage(job_.model(), layout, stage));
    found->second = {slot.total, slot.shared_total};
  }
  return found->second;
}

int64_t MemoryTables::LeastOfStage(const v1::Layout& layout, int stage) {
  const StageTensors& tensors = stages_.Of(layout, stage);
  const Places places = PlacesOf(job_, layout);
  const auto& [slot, shared] = ActivationsOf(layout, stage);
  int64_t bytes = shared;
  if (places.activations == Place::kDevice) {
    bytes += ActivationSlots(ShapeOfSchedule(layout), stage) * slot;
  }
  // Without what may pad tensors. The largest shard has as much as the mean of all, or more.
  constexpr int64_t kMostPadding = 15;
  const int64_t padding = kMostPadding * static_cast<int64_t>(tensors.tensors.size());
  const auto least = [&](int64_t elements) { return std::max<int64_t>(0, elements - padding); };
  const int64_t all = least(tensors.parameter_elements);
  int64_t frozen = 0;
  int64_t parameters = 0;  // that are trained
  for (const StageTensor& entry : tensors.tensors) {
    if (entry.own_parameter) (entry.frozen ? frozen : parameters) += entry.elements;
  }
  const int64_t whole = least(parameters);
  const int64_t shard = whole / ShardRanks(layout);
  if (places.master == Place::kDevice) {
    const bool divided =
        OptimizerHasMasterWeights(job_, layout) || DividesMasterWeights(job_, layout);
    bytes += kFloat * (divided ? shard : all);
    if (KeepsFrozenApart(job_, layout)) {
      bytes += FrozenPrecision(job_).bytes() * least(frozen) / ShardRanks(layout);
    }
  }
  bytes += tensors.base_bytes;
  if (RoundsWeights(job_) && !GathersWeights(job_, layout)) {
    bytes += PrecisionOf(job_).bytes() * all;
  }
  bytes += kFloat * (DividesGradients(layout) ? shard : whole);
  if (places.moments == Place::kDevice) bytes += 2 * kFloat * shard;
  return bytes;
}

int64_t MostBytesOutside(const v1::JobSpec& job, const v1::Layout& layout, int stage) {
  return DeviceMemoryOf(job)->MostBytesOutside(layout, TensorsOfStage(job, layout, stage));
}

const v1::Buffer& FindBuffer(const v1::MemoryTable& table, const std::string& name) {
  for (const v1::Buffer& buffer : table.buffers()) {
    if (buffer.name() == name) return buffer;
  }
  // The table comes from this same file: a missing name is a fault of the program, not of a job.
  std::fprintf(stderr, "no buffer %s in the memory table\n", name.c_str());
  std::abort();
}

const char* BufferKindText(v1::BufferKind kind) {
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

std::string MemoryTableText(const v1::MemoryTable& table) {
  std::map<v1::BufferKind, int64_t> bytes;
  for (const v1::Buffer& buffer : table.buffers()) bytes[buffer.kind()] += buffer.size_bytes();
  std::string text;
  for (const auto& [kind, size] : bytes) {
    absl::StrAppendFormat(&text, "  %-14s %12.3f MiB\n", BufferKindText(kind),
                          static_cast<double>(size) / (1 << 20));
  }
  absl::StrAppendFormat(&text, "  %-14s %12.3f MiB\n", "total",
                        static_cast<double>(table.total_bytes()) / (1 << 20));
  return text;
}

}  // namespace tercio::plan
