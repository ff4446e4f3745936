#include "plan/state_volume.h"

#include <algorithm>
#include <cstddef>

#include "plan/buckets.h"
#include "plan/lanes.h"
#include "plan/model_tensors.h"
#include "plan/packed_units.h"
#include "plan/precision.h"
#include "plan/program.h"
#include "plan/reproducibility.h"
#include "plan/schedule.h"
#include "plan/state_shards.h"

namespace tercio::plan {
namespace {

constexpr double kFloatBytes = 4;

// Bytes that a member of a group sends, as a mean, where all exchange their parts of so many.
double ToOthers(double bytes, int members) { return bytes * (members - 1) / members; }

// Gradients of ranks that have all of the state are summed in buckets, both halves of the sum.
double WholeSums(const v1::JobSpec& job, const v1::Layout& layout, int stage) {
  double elements = 0;
  for (const v1::BucketRange& bucket : BucketsOfStage(job, layout, stage)) {
    elements += static_cast<double>(bucket.end() - bucket.begin());
  }
  return 2 * ToOthers(elements * kFloatBytes, layout.data());
}

// Bytes of a unit as it travels: packed, or as numbers of `of_element` bytes each.
double UnitBytes(const StageTensors& tensors, const StateUnit& unit, kernels::BlockFormat format,
                 double of_element) {
  if (format == kernels::BlockFormat::kNone) {
    return static_cast<double>(unit.elements()) * of_element;
  }
  return static_cast<double>(PackedUnitOf(tensors, unit, format).bytes());
}

}  // namespace

std::vector<LayerGathers> GathersOfLayers(const v1::JobSpec& job, const v1::Layout& layout,
                                          int stage) {
  const ProgramShape shape = ShapeOfProgram(job, layout, stage);
  std::vector<LayerGathers> gathers(static_cast<size_t>(shape.runs.layers()));
  if (shape.places == 0) return gathers;
  for (const ProgramStep& step :
       TrainingProgram(shape, StageActions(ShapeOfSchedule(layout), stage))) {
    if (step.kind != ProgramStep::Kind::kGather) continue;
    LayerGathers& of_layer = gathers[static_cast<size_t>(step.unit)];
    ++(step.kept ? of_layer.kept : of_layer.whole);
  }
  return gathers;
}

StateVolume VolumeOfStage(const v1::JobSpec& job, const v1::Layout& layout, int stage) {
  StateVolume volume;
  const int shards = ShardRanks(layout);
  if (shards == 1) {
    if (layout.data() > 1) volume.reduced = WholeSums(job, layout, stage);
    return volume;
  }
  const StageTensors tensors = TensorsOfStage(job, layout, stage);
  std::vector<StateUnit> units = StateUnitsOf(tensors, shards);
  if (GathersWeights(job, layout)) PlaceWeights(tensors, PlacesOfLayers(layout), &units);
  const std::vector<LayerGathers> gathers = GathersOfLayers(job, layout, stage);
  const int rounds = RoundsOf(layout, LanesOf(job, layout));
  const double of_model = static_cast<double>(PrecisionOf(job).bytes());
  const kernels::BlockFormat sums =
      DividesGradients(layout) ? GradientFormatOf(job) : kernels::BlockFormat::kNone;
  for (const StateUnit& unit : units) {
    const auto elements = static_cast<double>(unit.elements());
    if (!unit.frozen) {
      volume.reduced += rounds * ToOthers(UnitBytes(tensors, unit, sums, kFloatBytes), shards);
      volume.reduced += 2 * ToOthers(elements / shards * kFloatBytes, ReplicasOf(layout));
    }
    if (!unit.own_parameter) continue;
    // What does not change is not sent after an update.
    const LayerGathers times = unit.stage_layer < 0
                                   ? LayerGathers{.whole = unit.frozen ? 0 : 1}
                                   : gathers[static_cast<size_t>(unit.stage_layer)];
    const double gathered = UnitBytes(tensors, unit, WeightFormatOf(job), of_model);
    volume.gathered += times.whole * ToOthers(gathered, shards);
    if (times.kept == 0) continue;
    volume.gathered += times.kept * ToOthers(elements * of_model, SecondaryRanks(layout));
  }
  return volume;
}

}  // namespace tercio::plan
