#include "plan/planner/cost/unit_time.h"

#include <algorithm>
#include <optional>

#include "model/layer.h"
#include "plan/lanes.h"
#include "plan/model_tensors.h"
#include "plan/precision.h"

namespace tercio::plan::cost {
namespace {

// A product's gradient of a weight is added to an fp32 sum.
constexpr double kSumBytes = 8;
// One gradient is added to another, both in fp32.
constexpr double kAdditionBytes = 12;
// Passes over an activation of the kernels that an RMS norm and a rotation consist of where no
// compiler joins them, times those of one kernel.
constexpr double kEagerNorm = 5;
constexpr double kEagerRotation = 4;

// How the gradients of a micro-batch's weights are summed.
struct Lanes {
  int64_t segments = 1;  // products that each gradient is computed by
  double additions = 0;  // of two gradients, for each micro-batch
};

Lanes LanesOf(const v1::JobSpec& job, const v1::Layout& layout) {
  const v1::TrainingSpec& training = job.training();
  const int data = std::max(1, layout.data());
  const int all = training.lanes() > 0 ? training.lanes()
                                       : LaneCount(std::max<int64_t>(1, training.global_batch()));
  const int lanes = LanesPerDataRank(all, data);
  const int micro_batches = std::max(1, layout.micro_batches());
  const int64_t of_lane =
      std::max<int64_t>(1, int64_t{layout.micro_batch()} * micro_batches / lanes);
  return {.segments = (layout.micro_batch() + of_lane - 1) / of_lane,
          .additions = static_cast<double>(lanes - 1) / micro_batches};
}

class Units {
 public:
  Units(const model::Architecture& architecture, const v1::JobSpec& job, const v1::Layout& layout,
        const ClusterModel& cluster, const Recipe& recipe, const Constants& constants)
      : architecture_(architecture),
        job_(job),
        layout_(layout),
        recipe_(recipe),
        constants_(constants),
        op_(cluster.accelerator, constants, FactorOf(job)),
        collective_(cluster, constants),
        tensor_(std::max(1, layout.tensor())),
        context_(std::max(1, layout.context_parallel())),
        drops_(job.model().dropout() > 0),
        lanes_(recipe.sums_lanes ? LanesOf(job, layout) : Lanes()) {}

  UnitTimes Get() const {
    UnitTimes times;
    for (const model::Layer& kind : architecture_.kinds) times.kinds.push_back(Layer(kind));
    times.embedding = Embedding();
    times.head = Head();
    times.head_gradient = HeadGradient();
    return times;
  }

 private:
  int64_t Rows(const model::Stream& stream) const {
    return layout_.micro_batch() * stream.tokens / context_;
  }
  int64_t LocalRows(int64_t rows) const {
    return layout_.sequence_parallel() ? rows / tensor_ : rows;
  }
  double bytes() const { return op_.value_bytes(); }
  static double D(int64_t value) { return static_cast<double>(value); }

  // What tensor ranks exchange around a part of a layer that is cut: a sum, or its two halves
  // around the rows that sequence parallelism divides.
  double Sum(int64_t rows) const {
    const Group group{tensor_, 1};
    const double size = D(rows) * D(architecture_.hidden) * bytes();
    const bool fp8 = job_.training().fp8() && recipe_.gathers_fp8;
    const double gathered = fp8 ? size / bytes() : size;
    const double seconds = layout_.sequence_parallel() ? collective_.AllGather(group, gathered) +
                                                             collective_.ReduceScatter(group, size)
                                                       : collective_.AllReduce(group, size);
    // Where products are cut into parts, all sums but the last run beside the next part.
    const double beside = 1 - 1.0 / std::max(1, layout_.tensor_overlap());
    return seconds * (1 - std::max(recipe_.tensor_overlap, beside));
  }

  // With sequence parallelism half of it is the gather of a gradient, which a product waits for.
  double ExposedPartOfGradientSums() const {
    if (!recipe_.hides_gradient_sums) return 1;
    const double exposed = layout_.sequence_parallel() ? 0.5 : 0;
    return exposed + (1 - exposed) * constants_.overlap_slowdown;
  }

  void AddProduct(int64_t rows, int64_t outputs, int64_t inputs, bool in_layer,
                  UnitTime* time) const {
    const bool fp8 = in_layer && job_.training().fp8();
    const Factor factor = fp8 ? Factor::k8 : op_.factor();
    time->forward.products += op_.Product({rows, outputs, inputs}, factor);
    time->backward.products += op_.Product({rows, inputs, outputs}, factor) +
                               WeightGradient(rows, outputs, inputs, factor);
    time->backward.elementwise +=
        op_.Elementwise(recipe_.accumulation_bytes * D(outputs) * D(inputs));
    time->backward.elementwise +=
        op_.Elementwise(lanes_.additions * kAdditionBytes * D(outputs) * D(inputs));
    if (!fp8) return;
    // Factors are read in 16 bits and written in 8, once as they are and once transposed.
    time->forward.elementwise += op_.Elementwise(recipe_.fp8_bytes * D(rows) * D(inputs));
    time->backward.elementwise += op_.Elementwise(recipe_.fp8_bytes * D(rows) * D(outputs));
  }

