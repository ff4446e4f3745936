#include "plan/planner/cost/step_cost.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "model/architecture.h"
#include "plan/model_tensors.h"
#include "plan/planner/cost/collective_time.h"
#include "plan/planner/cost/op_time.h"
#include "plan/planner/cost/unit_time.h"
#include "plan/precision.h"

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

// What one place of the pipeline does with a micro-batch.
struct Place {
  UnitTime time;
  int layers = 0;
};

class Step {
 public:
  Step(const StepInput& input, PipelineWalks* walks)
      : job_(input.job),
        layout_(input.layout),
        cluster_(input.cluster),
        recipe_(input.recipe),
        constants_(input.constants),
        walks_(walks),
        architecture_(model::ArchitectureOf(input.job.model())),
        collective_(input.cluster, input.constants),
        op_(input.cluster.accelerator, input.constants, FactorOf(input.job)),
        tensor_(std::max(1, input.layout.tensor())),
        stages_(std::max(1, input.layout.pipeline())),
        chunks_(std::max(1, input.layout.virtual_pipeline())),
        micro_batches_(std::max(1, input.layout.micro_batches())),
        data_(std::max(1, input.layout.data()) * std::max(1, input.layout.context_parallel())) {
    shards_ = input.layout.shard() > 0 ? std::min(data_, input.layout.shard()) : data_;
    const int layers = static_cast<int>(architecture_.layers.size());
    layers_ = input.layers.empty() ? LayersOfPlaces(layers, layout_) : input.layers;
    TERCIO_CHECK_EQ(layers_.size(), static_cast<size_t>(stages_ * chunks_));
  }

  // Messages and exchanges of data ranks that nothing hides come on top.
  double Least() {
    FillPlaces();
    const double transfer = TransferSeconds();
    double least = 0;
    double before = 0;
    for (size_t stage = 0; stage < static_cast<size_t>(stages_); ++stage) {
      double busy = 0;
      for (size_t i = stage; i < places_.size(); i += static_cast<size_t>(stages_)) {
        const PassSeconds passes = PassesOf(places_[i]);
        busy += micro_batches_ * (passes.forward + passes.backward);
      }
      least = std::max(least, before + busy);
      const PassSeconds first = PassesOf(places_[stage]);
      before += first.forward + first.backward + 2 * transfer;
    }
    StepCost rest;
    AddOptimizer(&rest);
    return least + rest.seconds;
  }

  StepCost Get() {
    FillPlaces();
    StepCost cost;
    AddPasses(&cost);
    AddData(&cost);
    AddOptimizer(&cost);
    Finish(&cost);
    return cost;
  }

 private:
  void FillPlaces() {
    const UnitTimes units =
        TimesOfUnits(architecture_, job_, layout_, cluster_, recipe_, constants_);
    size_t layer = 0;
    for (size_t i = 0; i < layers_.size(); ++i) {
      Place place;
      place.layers = layers_[i];
      if (i == 0) place.time += units.embedding;
      for (int j = 0; j < place.layers; ++j, ++layer) {
        place.time += units.kinds[static_cast<size_t>(architecture_.layers[layer])];
      }
      if (i + 1 == layers_.size()) place.time += units.head;
      places_.push_back(place);
    }
    const int deferred =
        stages_ > 1 ? std::min(micro_batches_, recipe_.deferred_head_gradients) : 0;
    deferred_ = deferred * units.head_gradient;
    places_.back().time.backward.products -= deferred_ / micro_batches_;
  }

