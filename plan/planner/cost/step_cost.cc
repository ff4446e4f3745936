#include "plan/planner/cost/step_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "common/check.h"
#include "model/architecture.h"
#include "plan/memory_map.h"
#include "plan/model_tensors.h"
#include "plan/offload.h"
#include "plan/planner/cost/collective_time.h"
#include "plan/planner/cost/node_groups.h"
#include "plan/planner/cost/offload_time.h"
#include "plan/planner/cost/op_time.h"
#include "plan/planner/cost/unit_time.h"
#include "plan/precision.h"
#include "plan/stage_layers.h"
#include "plan/stage_units.h"

namespace tercio::plan::cost {
namespace {

constexpr double kBucketElements = 40e6;  // of gradients that are reduced together
constexpr double kBucketElementsOfRank = 1e6;
constexpr double kTensorsOfLayer = 8;  // that are gathered one by one
// AdamW reads and writes weight and moments in fp32, and writes the weight that the model reads.
constexpr double kUpdateBytes = 30;
// Gradients are read once more for their norm, and once to be scaled.
constexpr double kNormPasses = 2;

// Bytes of an element that travels in a block format, or, without one, as a value of `bytes`.
double TravellingBytes(v1::BlockFormat format, double bytes) {
  const kernels::BlockFormat block = BlockFormatOf(format);
  if (block == kernels::BlockFormat::kNone) return bytes;
  constexpr int64_t kElements = kernels::kBlockElements;
  return static_cast<double>(kernels::PackedBytes(block, kElements)) / kElements;
}

// What computes and joins ranks that are on nodes of one kind, or of several.
struct Hardware {
  Hardware(const ClusterModel& cluster, const Constants& of_constants, Factor factor)
      : devices(cluster.devices()),
        constants(of_constants),
        collective(cluster, constants),
        op(cluster.accelerator, constants, factor) {}

  int devices;
  Constants constants;
  CollectiveTime collective;
  OpTime op;
};

// What one place of the pipeline does with a micro-batch.
struct Place {
  UnitTime time;
  const Hardware* hardware = nullptr;  // what its stage is on
  int layers = 0;
  PassSeconds passes;  // with what gathers and sums of divided state add
  double offload = 0;  // the part of both passes that state elsewhere adds
};

// What does not depend on a layout.
struct Basis {
  Basis(const v1::JobSpec& of_job, const ClusterModel& of_cluster, const Recipe& of_recipe,
        const Constants& of_constants)
      : job(of_job),
        cluster(of_cluster),
        recipe(of_recipe),
        constants(of_cluster.constants.value_or(of_constants)),
        architecture(model::ArchitectureOf(of_job.model())),
        groups(CountGroups(of_cluster)),
        flops_of_token(FlopsPerToken(of_job.model(), AttentionCount::kWhole)),
        products_of_token(2 * model::WeightsInProducts(architecture)),
        attention_of_token(4 *
                           model::ElementsTimesKeys(architecture, model::AttentionCount::kWhole)) {
    for (int first = 0; first < groups; ++first) {
      for (int last = first; last < groups; ++last) {
        parts.push_back(PartOf(cluster, {first, last}));
        hardware.emplace_back(parts.back(), parts.back().constants.value_or(of_constants),
                              FactorOf(job));
      }
    }
  }

  // Where the ranks of groups first ... last are among `parts` and `hardware`.
  size_t IndexOf(const GroupRange& range) const {
    const int before = range.first * groups - range.first * (range.first - 1) / 2;
    return static_cast<size_t>(before + range.last - range.first);
  }

  const v1::JobSpec& job;
  const ClusterModel& cluster;
  const Recipe& recipe;
  const Constants constants;
  const model::Architecture architecture;
  const int groups;                 // kinds of nodes
  std::vector<ClusterModel> parts;  // clusters of some groups, by IndexOf
  std::vector<Hardware> hardware;   // the same
  const double flops_of_token;      // the model's, forward and backward
  // Forward, in layers: of products with weights, and of attention.
  const double products_of_token;
  const double attention_of_token;
};

// Times of the units of layouts on the parts of a cluster, computed when they are first asked for.
class UnitStore {
 public:
  // Stays where it is.
  const UnitTimes& Of(const Basis& basis, const v1::Layout& layout, size_t part) {
    const auto [found, is_new] = units_.try_emplace(
        {layout.tensor(), layout.micro_batch(), layout.context_parallel(), layout.tensor_overlap(),
         layout.sequence_parallel(), static_cast<int>(layout.recompute()), part});
    if (is_new) {
      found->second = TimesOfUnits(basis.architecture, basis.job, layout, basis.parts[part],
                                   basis.recipe, basis.hardware[part].constants);
    }
    return found->second;
  }