  double WeightGradient(int64_t rows, int64_t outputs, int64_t inputs, Factor factor) const {
    const int64_t segments = std::min(lanes_.segments, std::max<int64_t>(1, rows));
    return D(segments) * op_.Product({outputs, inputs, rows / segments, 1, kSumBytes}, factor);
  }

  // A norm of `elements` of the residual stream.
  void AddNorm(const model::NormOptions& norm, double elements, UnitTime* time) const {
    const double passes = !recipe_.fuses_elementwise && norm.rms ? kEagerNorm : 1;
    time->forward.elementwise += op_.Elementwise(2 * bytes() * elements * passes);
    // The gradients of scale and shift are summed in the pass that makes the input's.
    time->backward.elementwise += op_.Elementwise(3 * bytes() * elements * passes, 2);
  }

  // The branch's result is dropped out and added to the stream.
  void AddResidual(double elements, bool bias, UnitTime* time) const {
    const double mask = drops_ ? elements : 0;
    double forward = 3 * bytes() * elements + mask;
    double backward = 3 * bytes() * elements;  // two gradients of the stream are added
    if (drops_) backward += 2 * bytes() * elements + mask;
    if (bias) backward += bytes() * elements;
    if (!recipe_.fuses_elementwise && drops_) forward += 2 * bytes() * elements;
    time->forward.elementwise += op_.Elementwise(forward);
    time->backward.elementwise += op_.Elementwise(backward, 2);
  }

  void AddBlock(const model::MlpOptions& mlp, int64_t rows, UnitTime* time) const {
    const double elements = D(rows) * D(mlp.width / tensor_) * bytes();
    const bool fused = recipe_.fuses_elementwise;
    if (mlp.gated) {
      time->forward.elementwise +=
          op_.Elementwise((fused ? 3 : 5) * elements, 1, KernelKind::kActivation);
      time->backward.elementwise +=
          op_.Elementwise((fused ? 5 : 8) * elements, 1, KernelKind::kActivation);
    } else {
      time->forward.elementwise +=
          op_.Elementwise((fused ? 2 : 4) * elements, 1, KernelKind::kActivation);
      time->backward.elementwise +=
          op_.Elementwise((3 + (mlp.bias ? 1 : 0)) * elements, 1, KernelKind::kActivation);
    }
  }

  void AddBlock(const model::AttentionOptions& o, int64_t rows, UnitTime* time) const {
    const int64_t tokens = rows / std::max(1, layout_.micro_batch());
    AttentionSize size;
    size.sequences = layout_.micro_batch();
    size.queries = tokens;
    size.keys = tokens * context_;
    size.heads = std::max<int64_t>(1, o.heads / tensor_);
    size.key_heads = std::max<int64_t>(1, o.key_heads / tensor_);
    size.head_dim = o.head_dim;
    size.window = o.window;
    size.causal = o.causal;
    size.drops = drops_;
    const double forward = op_.AttentionForward(size, recipe_);
    const double backward = op_.AttentionBackward(size, recipe_);
    time->forward.attention += forward;
    time->backward.attention += backward;
    if (context_ > 1) AddKeys(size, forward, backward, time);
    const double queries = D(rows) * D(size.heads * o.head_dim) * bytes();
    const double keys = D(rows) * D(size.key_heads * o.head_dim) * bytes();
    if (o.rotary.has_value()) {
      const double passes = recipe_.fuses_elementwise ? 1 : kEagerRotation;
      time->forward.elementwise += op_.Elementwise(2 * passes * (queries + keys));
      time->backward.elementwise += op_.Elementwise(2 * passes * (queries + keys));
    }
    if (StoresScores(recipe_.attention)) {
      // Heads are brought together again.
      time->forward.elementwise += op_.Elementwise(2 * queries);
      time->backward.elementwise += op_.Elementwise(2 * queries + 2 * (queries + 2 * keys));
    }
  }

