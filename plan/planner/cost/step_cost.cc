#include "plan/planner/cost/step_cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "common/check.h"
#include "model/architecture.h"
#include "plan/model_tensors.h"
#include "plan/planner/cost/collective_time.h"
#include "plan/planner/cost/op_time.h"
#include "plan/planner/cost/unit_time.h"
#include "plan/precision.h"
#include "plan/stage_layers.h"

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

const Constants& ConstantsOf(const StepInput& input) {
  return input.cluster.constants.has_value() ? *input.cluster.constants : input.constants;
}

// What one place of the pipeline does with a micro-batch.
struct Place {
  UnitTime time;
  int layers = 0;
  PassSeconds passes;  // with what gathers and sums of divided state add
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
        collective(of_cluster, constants),
        op(of_cluster.accelerator, constants, FactorOf(of_job)),
        flops_of_token(FlopsPerToken(of_job.model(), AttentionCount::kWhole)),
        products_of_token(2 * model::WeightsInProducts(architecture)),
        attention_of_token(4 *
                           model::ElementsTimesKeys(architecture, model::AttentionCount::kWhole)) {}

  const v1::JobSpec& job;
  const ClusterModel& cluster;
  const Recipe& recipe;
  const Constants constants;
  const model::Architecture architecture;
  const CollectiveTime collective;
  const OpTime op;
  const double flops_of_token;  // of the model, forward and backward
  // Forward, in layers: of products with weights, and of attention.
  const double products_of_token;
  const double attention_of_token;
};

UnitTimes UnitsOf(const Basis& basis, const v1::Layout& layout) {
  return TimesOfUnits(basis.architecture, basis.job, layout, basis.cluster, basis.recipe,
                      basis.constants);
}

class Step {
 public:
  // `layers`: StepInput. All arguments must outlive it.
  Step(const Basis& basis, const UnitTimes& units, const v1::Layout& layout,
       const std::vector<int>& layers, PipelineWalks* walks)
      : basis_(basis),
        units_(units),
        job_(basis.job),
        cluster_(basis.cluster),
        layout_(layout),
        recipe_(basis.recipe),
        constants_(basis.constants),
        walks_(walks),
        architecture_(basis.architecture),
        collective_(basis.collective),
        op_(basis.op),
        tensor_(std::max(1, layout.tensor())),
        stages_(std::max(1, layout.pipeline())),
        chunks_(std::max(1, layout.virtual_pipeline())),
        micro_batches_(std::max(1, layout.micro_batches())),
        data_(std::max(1, layout.data()) * std::max(1, layout.context_parallel())) {
    shards_ = layout.shard() > 0 ? std::min(data_, layout.shard()) : data_;
    const int all = static_cast<int>(architecture_.layers.size());
    layers_ = layers.empty() ? LayersOfPlaces(all, layout_) : layers;
    TERCIO_CHECK_EQ(layers_.size(), static_cast<size_t>(stages_ * chunks_));
    FillPlaces();
  }

  // The first stage is the last one to be done with its passes; what other stages exchange after
  // theirs may take longer.
  double Least() {
    StepCost rest;
    AddOptimizer(&rest);
    return LeastOfPasses(TransferSeconds()) + ExposedOfStage(0) + TiedSum() + rest.seconds;
  }

  StepCost Get() {
    StepCost cost;
    AddPasses(&cost);
    AddData(&cost);
    AddOptimizer(&cost);
    Finish(&cost);
    return cost;
  }

  StepTiming Timing() {
    StepTiming timing;
    timing.cost = Get();
    timing.shape = ShapeOfSchedule(layout_);
    timing.pipeline.transfer = TransferSeconds();
    timing.pipeline.overlaps_transfers = recipe_.overlaps_transfers;
    for (const Place& place : places_) {
      timing.pipeline.places.push_back(PassesOf(place));
      timing.recompute.push_back(place.time.recompute.total());
    }
    timing.head_gradient = deferred_;
    for (int stage = 0; stage < stages_; ++stage) {
      timing.exchange.push_back(ExposedOfStage(stage));
    }
    timing.tied_table = TiedSum();
    return timing;
  }