 private:
  std::map<std::tuple<int, int, int, int, bool, int, size_t>, UnitTimes> units_;
};

// The part of the cluster that a stage is on, or that several in a row are on.
size_t PartOfStages(const Basis& basis, const v1::Layout& layout, int first, int count) {
  if (basis.groups == 1) return 0;
  const int ranks = std::max(1, layout.tensor()) * std::max(1, layout.data()) *
                    std::max(1, layout.context_parallel());
  return basis.IndexOf(GroupsOfRanks(basis.cluster, first * ranks, count * ranks));
}

class Step {
 public:
  // `layers`: StepInput. All arguments must outlive it.
  Step(const Basis& basis, UnitStore* units, const v1::Layout& layout,
       const std::vector<int>& layers, PipelineWalks* walks)
      : basis_(basis),
        job_(basis.job),
        cluster_(basis.cluster),
        layout_(layout),
        recipe_(basis.recipe),
        constants_(basis.constants),
        walks_(walks),
        architecture_(basis.architecture),
        tensor_(std::max(1, layout.tensor())),
        stages_(std::max(1, layout.pipeline())),
        chunks_(std::max(1, layout.virtual_pipeline())),
        micro_batches_(std::max(1, layout.micro_batches())),
        data_(std::max(1, layout.data()) * std::max(1, layout.context_parallel())) {
    shards_ = layout.shard() > 0 ? std::min(data_, layout.shard()) : data_;
    const int all = static_cast<int>(architecture_.layers.size());
    layers_ = layers.empty() ? LayersOfPlaces(all, layout_) : layers;
    TERCIO_CHECK_EQ(layers_.size(), static_cast<size_t>(stages_ * chunks_));
    const int different = basis.groups > 1 ? stages_ : 1;
    for (int stage = 0; stage < different; ++stage) {
      const size_t part = PartOfStages(basis, layout, stage, 1);
      hardware_.push_back(&basis.hardware[part]);
      units_.push_back(&units->Of(basis, layout, part));
    }
    FillPlaces();
    state_ = StateOfRank();
    offload_.emplace(job_, layout_, cluster_, recipe_, tensor_ * stages_ * data_, state_);
    if (offload_->slows_passes()) AddOffloadToPasses();
  }

  // The first stage is the last one to be done with its passes; what other stages exchange after
  // theirs may take longer.
  double Least() {
    StepCost rest;
    AddOptimizer(std::numeric_limits<double>::infinity(), &rest);
    PipelineCost messages;
    SetTransfers(&messages);
    return LeastOfPasses(messages) + ExposedOfStage(0) + TiedSum() + rest.seconds;
  }

  StepCost Get() {
    StepCost cost;
    AddPasses(&cost);
    AddData(&cost);
    AddOptimizer(cost.seconds, &cost);
    Finish(&cost);
    return cost;
  }

  StepTiming Timing() {
    StepTiming timing;
    timing.cost = Get();
    timing.shape = ShapeOfSchedule(layout_);
    SetTransfers(&timing.pipeline);
    timing.pipeline.overlaps_transfers = recipe_.overlaps_transfers;
    for (const Place& place : places_) {
      timing.pipeline.places.push_back(place.passes);
      timing.recompute.push_back(place.time.recompute.total());
    }
    timing.head_gradient = deferred_;
    for (int stage = 0; stage < stages_; ++stage) {
      timing.exchange.push_back(ExposedOfStage(stage));
    }
    timing.tied_table = TiedSum();
    timing.optimizer = timing.cost.optimizer + update_offload_;
    return timing;
  }