  void AddBlock(const model::CrossAttentionOptions& o, int64_t rows, UnitTime* time) const {
    AttentionSize size;
    size.sequences = layout_.micro_batch();
    size.queries = rows / std::max(1, layout_.micro_batch());
    size.keys = architecture_.streams.front().tokens;
    size.heads = std::max<int64_t>(1, o.heads / tensor_);
    size.key_heads = size.heads;
    size.head_dim = o.head_dim;
    size.causal = false;
    size.drops = drops_;
    time->forward.attention += op_.AttentionForward(size, recipe_);
    time->backward.attention += op_.AttentionBackward(size, recipe_);
  }

  // Context ranks pass keys and values around a ring, beside the attention of those they have.
  void AddKeys(const AttentionSize& size, double forward, double backward, UnitTime* time) const {
    const double bytes_of_all =
        2 * D(size.sequences) * D(size.keys) * D(size.key_heads * size.head_dim) * bytes();
    const double ring = collective_.AllGather({context_, tensor_}, bytes_of_all);
    const double beside = static_cast<double>(context_ - 1) / context_;
    time->forward.communication += std::max(0.0, ring - forward * beside);
    time->backward.communication += std::max(0.0, 2 * ring - backward * beside);
  }

  UnitTime Layer(const model::Layer& layer) const {
    const model::LayerDescription description =
        model::Describe(layer, architecture_.hidden, tensor_);
    const int64_t rows = Rows(architecture_.stream_of(layer));
    const double elements = D(LocalRows(rows)) * D(architecture_.hidden);
    UnitTime time;
    UnitTime cheap;  // norms and what follows the first product of a feed-forward part
    for (const model::Product& product : description.products) {
      const int64_t of = product.of_memory ? Rows(architecture_.streams.front()) : rows;
      AddProduct(of, product.outputs, product.inputs, true, &time);
      time.weights += D(product.outputs) * D(product.inputs);
    }
    const double last_product = op_.Product(
        {rows, description.products.back().outputs, description.products.back().inputs});
    double last_sum = 0;
    for (const model::Sublayer& sublayer : layer.sublayers) {
      for (const model::Branch& branch : sublayer.branches) {
        UnitTime norms;
        if (branch.norm.has_value()) AddNorm(branch.norm->options, elements, &norms);
        if (branch.result_norm.has_value()) {
          AddNorm(branch.result_norm->options, elements, &time);
        }
        const auto* mlp = std::get_if<model::MlpOptions>(&branch.block);
        if (mlp != nullptr) {
          AddBlock(*mlp, rows, &norms);
        } else {
          std::visit([&](const auto& block) { AddBlock(block, rows, &time); }, branch.block);
        }
        cheap += norms;
        AddResidual(elements, mlp != nullptr ? mlp->bias : BiasOf(branch.block), &time);
      }
      if (sublayer.sum_norm.has_value()) AddNorm(sublayer.sum_norm->options, elements, &time);
      if (tensor_ > 1) {
        last_sum = Sum(rows);
        time.forward.communication += last_sum;
        time.backward.communication += last_sum * ExposedPartOfGradientSums();
      }
    }
    time += cheap;
    SetRecompute(cheap, last_product, last_sum, &time);
    return time;
  }

  static bool BiasOf(const model::BlockOptions& block) {
    const auto* attention = std::get_if<model::AttentionOptions>(&block);
    return attention != nullptr && attention->output_bias;
  }

  // A full recomputation may leave out the layer's last product and the sum of its parts.
  void SetRecompute(const UnitTime& cheap, double last_product, double last_sum,
                    UnitTime* time) const {
    if (layout_.recompute() == v1::RECOMPUTE_FULL) {
      time->recompute = time->forward;
      if (!recipe_.recomputes_last) {
        time->recompute.products -= std::min(last_product, time->recompute.products);
        time->recompute.communication -= std::min(last_sum, time->recompute.communication);
      }
      return;
    }
    if (layout_.recompute() != v1::RECOMPUTE_SELECTIVE) return;
    switch (recipe_.selective) {
      case Selective::kAttentionCore:
        // A kernel that keeps no scores computes them again by itself.
        if (StoresScores(recipe_.attention)) {
          time->recompute.attention = time->forward.attention;
        }
        break;
      case Selective::kNormsAndActivations:
        time->recompute.elementwise = cheap.forward.elementwise;
        break;
      case Selective::kEveryOtherProduct:
        time->recompute.products = time->forward.products / 2;
        time->recompute.elementwise = time->forward.elementwise;
        time->recompute.communication = time->forward.communication / 2;
        break;
    }
  }