 private:
  void FillPlaces() {
    const auto kind_of = [&](size_t layer) {
      return static_cast<size_t>(architecture_.layers[layer]);
    };
    size_t layer = 0;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const auto layers = static_cast<size_t>(layers_[i]);
      // Places in the middle are mostly like the one before.
      bool is_same = i > 1 && i + 1 < layers_.size() && layers_[i] == layers_[i - 1];
      for (size_t j = layer; is_same && j < layer + layers; ++j) {
        is_same = kind_of(j) == kind_of(j - layers);
      }
      if (is_same) {
        places_.push_back(places_.back());
        layer += layers;
        continue;
      }
      Place place;
      place.layers = layers_[i];
      if (i == 0) place.time += units_.embedding;
      for (size_t j = 0; j < layers; ++j, ++layer) place.time += units_.kinds[kind_of(layer)];
      if (i + 1 == layers_.size()) place.time += units_.head;
      place.passes = PassesOf(place);
      places_.push_back(place);
    }
    const int deferred =
        stages_ > 1 ? std::min(micro_batches_, recipe_.deferred_head_gradients) : 0;
    deferred_ = deferred * units_.head_gradient;
    if (deferred == 0) return;
    places_.back().time.backward.products -= deferred_ / micro_batches_;
    places_.back().passes = PassesOf(places_.back());
  }

  // No stage is faster than its passes with what has to happen before its first one and behind its
  // last one.
  double LeastOfPasses(double transfer) const {
    double least = 0;
    double before = 0;
    for (size_t stage = 0; stage < static_cast<size_t>(stages_); ++stage) {
      least = std::max(least, before + BusyOf(stage));
      const PassSeconds& first = places_[stage].passes;
      before += first.forward + first.backward + 2 * transfer;
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
  double ValueBytes() const { return op_.value_bytes(); }
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

  // Seconds of a micro-batch at a place beyond its passes, where weights or gradients are divided.
  PassSeconds PassesOf(const Place& place) const {
    const double forward = place.time.forward.total();
    const double backward = place.time.recompute.total() + place.time.backward.total();
    if (data_ == 1 || layout_.zero_stage() < 2) return {forward, backward};
    const double weights = place.time.weights;
    const double gathers = std::max(1, place.layers * recipe_.gathers_per_layer);
    double gather = 0;
    double again = 0;
    if (layout_.zero_stage() >= 3 && shards_ > 1) {
      gather = collective_.AllGather(ShardGroup(), ValueBytesOf(weights), gathers);
      again = gather;
    }
    if (const int kept_over = layout_.reshard_after_forward(); kept_over > 0) {
      // The first gather of a step is whole; later ones are among the neighbours that keep it.
      again = collective_.AllGather({kept_over, tensor_}, ValueBytesOf(weights), gathers);
      gather = (gather + (micro_batches_ - 1) * again) / micro_batches_;
    }
    double reduce = collective_.ReduceScatter(ShardGroup(), GradientBytesOf(weights), gathers);
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

  double TransferSeconds() const {
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
      gather = collective_.AllGather({tensor_, 1}, bytes);
      bytes /= tensor_;
    }
    return collective_.Transfer(stride, stages_, bytes) + gather;
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
    const double played = std::max(LeastOfPasses(0), walks_->Play(shape, pipeline).seconds);
    // On shared devices the busiest stage is as slow as others allow that have something to do,
    // too.
    const double all = std::accumulate(busy.begin(), busy.end(), 0.0);
    const double turns = std::max(1.0, all / stages_ * Turns() / busy[busiest]);
    const double still = std::max(turns * busy[busiest], played);
    pipeline.transfer = TransferSeconds();
    ends_ = walks_->Play(shape, pipeline);
    ends_.stage_ends.front() = std::max(ends_.stage_ends.front(), LeastOfPasses(pipeline.transfer));
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
    cost->data_exposed = turns * (busy[busiest] - plain[busiest]);
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
    return collective_.AllReduce({2, tensor_ * data_ * (stages_ - 1)},
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
    double sum = 0;
    double gather = 0;
    if (layout_.zero_stage() == 0) {
      sum = collective_.AllReduce({data_, tensor_}, bytes, messages);
    } else {
      if (layout_.zero_stage() == 1) {
        sum = collective_.ReduceScatter(ShardGroup(), bytes, messages);
      }
      if (layout_.zero_stage() <= 2) {
        gather = collective_.AllGather(ShardGroup(), ValueBytesOf(weights), of_gathers);
      }
      sum += collective_.AllReduce(ReplicaGroup(), bytes / shards_, messages);
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

  void AddOptimizer(StepCost* cost) {
    double most = 0;
    for (int stage = 0; stage < stages_; ++stage) most = std::max(most, Weights(stage));
    const double own = layout_.zero_stage() >= 1 ? most / shards_ : most;
    const double bytes = own * (kUpdateBytes + (1 + kNormPasses) * recipe_.gradient_bytes);
    cost->optimizer = Turns() * op_.Elementwise(bytes, 10, KernelKind::kUpdate);
    cost->seconds += cost->optimizer;
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
  const UnitTimes& units_;
  const v1::JobSpec& job_;
  const ClusterModel& cluster_;
  const v1::Layout& layout_;
  const Recipe& recipe_;
  const Constants& constants_;
  PipelineWalks* const walks_;
  const model::Architecture& architecture_;
  const CollectiveTime& collective_;
  const OpTime& op_;
  const int tensor_;
  const int stages_;
  const int chunks_;
  const int micro_batches_;
  const int data_;
  int shards_ = 1;
  double deferred_ = 0;  // seconds of the head's gradients that follow the last pass
  std::vector<int> layers_;
  std::vector<Place> places_;
  PipelineTime ends_;
};

}  // namespace

std::vector<int> BalancedLayers(const StepInput& input) {
  const model::Architecture architecture = model::ArchitectureOf(input.job.model());
  const UnitTimes units = TimesOfUnits(architecture, input.job, input.layout, input.cluster,
                                       input.recipe, ConstantsOf(input));
  const auto seconds = [](const UnitTime& time) {
    return time.forward.total() + time.recompute.total() + time.backward.total();
  };
  const auto layers = architecture.layers.size();
  std::vector<double> time;
  for (const int kind : architecture.layers) {
    time.push_back(seconds(units.kinds[static_cast<size_t>(kind)]));
  }
  const size_t places = static_cast<size_t>(std::max(1, input.layout.pipeline()) *
                                            std::max(1, input.layout.virtual_pipeline()));
  // How many layers each place takes, in order, if none may take longer than `most`.
  const auto divide = [&](double most, std::vector<int>* result) {
    result->assign(places, 0);
    size_t layer = 0;
    for (size_t place = 0; place < places; ++place) {
      double sum = place == 0 ? seconds(units.embedding) : 0;
      if (place + 1 == places) sum += seconds(units.head);
      while (layer < layers && sum + time[layer] <= most) {
        sum += time[layer++];
        ++(*result)[place];
      }
    }
    return layer == layers;
  };
  std::vector<int> best;
  double low = 0;
  double high = seconds(units.embedding) + seconds(units.head);
  for (const double each : time) high += each;
  constexpr int kHalvings = 40;
  for (int i = 0; i < kHalvings; ++i) {
    std::vector<int> tried;
    const double middle = (low + high) / 2;
    if (divide(middle, &tried)) {
      best = tried;
      high = middle;
    } else {
      low = middle;
    }
  }
  return best.empty() ? LayersOfPlaces(static_cast<int>(layers), input.layout) : best;
}

struct StepCosts::Common {
  // The times of the units of a layout.
  const UnitTimes& Units(const v1::Layout& layout) {
    const auto [found, is_new] = units.try_emplace(
        {layout.tensor(), layout.micro_batch(), layout.context_parallel(), layout.tensor_overlap(),
         layout.sequence_parallel(), static_cast<int>(layout.recompute())});
    if (is_new) found->second = UnitsOf(basis, layout);
    return found->second;
  }

  const Basis basis;
  std::map<std::tuple<int, int, int, int, bool, int>, UnitTimes> units;
  PipelineWalks walks;
};

StepCosts::StepCosts(const v1::JobSpec& job, const ClusterModel& cluster, const Recipe& recipe,
                     const Constants& constants)
    : common_(new Common{.basis = Basis(job, cluster, recipe, constants)}) {}
StepCosts::~StepCosts() = default;

double StepCosts::Least(const v1::Layout& layout) {
  return Step(common_->basis, common_->Units(layout), layout, {}, nullptr).Least();
}

StepCost StepCosts::Of(const v1::Layout& layout) {
  return Step(common_->basis, common_->Units(layout), layout, {}, &common_->walks).Get();
}

int64_t StepCosts::played() const { return common_->walks.played(); }

StepCost CostOfStep(const StepInput& input, PipelineWalks* walks) {
  const Basis basis(input.job, input.cluster, input.recipe, input.constants);
  const UnitTimes units = UnitsOf(basis, input.layout);
  return Step(basis, units, input.layout, input.layers, walks).Get();
}

StepTiming TimingOfStep(const StepInput& input, PipelineWalks* walks) {
  const Basis basis(input.job, input.cluster, input.recipe, input.constants);
  const UnitTimes units = UnitsOf(basis, input.layout);
  return Step(basis, units, input.layout, input.layers, walks).Timing();
}

StepCost CostOfStep(const v1::JobSpec& job, const v1::Layout& layout, const ClusterModel& cluster,
                    const Recipe& recipe) {
  PipelineWalks walks;
  return CostOfStep({.job = job, .layout = layout, .cluster = cluster, .recipe = recipe}, &walks);
}

}  // namespace tercio::plan::cost
