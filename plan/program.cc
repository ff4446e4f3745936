#include "plan/program.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/architecture.h"
#include "plan/lanes.h"
#include "plan/reproducibility.h"
#include "plan/state_shards.h"
#include "plan/tensor_policy.h"

namespace tercio::plan {
namespace {

using Kind = ProgramStep::Kind;

bool IsLayer(const ProgramShape& shape, int unit) { return unit >= 0 && unit < shape.head(); }

bool IsPublished(const ProgramShape& shape, int unit) {
  return std::binary_search(shape.published.begin(), shape.published.end(), unit);
}

// The units of a chunk, in the order of its forward pass.
std::vector<int> UnitsOfChunk(const ProgramShape& shape, int chunk) {
  std::vector<int> units;
  if (shape.first && chunk == 0) units.push_back(kEmbeddingUnit);
  for (int i = shape.runs.first(chunk); i < shape.runs.end(chunk); ++i) units.push_back(i);
  if (shape.last && chunk + 1 == shape.runs.chunks()) units.push_back(shape.head());
  return units;
}

// What a micro-batch does with gradients of a chunk: none of it where no unit has a backward pass.
bool HasBackwardPass(const ProgramShape& shape, int chunk) {
  return shape.HasBackward(UnitsOfChunk(shape, chunk).back());
}

// Passes taken apart; no weights are gathered yet.
class Expansion {
 public:
  explicit Expansion(const ProgramShape& shape) : shape_(shape) {}

  void Add(Kind kind, const v1::Action& action) {
    program_.push_back({.kind = kind,
                        .micro_batch = action.micro_batch(),
                        .chunk = action.chunk(),
                        .slot = action.slot(),
                        .flow = action.flow()});
  }

  void AddForward(const v1::Action& action) {
    Add(Kind::kBeginForward, action);
    for (const int unit : UnitsOfChunk(shape_, action.chunk())) {
      AddOfUnit(Kind::kForward, action, unit);
    }
    Add(Kind::kEndForward, action);
  }

  void AddBackward(const v1::Action& action) {
    const int of_round = shape_.micro_batches / shape_.rounds;
    const bool ends_round = (action.micro_batch() + 1) % of_round == 0;
    if (!HasBackwardPass(shape_, action.chunk())) return;
    Add(Kind::kBeginBackward, action);
    std::vector<int> units = UnitsOfChunk(shape_, action.chunk());
    std::reverse(units.begin(), units.end());
    for (const int unit : units) {
      if (!shape_.HasBackward(unit)) break;
      AddOfUnit(Kind::kBackward, action, unit);
      if (!shape_.reduces || !ends_round || !shape_.IsTrained(unit)) continue;
      AddOfUnit(Kind::kReduce, action, unit);
      program_.back().round = action.micro_batch() / of_round;
    }
    Add(Kind::kEndBackward, action);
  }

  // The first pass that reads the new weights begins with the first unit.
  void AddUpdate(const v1::Action& action) {
    Add(Kind::kJudge, action);
    std::vector<int> units;
    for (int chunk = 0; chunk < shape_.runs.chunks(); ++chunk) {
      for (const int unit : UnitsOfChunk(shape_, chunk)) {
        if (shape_.IsTrained(unit)) units.push_back(unit);
      }
    }
    if (units.empty()) return;
    if (shape_.fetches) AddOfUnit(Kind::kFetch, action, units.front());
    for (size_t i = 0; i < units.size(); ++i) {
      if (shape_.fetches && i + 1 < units.size()) AddOfUnit(Kind::kFetch, action, units[i + 1]);
      AddOfUnit(Kind::kUpdate, action, units[i]);
      if (IsPublished(shape_, units[i])) AddOfUnit(Kind::kPublish, action, units[i]);
    }
  }

  Program Take() { return std::move(program_); }

 private:
  void AddOfUnit(Kind kind, const v1::Action& action, int unit) {
    Add(kind, action);
    program_.back().unit = unit;
  }

  const ProgramShape& shape_;
  Program program_;
};

// Puts in when layers are gathered: each before it is computed, unless it is in its place still,
// and those that are computed after it as soon as their places are free.
class Gathers {
 public:
  Gathers(const ProgramShape& shape, const Program& program)
      : shape_(shape),
        program_(program),
        there_(static_cast<size_t>(shape.places), -1),
        is_kept_(static_cast<size_t>(shape.runs.layers())) {
    for (const ProgramStep& step : program) {
      if (IsUse(step)) uses_.push_back(step.unit);
    }
  }

  Program Insert() {
    Program with;
    size_t use = 0;
    for (const ProgramStep& step : program_) {
      if (IsUse(step)) GatherFor(use++, step, &with);
      with.push_back(step);
    }
    return with;
  }

 private:
  bool IsUse(const ProgramStep& step) const {
    const bool computes = step.kind == Kind::kForward || step.kind == Kind::kBackward;
    return computes && IsLayer(shape_, step.unit);
  }
  int& PlaceOf(int layer) { return there_[static_cast<size_t>(layer) % there_.size()]; }