 private:
  // Stages are numbered from 0; places of their chunks follow each other.
  size_t StageOf(size_t place) const { return place % static_cast<size_t>(stages_); }
  const Hardware& HardwareOf(size_t stage) const {
    return *hardware_[hardware_.size() > 1 ? stage : 0];
  }
  const UnitTimes& UnitsOf(size_t stage) const { return *units_[units_.size() > 1 ? stage : 0]; }

  void FillPlaces() {
    const auto kind_of = [&](size_t layer) {
      return static_cast<size_t>(architecture_.layers[layer]);
    };
    size_t layer = 0;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const auto layers = static_cast<size_t>(layers_[i]);
      // Places in the middle are mostly like the one before.
      bool is_same = i > 1 && i + 1 < layers_.size() && layers_[i] == layers_[i - 1] &&
                     &HardwareOf(StageOf(i)) == &HardwareOf(StageOf(i - 1));
      for (size_t j = layer; is_same && j < layer + layers; ++j) {
        is_same = kind_of(j) == kind_of(j - layers);
      }
      if (is_same) {
        places_.push_back(places_.back());
        layer += layers;
        continue;
      }
      const UnitTimes& units = UnitsOf(StageOf(i));
      Place place;
      place.hardware = &HardwareOf(StageOf(i));
      place.layers = layers_[i];
      if (i == 0) place.time += units.embedding;
      for (size_t j = 0; j < layers; ++j, ++layer) place.time += units.kinds[kind_of(layer)];
      if (i + 1 == layers_.size()) place.time += units.head;
      place.passes = PassesOf(place);
      places_.push_back(place);
    }
    const int deferred =
        stages_ > 1 ? std::min(micro_batches_, recipe_.deferred_head_gradients) : 0;
    deferred_ = deferred * UnitsOf(static_cast<size_t>(stages_ - 1)).head_gradient;
    if (deferred == 0) return;
    places_.back().time.backward.products -= deferred_ / micro_batches_;
    places_.back().passes = PassesOf(places_.back());
  }

  // No stage is faster than its passes with what has to happen before its first one and behind its
  // last one.
  double LeastOfPasses(const PipelineCost& messages) const {
    double least = 0;
    double before = 0;
    for (size_t stage = 0; stage < static_cast<size_t>(stages_); ++stage) {
      least = std::max(least, before + BusyOf(stage));
      const PassSeconds& first = places_[stage].passes;
      before += first.forward + first.backward +
                2 * (messages.transfers.empty() ? messages.transfer : messages.transfers[stage]);
    }
    return least;
  }

  double BusyOf(size_t stage) const {
    double busy = 0;
    for (size_t i = stage; i < places_.size(); i += static_cast<size_t>(stages_)) {
      busy += micro_batches_ * (places_[i].passes.forward + places_[i].passes.backward);
    }
    return busy;
  }

  // Collectives that run beside compute slow it down by their share of the processors.
  double Beside(double compute, double collective) const {
    return std::max(compute + constants_.overlap_slowdown * std::min(compute, collective),
                    collective);
  }

  // How much longer ranks take that compute all at once on devices which they share.
  double Turns() const {
    if (cluster_.shared_devices <= 0) return 1;
    const int ranks = std::min(cluster_.devices_per_node, tensor_ * stages_ * data_);
    return std::max(1.0, ranks / cluster_.shared_devices);
  }

  Group ShardGroup() const { return {shards_, tensor_}; }
  Group ReplicaGroup() const { return {data_ / shards_, tensor_ * shards_}; }
  double ValueBytes() const { return HardwareOf(0).op.value_bytes(); }
  // Collectives that reach a part of the network's rate take as long as those of more bytes.
  double ValueBytesOf(double weights) const {
    const double bytes = TravellingBytes(job_.training().weight_format(), ValueBytes());
    return weights * bytes / recipe_.data_share;
  }
  double GradientBytesOf(double weights) const {
    const bool divided = layout_.zero_stage() >= 2;
    const double bytes =
        divided ? TravellingBytes(job_.training().gradient_format(), recipe_.gradient_bytes)
                : recipe_.gradient_bytes;
    return weights * bytes / recipe_.data_share;
  }

