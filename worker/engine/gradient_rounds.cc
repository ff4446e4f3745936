#include "worker/engine/gradient_rounds.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "plan/lanes.h"
#include "plan/tensor_policy.h"

namespace tercio::engine {

GradientRounds::GradientRounds(const v1::JobSpec& spec, const v1::RankPlan& plan,
                               const plan::StageShape& shape, const plan::StageTensors& tensors,
                               const plan::RankShards& shards, blocks::GradientLanes& lanes,
                               PackedExchange& packed, Arena& arena,
                               const Communicators& communicators, PipelineLinks& links,
                               Streams streams, StepTrace& trace, progress::Whereabouts& where)
    : training_(spec.training()),
      plan_(plan),
      tensors_(tensors),
      shards_(shards),
      sequence_parallel_(shape.sequence_parallel),
      lanes_(lanes),
      packed_(packed),
      rounds_(plan::RoundsOf(plan.layout(), plan.lanes())),
      communicators_(communicators),
      links_(links),
      streams_(streams),
      trace_(trace),
      where_(where),
      tied_(plan, tensors, shards, plan::IsTied(spec.model()), arena.Floats("tied_gradient")),
      shared_(spec, plan, tensors, shards, arena.Floats("shared_gradients")),
      data_scratch_(arena.Floats("data_scratch")),
      tensor_scratch_(arena.Floats("tensor_scratch")) {
  squares_.reserve(tensors.tensors.size());
  if (!shards.divides_gradients) {
    sums_.push_back(lanes.result());
    return;
  }
  for (int level = 0; level < plan::SumLevels(spec, plan.layout()); ++level) {
    sums_.push_back(arena.Floats(absl::StrCat("gradients.sums.", level)));
  }
}

void GradientRounds::BeginBackward(int micro_batch) {
  if (!shards_.divides_gradients) return;
  if (lanes_.kind() == blocks::GradientLanes::Kind::kBuckets) {
    Waited([this] { streams_.compute.Wait(*streams_.summed[lanes_.place()]); });
  } else if (micro_batch > 0 && micro_batch % MicroBatchesPerRound() == 0) {
    // A round's gradients overwrite those of the round before.
    Waited([this] { streams_.compute.Join(streams_.communication); });
  }
}

void GradientRounds::Waited(absl::FunctionRef<void()> wait) {
  // The last sums of a step may be those over replicas.
  const collective::Communicator* const replicas = communicators_.replicas();
  const progress::Whereabouts::Join join(where_, communicators_.sums().group(),
                                         replicas == nullptr ? "" : replicas->group());
  const double start = StepTrace::Now();
  wait();
  where_.exchanges().AddWaited(progress::ExchangeClock::kReduce, StepTrace::Now() - start);
}

void GradientRounds::Reduce(int layer, int round) {
  // The embedding is the last of a pass, so the head's gradient is there, too.
  if (layer < 0 && tied_.comes_first()) tied_.Join(sums_.front(), links_, streams_.compute);
  device::Stream& stream = streams_.communication;
  const device::Range range(stream, "reduce", layer);
  streams_.compute.Record(streams_.bucket_ready);
  stream.Wait(streams_.bucket_ready);
  const bool timed = trace_.on() || stream.RunsOnHost();
  // Both callbacks run when the stream reaches them, which is after this function has returned.
  auto start = std::make_shared<double>(0);
  if (timed)
    stream.RunOnHost([start] {
      *start = StepTrace::Now();
      return absl::OkStatus();
    });
  shards_.divided() ? ReduceUnits(layer, round) : ReduceBuckets(layer);
  if (timed)
    stream.RunOnHost([this, start, layer, traced = trace_.on()] {
      const double seconds = StepTrace::Now() - *start;
      where_.exchanges().AddTaken(progress::ExchangeClock::kReduce, seconds);
      if (traced) trace_.Add({absl::StrCat("reduce layer ", layer), 0, 0, *start, seconds, true});
      return absl::OkStatus();
    });
  if (lanes_.kind() != blocks::GradientLanes::Kind::kBuckets) return;
  streams_.communication.Record(*streams_.summed[lanes_.place()]);
  lanes_.NextPlace();
  Waited([this] { streams_.compute.Wait(*streams_.summed[lanes_.place()]); });
}

void GradientRounds::ReduceBuckets(int layer) {
  for (const v1::BucketRange& bucket : plan_.stage().buckets()) {
    if (bucket.ready_after_layer() != layer) continue;
    communicators_.data().AllReduceSum(streams_.communication, sums_.front() + bucket.begin(),
                                       bucket.end() - bucket.begin(), collective::SumOrder::kTree,
                                       data_scratch_);
  }
}

void GradientRounds::ReduceUnits(int layer, int round) {
  for (size_t i = 0; i < shards_.units.size(); ++i) {
    const plan::StateUnit& unit = shards_.units[i];
    if (unit.frozen || unit.layer != layer || tied_.IsJoinedFirst(unit.gradient_offset)) continue;
    float* gradients = sums_.front() + unit.gradient_offset;
    if (shards_.divides_gradients) {
      const blocks::Gradients bucket = lanes_.At(lanes_.BucketOf(unit.gradient_offset));
      gradients = bucket.data + (unit.gradient_offset - bucket.first);
    }
    if (packed_.packs_gradients()) {
      packed_.Reduce(streams_.communication, i, round, gradients);
    } else {
      communicators_.sums().SetPurpose(
          {"sum", unit.name.c_str(), shards_.divides_gradients ? round : -1});
      communicators_.sums().ReduceScatterParts(streams_.communication, gradients, unit.bounds,
                                               collective::SumOrder::kTree, data_scratch_);
    }
    if (shards_.divides_gradients) AddToSums(unit, gradients, round);
    if (round + 1 == rounds_) SumOverReplicas(unit);
  }
}

// Counts rounds, a power of two, as lanes are counted (plan/lanes.h): the data ranks' lanes of a
// round are neighbours in the tree, so that this is the tree of all lanes. With one level rounds
// are added one after the other.
void GradientRounds::AddToSums(const plan::StateUnit& unit, const float* gradients, int round) {
  const plan::ShardRange own = shards_.RangeOf(unit, communicators_.shard().rank());
  if (own.elements == 0) return;
  streams_.communication.RunOperations([=, this](kernels::Ops& ops) {
    if (sums_.size() == 1 && round > 0) {
      return ops.Add(sums_.front() + own.sum_offset, gradients + own.begin, own.elements);
    }
    auto level = static_cast<size_t>(plan::LevelOfLane(round));
    ops.Copy(sums_[level] + own.sum_offset, gradients + own.begin, own.elements);
    for (int merge = 0; merge < plan::MergesAfterLane(round); ++merge, --level) {
      ops.Add(sums_[level - 1] + own.sum_offset, sums_[level] + own.sum_offset, own.elements);
    }
  });
}

// Groups that divide the state are neighbours in the tree of the data ranks, so that this is its
// upper part (plan/rank_layout.cc, CheckDivision).
void GradientRounds::SumOverReplicas(const plan::StateUnit& unit) {
  collective::Communicator* const replicas = communicators_.replicas();
  const plan::ShardRange own = shards_.RangeOf(unit, communicators_.shard().rank());
  if (replicas == nullptr || own.elements == 0) return;
  replicas->AllReduceSum(streams_.communication, sums_.front() + own.sum_offset, own.elements,
                         collective::SumOrder::kTree, data_scratch_);
}

void GradientRounds::Finish() {
  Waited([this] { streams_.compute.Join(streams_.communication); });
  SumOverSequenceParts();
  if (!tied_.comes_first()) tied_.Join(sums_.front(), links_, streams_.compute);
  shared_.Join(sums_.front(), links_, streams_.compute);
  links_.WaitAll();
}

// Tensors that every tensor rank holds have only the gradient of its own rows, or heads, so far.
// Added last, so that the data degree does not change the order.
void GradientRounds::SumOverSequenceParts() {
  for (size_t i = 0; i < tensors_.tensors.size(); ++i) {
    const plan::StageTensor& entry = tensors_.tensors[i];
    if (entry.frozen) continue;
    const bool divided = sequence_parallel_ && entry.tensor.shard == plan::Shard::kWhole;
    if (!divided && !entry.tensor.partial) continue;
    // Tensor ranks have the same shard.
    const plan::ShardPart& part = shards_.own.part(i);
    communicators_.tensor().AllReduceSum(streams_.compute, sums_.front() + part.sum_offset,
                                         part.elements(), collective::SumOrder::kRanks,
                                         tensor_scratch_);
  }
}

void GradientRounds::MeasureSquares(const ExchangeVector& exchange) {
  squares_.clear();
  for (size_t i = 0; i < tensors_.tensors.size(); ++i) {
    const plan::StageTensor& entry = tensors_.tensors[i];
    // The joined gradient of a tied tensor counts once, where its first use is.
    if (entry.further_use || entry.frozen) continue;
    if (plan::PolicyOf(entry.tensor, training_).frozen) continue;
    const bool is_whole = entry.tensor.shard == plan::Shard::kWhole;
    if (is_whole && plan_.placement().tensor_index() != 0) continue;
    const auto [begin, end] = MeasuredPart(i);
    if (begin == end) continue;
    const plan::ShardPart& part = shards_.own.part(i);
    squares_.push_back({.values = sums_.front() + part.sum_offset + (begin - part.begin),
                        .count = end - begin,
                        .not_finite = exchange.NotFinite(entry.tensor.index)});
  }
  streams_.compute.ops().SumsOfSquares({.tensors = squares_.data(),
                                        .tensor_count = static_cast<int64_t>(squares_.size()),
                                        .limbs = exchange.SquareLimbs()});
}

// The elements of a tensor whose squares this rank sums: ranks that have the same sums take equal
// parts of them, in whole blocks.
std::pair<int64_t, int64_t> GradientRounds::MeasuredPart(size_t tensor) const {
  const bool divided = shards_.divided();
  const int64_t first = divided ? shards_.own.part(tensor).begin : 0;
  const int64_t elements =
      divided ? shards_.own.part(tensor).elements() : tensors_.tensors[tensor].elements;
  const int64_t blocks = (elements + kernels::kSquaresBlock - 1) / kernels::kSquaresBlock;
  const int ranks = divided ? shards_.replicas : plan_.layout().data();
  const int rank = divided ? shards_.replica : plan_.placement().data_index();
  const auto begin_of = [&](int64_t index) {
    return first + std::min(elements, blocks * index / ranks * kernels::kSquaresBlock);
  };
  return {begin_of(rank), begin_of(rank + 1)};
}

}  // namespace tercio::engine