  void GatherFor(size_t use, const ProgramStep& step, Program* with) {
    const size_t end = std::min(uses_.size(), use + there_.size());
    for (size_t next = use; next < end; ++next) {
      const int layer = uses_[next];
      // What is computed before it needs the place.
      const bool is_taken = std::any_of(
          uses_.begin() + static_cast<std::ptrdiff_t>(use),
          uses_.begin() + static_cast<std::ptrdiff_t>(next),
          [&](int before) { return before != layer && &PlaceOf(before) == &PlaceOf(layer); });
      if (is_taken) return;
      if (PlaceOf(layer) == layer) continue;
      PlaceOf(layer) = layer;
      ProgramStep gather = step;
      gather.kind = Kind::kGather;
      gather.unit = layer;
      gather.kept = shape_.keeps && is_kept_[static_cast<size_t>(layer)];
      is_kept_[static_cast<size_t>(layer)] = true;
      with->push_back(gather);
    }
  }

  const ProgramShape& shape_;
  const Program& program_;
  std::vector<int> uses_;   // layers, in the order in which they are computed
  std::vector<int> there_;  // the layer in each place; -1: none
  std::vector<bool> is_kept_;
};

Program WithGathers(const ProgramShape& shape, Program program) {
  return shape.places == 0 ? program : Gathers(shape, program).Insert();
}

std::vector<int> PublishedUnits(const v1::JobSpec& job, const v1::Layout& layout, int stage) {
  const bool gathers = GathersWeights(job, layout);
  std::vector<int> published;
  if (ShardRanks(layout) == 1 && !gathers && WeightFormatOf(job) == kernels::BlockFormat::kNone) {
    return published;
  }
  const StageTensors tensors = TensorsOfStage(job, layout, stage);
  std::vector<StateUnit> units = StateUnitsOf(tensors, ShardRanks(layout));
  if (gathers) PlaceWeights(tensors, PlacesOfLayers(layout), &units);
  const std::vector<int> of_program = ProgramUnitsOf(units);
  for (size_t i = 0; i < units.size(); ++i) {
    // Further uses of a tensor read the same memory, and layers may be gathered for each pass.
    if (!units[i].own_parameter || units[i].stage_layer >= 0 || units[i].frozen) continue;
    if (published.empty() || published.back() != of_program[i]) published.push_back(of_program[i]);
  }
  return published;
}

// The program's units of the stage of which all tensors are frozen.
std::vector<int> UntrainedUnits(const ProgramShape& shape, const v1::JobSpec& job,
                                const v1::Layout& layout, int stage) {
  if (!FreezesAnything(job)) return {};
  const std::vector<StateUnit> units = StateUnitsOf(TensorsOfStage(job, layout, stage), 1);
  const std::vector<int> of_program = ProgramUnitsOf(units);
  std::set<int> untrained;
  for (int unit = shape.first ? kEmbeddingUnit : 0; unit < shape.head() + (shape.last ? 1 : 0);
       ++unit) {
    untrained.insert(unit);
  }
  for (size_t i = 0; i < units.size(); ++i) {
    if (!units[i].frozen) untrained.erase(of_program[i]);
  }
  return {untrained.begin(), untrained.end()};
}

}  // namespace

bool ProgramShape::IsTrained(int unit) const {
  return !std::binary_search(untrained.begin(), untrained.end(), unit);
}

bool ProgramShape::HasBackward(int unit) const {
  // The head is the last unit, so that the gradients of all others come from it.
  if (unit == head()) return last;
  if (unit == kEmbeddingUnit || layers.empty()) return unit >= trained_from;
  return layers[static_cast<size_t>(unit)] >= trained_from;
}

bool ProgramShape::PassesGradientOn(int chunk) const {
  if (first && chunk == 0) return false;
  const int unit = runs.first(chunk);
  return (layers.empty() ? unit : layers[static_cast<size_t>(unit)]) > trained_from;
}

ProgramShape ShapeOfProgram(const v1::JobSpec& job, const v1::Layout& layout, int stage) {
  ProgramShape shape;
  shape.runs = RunsOfStage(model::LayersOf(job.model()), layout, stage);
  shape.first = stage == 0;
  shape.last = stage + 1 == layout.pipeline();
  shape.micro_batches = layout.micro_batches();
  shape.rounds = RoundsOf(layout, LanesOf(job, layout));
  shape.reduces = layout.data() > 1;
  shape.fetches = job.offload().optimizer() == v1::OFFLOAD_TIER_NVME ||
                  job.offload().parameters() == v1::OFFLOAD_TIER_NVME;
  shape.published = PublishedUnits(job, layout, stage);
  shape.layers = LayersOfStage(model::LayersOf(job.model()), layout, stage);
  shape.trained_from = FirstTrainedLayer(job);
  shape.untrained = UntrainedUnits(shape, job, layout, stage);
  if (!GathersWeights(job, layout)) return shape;
  shape.places = PlacesOfLayers(layout);
  shape.keeps = SecondaryRanks(layout) > 0;
  return shape;
}

// Units of the embedding, of a layer, or of the head follow each other.
std::vector<int> ProgramUnitsOf(const std::vector<StateUnit>& units) {
  std::vector<int> of_program;
  int unit = !units.empty() && units.front().layer < 0 ? kEmbeddingUnit : 0;
  for (size_t i = 0; i < units.size(); ++i) {
    if (i > 0 && units[i].layer != units[i - 1].layer) ++unit;
    of_program.push_back(unit);
  }
  return of_program;
}

Program TrainingProgram(const ProgramShape& shape, const std::vector<v1::Action>& actions) {
  Expansion expansion(shape);
  for (const v1::Action& action : actions) {
    switch (action.kind()) {
      case v1::ACTION_KIND_RECEIVE_ACTIVATION:
        expansion.Add(Kind::kReceiveActivation, action);
        break;
      case v1::ACTION_KIND_FORWARD:
        expansion.AddForward(action);
        break;
      case v1::ACTION_KIND_SEND_ACTIVATION:
        expansion.Add(Kind::kSendActivation, action);
        break;
      case v1::ACTION_KIND_RECEIVE_GRADIENT:
        if (HasBackwardPass(shape, action.chunk())) {
          expansion.Add(Kind::kReceiveGradient, action);
        }
        break;
      case v1::ACTION_KIND_BACKWARD:
        expansion.AddBackward(action);
        break;
      case v1::ACTION_KIND_SEND_GRADIENT:
        if (shape.PassesGradientOn(action.chunk())) expansion.Add(Kind::kSendGradient, action);
        break;
      case v1::ACTION_KIND_REDUCE_GRADIENTS:
        expansion.Add(Kind::kFinish, action);
        break;
      case v1::ACTION_KIND_OPTIMIZER_STEP:
        expansion.AddUpdate(action);
        break;
      case v1::ACTION_KIND_UNSPECIFIED:
      case v1::ActionKind_INT_MIN_SENTINEL_DO_NOT_USE_:
      case v1::ActionKind_INT_MAX_SENTINEL_DO_NOT_USE_:
        break;
    }
  }
  return WithGathers(shape, expansion.Take());
}

Program EvaluationProgram(const ProgramShape& shape) {
  Expansion expansion(shape);
  for (int m = 0; m < shape.micro_batches; ++m) {
    for (int chunk = 0; chunk < shape.runs.chunks(); ++chunk) {
      v1::Action action;
      action.set_micro_batch(m);
      action.set_chunk(chunk);
      if (!shape.first || chunk > 0) expansion.Add(Kind::kReceiveActivation, action);
      expansion.AddForward(action);
      if (!shape.last || chunk + 1 < shape.runs.chunks())
        expansion.Add(Kind::kSendActivation, action);
    }
  }
  return WithGathers(shape, expansion.Take());
}

std::string TextOf(const ProgramShape& shape, const ProgramStep& step) {
  const std::string unit = step.unit == kEmbeddingUnit ? "embedding"
                           : step.unit == shape.head() ? "head"
                                                       : absl::StrCat("layers.", step.unit);
  const std::string pass =
      absl::StrCat("micro-batch ", step.micro_batch,
                   shape.runs.chunks() > 1 ? absl::StrCat(" chunk ", step.chunk) : "");
  switch (step.kind) {
    case Kind::kReceiveActivation:
      return absl::StrCat("receive activation, ", pass);
    case Kind::kBeginForward:
      return absl::StrCat("begin forward, ", pass);
    case Kind::kForward:
      return absl::StrCat("forward ", unit, ", ", pass);
    case Kind::kEndForward:
      return absl::StrCat("end forward, ", pass);
    case Kind::kSendActivation:
      return absl::StrCat("send activation, ", pass);
    case Kind::kReceiveGradient:
      return absl::StrCat("receive gradient, ", pass);
    case Kind::kBeginBackward:
      return absl::StrCat("begin backward, ", pass);
    case Kind::kBackward:
      return absl::StrCat("backward ", unit, ", ", pass);
    case Kind::kEndBackward:
      return absl::StrCat("end backward, ", pass);
    case Kind::kSendGradient:
      return absl::StrCat("send gradient, ", pass);
    case Kind::kGather:
      return absl::StrCat("gather ", unit, step.kept ? " from neighbours" : "", " into place ",
                          step.unit % shape.places);
    case Kind::kReduce:
      return absl::StrCat("sum ", unit, ", round ", step.round);
    case Kind::kFinish:
      return "finish sums";
    case Kind::kJudge:
      return "judge the step";
    case Kind::kFetch:
      return absl::StrCat("fetch ", unit);
    case Kind::kUpdate:
      return absl::StrCat("update ", unit);
    case Kind::kPublish:
      return absl::StrCat("publish ", unit);
  }
  return "";
}

}  // namespace tercio::plan