  // Messages that gradients or weights of so many elements are cut into: Megatron's buckets grow
  // with the number of ranks, so that a rank's part of one stays worth a message.
  double Buckets(double elements, int units) const {
    if (recipe_.sums_each_unit) return units;
    const double bucket = std::max(kBucketElements, kBucketElementsOfRank * data_);
    return std::max(1.0, std::ceil(elements / bucket));
  }

  // What each rank of the stage has that has most.
  RankState StateOfRank() const {
    RankState state;
    for (int stage = 0; stage < stages_; ++stage) {
      state.elements = std::max(state.elements, Weights(stage));
    }
    if (layout_.zero_stage() >= 1) state.elements /= shards_;
    if (IsElsewhere(job_, job_.offload().activations())) {
      state.activation_bytes = ActivationSlots(ShapeOfSchedule(layout_), 0) * ActivationsOf(0);
    }
    return state;
  }

  // Weights of a place that are gathered once in a step, not for each pass.
  double WeightsBesideLayers(size_t place) const {
    const UnitTimes& units = UnitsOf(StageOf(place));
    return (place == 0 ? units.embedding.weights : 0) +
           (place + 1 == places_.size() ? units.head.weights : 0);
  }

  // Bytes that the forward pass of a micro-batch leaves at a place of the stage.
  double ActivationsOf(int stage) const {
    const SlotActivations slot = ActivationsOfSlot(ShapeOfStage(job_, layout_, stage),
                                                   UnitsOfStage(job_.model(), layout_, stage));
    return static_cast<double>(slot.total);
  }

  void AddOffloadToPasses() {
    const bool moves = IsElsewhere(job_, job_.offload().activations());
    for (size_t i = 0; i < places_.size(); ++i) {
      Place& place = places_[i];
      const double of_layers = place.time.weights - WeightsBesideLayers(i);
      PassSeconds passes = PassesOf(place, offload_->Fetch(of_layers / shards_));
      const int stage = static_cast<int>(i) % stages_;
      const double activations = moves ? offload_->Activations(ActivationsOf(stage)) : 0;
      passes.forward += activations;
      passes.backward += activations;
      place.offload =
          passes.forward + passes.backward - place.passes.forward - place.passes.backward;
      place.passes = passes;
    }
  }

  // Seconds of a micro-batch at a place beyond its passes, where weights or gradients are divided.
  // `fetch`: to read the weights of the shard before they are gathered.
  PassSeconds PassesOf(const Place& place, double fetch = 0) const {
    const double forward = place.time.forward.total();
    const double backward = place.time.recompute.total() + place.time.backward.total();
    const bool is_divided = data_ > 1 && layout_.zero_stage() >= 2;
    if (!is_divided && fetch == 0) return {forward, backward};
    const double weights = place.time.weights;
    const double gathers = std::max(1, place.layers * recipe_.gathers_per_layer);
    const CollectiveTime& collective = place.hardware->collective;
    double gather = fetch;
    if (layout_.zero_stage() >= 3 && shards_ > 1) {
      gather += collective.AllGather(ShardGroup(), ValueBytesOf(weights), gathers);
    }
    double again = gather;
    if (const int kept_over = layout_.reshard_after_forward(); kept_over > 0) {
      // The first gather of a step is whole; later ones are among the neighbours that keep it.
      again = collective.AllGather({kept_over, tensor_}, ValueBytesOf(weights), gathers);
      gather = (gather + (micro_batches_ - 1) * again) / micro_batches_;
    }
    double reduce = collective.ReduceScatter(ShardGroup(), GradientBytesOf(weights), gathers);
    if (!recipe_.sums_each_micro_batch) reduce /= micro_batches_;
    // The first gather and the last sum of a pass have nothing beside them.
    const double edge = 1.0 / std::max(1, place.layers * chunks_);
    PassSeconds passes;
    passes.forward = recipe_.overlaps_weights ? Beside(forward, gather * (1 - edge)) + gather * edge
                                              : forward + gather;
    passes.backward = recipe_.overlaps_gradients
                          ? Beside(backward, (again + reduce) * (1 - edge)) + reduce * edge
                          : backward + again + reduce;
    return passes;
  }