  // Collectives that run beside compute slow it down by their share of the processors.
  double Beside(double compute, double collective) const {
    return std::max(compute + constants_.overlap_slowdown * std::min(compute, collective),
                    collective);
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
  double Buckets(double elements) const {
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
      pipeline.places.push_back(PassesOf(places_[i]));
      const UnitTime& time = places_[i].time;
      const size_t stage = i % static_cast<size_t>(stages_);
      busy[stage] += micro_batches_ * (pipeline.places[i].forward + pipeline.places[i].backward);
      plain[stage] +=
          micro_batches_ * (time.forward.total() + time.recompute.total() + time.backward.total());
    }
    pipeline.overlaps_transfers = recipe_.overlaps_transfers;
    const ScheduleShape shape = ShapeOfSchedule(layout_);
    const size_t busiest =
        static_cast<size_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
    // What is left out of a walk is known to some 0.1 %; no pipeline is faster than its stages.
    const double still = std::max(busy[busiest], walks_->Play(shape, pipeline).seconds);
    pipeline.transfer = TransferSeconds();
    ends_ = walks_->Play(shape, pipeline);
    ends_.seconds = std::max(still, ends_.seconds);
    for (size_t i = busiest; i < places_.size(); i += static_cast<size_t>(stages_)) {
      const UnitTime& time = places_[i].time;
      cost->compute += micro_batches_ * (time.forward.compute() + time.backward.compute());
      cost->tensor_communication +=
          micro_batches_ * (time.forward.communication + time.backward.communication);
      cost->recompute += micro_batches_ * time.recompute.total();
    }
    // What gathers and sums of every micro-batch add to the passes.
    cost->data_exposed = busy[busiest] - plain[busiest];
    cost->pipeline_bubble = still - busy[busiest];
    cost->pipeline_transfers = ends_.seconds - still;
    // The last stage has nothing else to do while the others finish.
    const double longer = std::max(0.0, ends_.stage_ends.back() + deferred_ - ends_.seconds);
    ends_.seconds += longer;
    cost->compute += longer;
    cost->seconds = ends_.seconds;
    pipeline_ = pipeline;
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
      end = std::max(end, ends_.stage_ends[static_cast<size_t>(stage)] + ExposedOfStage(stage));
    }
    double exposed = std::max(0.0, end - ends_.seconds);
    if (stages_ > 1 && architecture_.head.reads_token_table()) {
      exposed += collective_.AllReduce({2, tensor_ * data_ * (stages_ - 1)},
                                       TableElements() * recipe_.gradient_bytes);
    }
    cost->data_exposed += exposed;
    cost->seconds += exposed;
  }

  double ExposedOfStage(int stage) const {
    if (data_ == 1) return 0;
    const double weights = Weights(stage);
    int layers = 0;
    PassSeconds pass;
    for (size_t i = static_cast<size_t>(stage); i < places_.size();
         i += static_cast<size_t>(stages_)) {
      layers += places_[i].layers;
      pass.forward += pipeline_.places[i].forward;
      pass.backward += pipeline_.places[i].backward;
    }
    const double messages = Buckets(weights);
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
    cost->optimizer = op_.Elementwise(bytes, 10);
    cost->seconds += cost->optimizer;
    cost->other = constants_.step_seconds;
    cost->seconds += cost->other;
  }

  void Finish(StepCost* cost) const {
    const double tokens = static_cast<double>(layout_.micro_batch()) * micro_batches_ *
                          std::max(1, layout_.data()) *
                          static_cast<double>(architecture_.tokens_of_sequence());
    const double devices = static_cast<double>(tensor_) * stages_ * data_;
    const double flops = FlopsPerToken(job_.model(), AttentionCount::kWhole);
    cost->tokens_per_second = tokens / cost->seconds;
    cost->model_flops = flops * cost->tokens_per_second / devices;
    cost->hardware_flops = (flops + AgainPerToken()) * cost->tokens_per_second / devices;
  }

  // Operations that are computed again for each token.
  double AgainPerToken() const {
    const double products = 2 * model::WeightsInProducts(architecture_);
    const double attention =
        4 * model::ElementsTimesKeys(architecture_, model::AttentionCount::kWhole);
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

  const v1::JobSpec& job_;
  const v1::Layout& layout_;
  const ClusterModel& cluster_;
  const Recipe& recipe_;
  const Constants constants_;
  PipelineWalks* const walks_;
  const model::Architecture architecture_;
  const CollectiveTime collective_;
  const OpTime op_;
  const int tensor_;
  const int stages_;
  const int chunks_;
  const int micro_batches_;
  const int data_;
  int shards_ = 1;
  double deferred_ = 0;  // seconds of the head's gradients that follow the last pass
  std::vector<int> layers_;
  std::vector<Place> places_;
  PipelineCost pipeline_;
  PipelineTime ends_;
};

}  // namespace

std::vector<int> LayersOfPlaces(int layers, const v1::Layout& layout) {
  const int places = std::max(1, layout.pipeline()) * std::max(1, layout.virtual_pipeline());
  std::vector<int> result(static_cast<size_t>(places), layers / places);
  const int rest = layers % places;
  if (rest == 0) return result;
  // With fewer layers than places the first ones have one each.
  if (layers < places) {
    for (int i = 0; i < layers; ++i) result[static_cast<size_t>(i)] = 1;
    return result;
  }
  // Embedding and head count as a layer each: the ends get less, the middle what is left over.
  const int all = layers + 2;
  for (int i = 0; i < places; ++i) {
    result[static_cast<size_t>(i)] = all * (i + 1) / places - all * i / places;
  }
  result.front() -= 1;
  result.back() -= 1;
  return result;
}

std::vector<int> BalancedLayers(const StepInput& input) {
  const model::Architecture architecture = model::ArchitectureOf(input.job.model());
  const UnitTimes units = TimesOfUnits(architecture, input.job, input.layout, input.cluster,
                                       input.recipe, input.constants);
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

double LeastSecondsOfStep(const StepInput& input) { return Step(input, nullptr).Least(); }

StepCost CostOfStep(const StepInput& input, PipelineWalks* walks) {
  return Step(input, walks).Get();
}

StepCost CostOfStep(const v1::JobSpec& job, const v1::Layout& layout, const ClusterModel& cluster,
                    const Recipe& recipe) {
  PipelineWalks walks;
  return CostOfStep({.job = job, .layout = layout, .cluster = cluster, .recipe = recipe}, &walks);
}

}  // namespace tercio::plan::cost