  UnitTime Embedding() const {
    UnitTime time;
    int64_t rows = 0;
    for (const model::Stream& stream : architecture_.streams) rows += Rows(stream);
    const double elements = D(rows) * D(architecture_.hidden);
    const double local = D(LocalRows(rows)) * D(architecture_.hidden);
    time.weights =
        D(PaddedVocabulary(job_.model().vocab_size(), tensor_) / tensor_) * D(architecture_.hidden);
    if (architecture_.embedding.positions > 0) {
      time.weights += D(architecture_.embedding.positions) * D(architecture_.hidden);
    }
    // Rows are read from the tables and added; their gradients are added to the tables' in fp32.
    time.forward.elementwise = op_.Elementwise(3 * bytes() * elements, 3);
    time.backward.elementwise = op_.Elementwise((bytes() + kSumBytes) * elements, 3);
    if (drops_) {
      time.forward.elementwise += op_.Elementwise((2 * bytes() + 1) * local);
      time.backward.elementwise += op_.Elementwise((2 * bytes() + 1) * local);
    }
    if (tensor_ > 1) {
      const Group group{tensor_, 1};
      const double size = elements * bytes();
      time.forward.communication = layout_.sequence_parallel()
                                       ? collective_.ReduceScatter(group, size)
                                       : collective_.AllReduce(group, size);
      if (layout_.sequence_parallel()) {
        time.backward.communication = collective_.AllGather(group, size);
      }
    }
    return time;
  }

  double HeadGradient() const {
    if (!architecture_.head.language.has_value()) return 0;
    return op_.Product({PaddedVocabulary(job_.model().vocab_size(), tensor_) / tensor_,
                        architecture_.hidden, Rows(architecture_.streams.back()), 1, kSumBytes});
  }

  UnitTime Head() const {
    UnitTime time;
    const model::Head& head = architecture_.head;
    const int64_t all = Rows(architecture_.streams.back());
    const int64_t hidden = architecture_.hidden;
    if (head.norm.has_value()) {
      AddNorm(head.norm->options, D(LocalRows(all)) * D(hidden), &time);
    }
    if (!head.predicts_tokens()) return time;
    // A masked model looks at some 15 % of its positions (Devlin et al. 2019).
    const int64_t rows = head.masked.has_value() ? std::max<int64_t>(1, all * 15 / 100) : all;
    const int64_t vocabulary = PaddedVocabulary(job_.model().vocab_size(), tensor_) / tensor_;
    AddProduct(rows, vocabulary, hidden, false, &time);
    time.weights = head.tied ? 0 : D(vocabulary) * D(hidden);
    const double logits = D(rows) * D(vocabulary);
    // In fp32: largest, difference, exponential, sum and quotient, each a pass where nothing joins
    // them (Megatron's vocabulary-parallel loss).
    const bool fused = recipe_.fuses_elementwise && recipe_.fuses_loss;
    time.forward.elementwise +=
        op_.Elementwise((fused ? 8 : 34) * logits, fused ? 2 : 8, KernelKind::kLoss);
    time.backward.elementwise += op_.Elementwise((fused ? 6 : 14) * logits, 2, KernelKind::kLoss);
    if (tensor_ > 1) {
      const Group group{tensor_, 1};
      // Three numbers of each row forward, and the gradient of what the product reads.
      time.forward.communication += 3 * collective_.AllReduce(group, D(rows) * 4);
      const double size = D(rows) * D(hidden) * bytes();
      if (layout_.sequence_parallel()) {
        time.forward.communication += collective_.AllGather(group, size);
        time.backward.communication += collective_.ReduceScatter(group, size);
      } else {
        time.backward.communication += collective_.AllReduce(group, size);
      }
    }
    return time;
  }

  const model::Architecture& architecture_;
  const v1::JobSpec& job_;
  const v1::Layout& layout_;
  const Recipe& recipe_;
  const Constants constants_;
  const OpTime op_;
  const CollectiveTime collective_;
  const int tensor_;
  const int context_;
  const bool drops_;
  const Lanes lanes_;
};

}  // namespace

Factor FactorOf(const v1::JobSpec& job) {
  if (FormatOf(job.training()) != kernels::Format::kFloat32) return Factor::k16;
  return job.training().tf32() ? Factor::kTf32 : Factor::kFp32;
}

PassTime& PassTime::operator+=(const PassTime& other) {
  products += other.products;
  attention += other.attention;
  elementwise += other.elementwise;
  communication += other.communication;
  return *this;
}

UnitTime& UnitTime::operator+=(const UnitTime& other) {
  forward += other.forward;
  backward += other.backward;
  recompute += other.recompute;
  weights += other.weights;
  return *this;
}

UnitTimes TimesOfUnits(const model::Architecture& architecture, const v1::JobSpec& job,
                       const v1::Layout& layout, const ClusterModel& cluster, const Recipe& recipe,
                       const Constants& constants) {
  return Units(architecture, job, layout, cluster, recipe, constants).Get();
}

}  // namespace tercio::plan::cost