  void SetTransfers(PipelineCost* pipeline) const {
    if (basis_.groups == 1) {
      pipeline->transfer = TransferSeconds(HardwareOf(0), stages_);
      return;
    }
    const int ranks = tensor_ * data_;
    for (int stage = 0; stage < stages_; ++stage) {
      const bool is_last = stage + 1 == stages_;
      const size_t part = is_last ? PartOfStages(basis_, layout_, 0, stages_)
                                  : PartOfStages(basis_, layout_, stage, 2);
      const Hardware& hardware = basis_.hardware[part];
      pipeline->transfers.push_back(
          TransferSeconds(hardware, is_last ? stages_ : std::max(2, hardware.devices / ranks)));
    }
  }

  // A message between two of so many stages on this hardware.
  double TransferSeconds(const Hardware& hardware, int stages) const {
    if (stages_ == 1) return 0;
    double rows = 0;
    for (const model::Stream& stream : architecture_.streams) {
      rows += static_cast<double>(layout_.micro_batch() * stream.tokens) /
              std::max(1, layout_.context_parallel());
    }
    double bytes = rows * static_cast<double>(architecture_.hidden) * ValueBytes();
    const int stride = tensor_ * data_;
    double gather = 0;
    if (layout_.sequence_parallel()) {
      bytes /= tensor_;
    } else if (recipe_.scatters_transfers && tensor_ > 1) {
      gather = hardware.collective.AllGather({tensor_, 1}, bytes);
      bytes /= tensor_;
    }
    return hardware.collective.Transfer(stride, stages, bytes) + gather;
  }

  void AddPasses(StepCost* cost) {
    PipelineCost pipeline;
    std::vector<double> busy(static_cast<size_t>(stages_), 0);
    std::vector<double> plain(static_cast<size_t>(stages_), 0);
    for (size_t i = 0; i < places_.size(); ++i) {
      pipeline.places.push_back(places_[i].passes);
      const UnitTime& time = places_[i].time;
      const size_t stage = i % static_cast<size_t>(stages_);
      busy[stage] += micro_batches_ * (pipeline.places[i].forward + pipeline.places[i].backward);
      plain[stage] +=
          micro_batches_ * (time.forward.total() + time.recompute.total() + time.backward.total());
    }
    pipeline.overlaps_transfers = recipe_.overlaps_transfers;
    if (cluster_.shared_devices > 0) {
      pipeline.sharing = {
          .devices = cluster_.shared_devices,
          .ranks_of_stage = tensor_ * data_,
          .ranks_of_node = std::min(cluster_.devices_per_node, tensor_ * stages_ * data_)};
    }
    const ScheduleShape shape = ShapeOfSchedule(layout_);
    const size_t busiest =
        static_cast<size_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
    // What is left out of a walk is known to some 0.1 %; no pipeline is faster than its stages.
    const double played =
        std::max(LeastOfPasses(PipelineCost()), walks_->Play(shape, pipeline).seconds);
    // On shared devices the busiest stage is as slow as others allow that have something to do,
    // too.
    const double all = std::accumulate(busy.begin(), busy.end(), 0.0);
    const double turns = std::max(1.0, all / stages_ * Turns() / busy[busiest]);
    const double still = std::max(turns * busy[busiest], played);
    SetTransfers(&pipeline);
    ends_ = walks_->Play(shape, pipeline);
    ends_.stage_ends.front() = std::max(ends_.stage_ends.front(), LeastOfPasses(pipeline));
    ends_.seconds = std::max({still, ends_.seconds, ends_.stage_ends.front()});
    for (size_t i = busiest; i < places_.size(); i += static_cast<size_t>(stages_)) {
      const UnitTime& time = places_[i].time;
      const double times = micro_batches_ * turns;
      cost->compute += times * (time.forward.compute() + time.backward.compute());
      cost->tensor_communication +=
          times * (time.forward.communication + time.backward.communication);
      cost->recompute += times * time.recompute.total();
    }
    // What gathers and sums of every micro-batch add to the passes.
    for (size_t i = busiest; i < places_.size(); i += static_cast<size_t>(stages_)) {
      cost->offload += turns * micro_batches_ * places_[i].offload;
    }
    cost->data_exposed = turns * (busy[busiest] - plain[busiest]) - cost->offload;
    cost->pipeline_bubble = still - turns * busy[busiest];
    cost->pipeline_transfers = ends_.seconds - still;
    // The last stage has nothing else to do while the others finish.
    const double longer = std::max(0.0, ends_.stage_ends.back() + deferred_ - ends_.seconds);
    ends_.seconds += longer;
    cost->compute += longer;
    cost->seconds = ends_.seconds;
  }

  // Elements that a rank of the stage has.
  double Weights(int stage) const {
    double weights = 0;
    for (size_t i = static_cast<size_t>(stage); i < places_.size();
         i += static_cast<size_t>(stages_)) {
      weights += places_[i].time.weights;
    }
    // The last stage has a copy of a tied table.
    if (stages_ > 1 && stage == stages_ - 1 && architecture_.head.reads_token_table()) {
      weights += places_.front().time.weights > 0 ? TableElements() : 0;
    }
    return weights;
  }
  double TableElements() const {
    const int64_t rows = PaddedVocabulary(job_.model().vocab_size(), tensor_) / tensor_;
    return static_cast<double>(rows * architecture_.hidden);
  }

  // Sums of gradients after the passes, and gathers of the new weights before the next ones.
  void AddData(StepCost* cost) {
    double end = 0;
    for (int stage = 0; stage < stages_; ++stage) {
      end = std::max(
          end, ends_.stage_ends[static_cast<size_t>(stage)] + Turns() * ExposedOfStage(stage));
    }
    const double exposed = std::max(0.0, end - ends_.seconds) + Turns() * TiedSum();
    cost->data_exposed += exposed;
    cost->seconds += exposed;
  }

  // The first and the last stage add the gradients of a tied table.
  double TiedSum() const {
    if (stages_ == 1 || !architecture_.head.reads_token_table()) return 0;
    const size_t part = PartOfStages(basis_, layout_, 0, stages_);
    return basis_.hardware[part].collective.AllReduce({2, tensor_ * data_ * (stages_ - 1)},
                                                      TableElements() * recipe_.gradient_bytes);
  }

  double ExposedOfStage(int stage) const {
    if (data_ == 1) return 0;
    const double weights = Weights(stage);
    int layers = 0;
    PassSeconds pass;
    for (size_t i = static_cast<size_t>(stage); i < places_.size();
         i += static_cast<size_t>(stages_)) {
      layers += places_[i].layers;
      pass.forward += places_[i].passes.forward;
      pass.backward += places_[i].passes.backward;
    }
    const int ends = (stage == 0 ? 1 : 0) + (stage == stages_ - 1 ? 1 : 0);
    const double messages = Buckets(weights, layers + ends);
    const double of_gathers = recipe_.gathers_each_tensor ? kTensorsOfLayer * layers : messages;
    const double bytes = GradientBytesOf(weights);
    const CollectiveTime& collective = HardwareOf(static_cast<size_t>(stage)).collective;
    double sum = 0;
    double gather = 0;
    if (layout_.zero_stage() == 0) {
      sum = collective.AllReduce({data_, tensor_}, bytes, messages);
    } else {
      if (layout_.zero_stage() == 1) {
        sum = collective.ReduceScatter(ShardGroup(), bytes, messages);
      }
      if (layout_.zero_stage() <= 2) {
        gather = collective.AllGather(ShardGroup(), ValueBytesOf(weights), of_gathers);
      }
      sum += collective.AllReduce(ReplicaGroup(), bytes / shards_, messages);
    }
    // Sums hide behind the last backward pass, gathers behind the first forward pass. Interleaved,
    // a chunk's are free to move while the last group of micro-batches is in the other chunks.
    const double passes = chunks_ > 1 ? stages_ : 1;
    pass.forward *= passes;
    pass.backward *= passes;
    const double edge = 1.0 / std::max(1, layers);
    const double of_sum = recipe_.overlaps_gradients
                              ? Beside(pass.backward, sum * (1 - edge)) - pass.backward + sum * edge
                              : sum;
    const double of_gather = recipe_.overlaps_update ? Beside(pass.forward, gather * (1 - edge)) -
                                                           pass.forward + gather * edge
                                                     : gather;
    return of_sum + of_gather;
  }

  // Seconds of the update of so many elements on the devices of a stage.
  double UpdateSeconds(double elements, size_t stage) const {
    const double bytes = elements * (kUpdateBytes + (1 + kNormPasses) * recipe_.gradient_bytes);
    return HardwareOf(stage).op.Elementwise(bytes, 10, KernelKind::kUpdate);
  }

  // `beside`: seconds of the step before it.
  void AddOptimizer(double beside, StepCost* cost) {
    double longest = UpdateSeconds(state_.elements, 0);
    for (size_t stage = 0; stage < hardware_.size() && hardware_.size() > 1; ++stage) {
      const double weights = Weights(static_cast<int>(stage));
      const double own = layout_.zero_stage() >= 1 ? weights / shards_ : weights;
      longest = std::max(stage == 0 ? 0 : longest, UpdateSeconds(own, stage));
    }
    cost->optimizer = Turns() * longest;
    const double most = std::max(WeightsBesideLayers(0), WeightsBesideLayers(places_.size() - 1));
    update_offload_ = offload_->Update(cost->optimizer, beside) + offload_->Fetch(most / shards_);
    cost->offload += update_offload_;
    cost->seconds += cost->optimizer + update_offload_;
    cost->other = constants_.step_seconds;
    cost->seconds += cost->other;
  }

  void Finish(StepCost* cost) const {
    const double tokens = static_cast<double>(layout_.micro_batch()) * micro_batches_ *
                          std::max(1, layout_.data()) *
                          static_cast<double>(architecture_.tokens_of_sequence());
    const double devices = static_cast<double>(tensor_) * stages_ * data_;
    const double flops = basis_.flops_of_token;
    cost->tokens_per_second = tokens / cost->seconds;
    cost->model_flops = flops * cost->tokens_per_second / devices;
    cost->hardware_flops = (flops + AgainPerToken()) * cost->tokens_per_second / devices;
  }

  // Operations that are computed again for each token.
  double AgainPerToken() const {
    const double products = basis_.products_of_token;
    const double attention = basis_.attention_of_token;
    if (layout_.recompute() == v1::RECOMPUTE_FULL) return products + attention;
    if (layout_.recompute() != v1::RECOMPUTE_SELECTIVE) return 0;
    switch (recipe_.selective) {
      case Selective::kAttentionCore:
        return attention;
      case Selective::kNormsAndActivations:
        return 0;
      case Selective::kEveryOtherProduct:
        return products / 2;
    }
    return 0;
  }

  const Basis& basis_;
  const v1::JobSpec& job_;
  const ClusterModel& cluster_;
  const v1::Layout& layout_;
  const Recipe& recipe_;
  const Constants& constants_;
  PipelineWalks* const walks_;
  const model::Architecture& architecture_;
  // One of each stage, or, where all nodes are alike, of all of them.
  std::vector<const Hardware*> hardware_;
  std::vector<const UnitTimes*> units_;
  const int tensor_;
  const int stages_;
  const int chunks_;
  const int micro_batches_;
  const int data_;
  int shards_ = 1;
  double deferred_ = 0;  // seconds of the head's gradients that follow the last pass
  std::vector<int> layers_;
  std::vector<Place> places_;
  RankState state_;
  std::optional<OffloadTime> offload_;
  double update_offload_ = 0;  // seconds that it adds to the optimizer
  PipelineTime ends_;
};

// Layers of places in order, so that the slowest place is as fast as can be.
class LayerBalance {
 public:
  LayerBalance(const Basis& basis, UnitStore* units, const v1::Layout& layout)
      : kinds_(basis.architecture.layers),
        places_(static_cast<size_t>(std::max(1, layout.pipeline()) *
                                    std::max(1, layout.virtual_pipeline()))) {
    const auto stages = static_cast<size_t>(std::max(1, layout.pipeline()));
    for (size_t place = 0; place < places_; ++place) {
      const size_t part = PartOfStages(basis, layout, static_cast<int>(place % stages), 1);
      units_.push_back(&units->Of(basis, layout, part));
    }
  }

  // Empty: there are fewer layers than places.
  std::vector<int> Get() const {
    std::vector<int> best;
    double low = 0;
    double high = 0;
    for (const UnitTimes* units : units_) high = std::max(high, AllOf(*units));
    constexpr int kHalvings = 40;
    for (int i = 0; i < kHalvings; ++i) {
      std::vector<int> tried;
      const double middle = (low + high) / 2;
      if (Divide(middle, &tried)) {
        best = tried;
        high = middle;
      } else {
        low = middle;
      }
    }
    return best;
  }

 private:
  static double Seconds(const UnitTime& time) {
    return time.forward.total() + time.recompute.total() + time.backward.total();
  }
  double AllOf(const UnitTimes& units) const {
    double all = Seconds(units.embedding) + Seconds(units.head);
    for (const int kind : kinds_) all += Seconds(units.kinds[static_cast<size_t>(kind)]);
    return all;
  }

  // How many layers each place takes, at least one, if none may take longer than `most`.
  bool Divide(double most, std::vector<int>* result) const {
    result->assign(places_, 0);
    size_t layer = 0;
    for (size_t place = 0; place < places_; ++place) {
      const UnitTimes& units = *units_[place];
      double sum = place == 0 ? Seconds(units.embedding) : 0;
      if (place + 1 == places_) sum += Seconds(units.head);
      const size_t left_for_others = places_ - place - 1;
      while (layer + left_for_others < kinds_.size()) {
        sum += Seconds(units.kinds[static_cast<size_t>(kinds_[layer])]);
        if (sum > most) break;
        ++layer;
        ++(*result)[place];
      }
      if ((*result)[place] == 0) return false;
    }
    return layer == kinds_.size();
  }

  const std::vector<int> kinds_;  // by layer
  const size_t places_;
  std::vector<const UnitTimes*> units_;  // by place
};

std::vector<int> BalancedLayersOf(const Basis& basis, UnitStore* units, const v1::Layout& layout) {
  const std::vector<int> balanced = LayerBalance(basis, units, layout).Get();
  if (!balanced.empty()) return balanced;
  return LayersOfPlaces(static_cast<int>(basis.architecture.layers.size()), layout);
}

}  // namespace

std::vector<int> BalancedLayers(const StepInput& input) {
  const Basis basis(input.job, input.cluster, input.recipe, input.constants);
  UnitStore units;
  return BalancedLayersOf(basis, &units, input.layout);
}

struct StepCosts::Common {
  const Basis basis;
  UnitStore units;
  PipelineWalks walks;
};

StepCosts::StepCosts(const v1::JobSpec& job, const ClusterModel& cluster, const Recipe& recipe,
                     const Constants& constants)
    : common_(new Common{Basis(job, cluster, recipe, constants), {}, {}}) {}
StepCosts::~StepCosts() = default;

double StepCosts::Least(const v1::Layout& layout) {
  return Step(common_->basis, &common_->units, layout, {}, nullptr).Least();
}

StepCost StepCosts::Of(const v1::Layout& layout) {
  return Step(common_->basis, &common_->units, layout, {}, &common_->walks).Get();
}

std::vector<int> StepCosts::Balanced(const v1::Layout& layout) {
  return BalancedLayersOf(common_->basis, &common_->units, layout);
}

int64_t StepCosts::played() const { return common_->walks.played(); }

StepCost CostOfStep(const StepInput& input, PipelineWalks* walks) {
  const Basis basis(input.job, input.cluster, input.recipe, input.constants);
  UnitStore units;
  return Step(basis, &units, input.layout, input.layers, walks).Get();
}

StepTiming TimingOfStep(const StepInput& input, PipelineWalks* walks) {
  const Basis basis(input.job, input.cluster, input.recipe, input.constants);
  UnitStore units;
  return Step(basis, &units, input.layout, input.layers, walks).Timing();
}

StepCost CostOfStep(const v1::JobSpec& job, const v1::Layout& layout, const ClusterModel& cluster,
                    const Recipe& recipe) {
  PipelineWalks walks;
  return CostOfStep({.job = job, .layout = layout, .cluster = cluster, .recipe = recipe}, &walks);
}

}  // namespace tercio::plan::cost
