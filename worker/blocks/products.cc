#include "worker/blocks/products.h"

#include "common/check.h"

namespace tercio::blocks {
namespace {

using kernels::Format;
using plan::Fp8Role;

// What a chain makes last.
struct Result {
  kernels::ConstValues values;
  int64_t rows, columns;
};
Result ResultOf(const kernels::Chain& c) {
  if (c.activation) return {c.activation->g, c.activation->rows, c.activation->columns};
  if (c.gated) return {c.gated->g, c.gated->rows, c.gated->columns};
  if (c.activation_gradient) {
    return {c.activation_gradient->dh, c.activation_gradient->rows, c.activation_gradient->columns};
  }
  if (c.gated_gradient) {
    // The gradients of both halves lie side by side.
    return {c.gated_gradient->dh, c.gated_gradient->rows, 2 * c.gated_gradient->columns};
  }
  TERCIO_CHECK(c.norm.has_value());
  return {c.norm->y, c.norm->rows, c.norm->columns};
}

}  // namespace

Products::Products(const plan::StageShape& shape, const plan::StageUnits& units,
                   kernels::ConstValues parameters, int lanes, engine::Arena& arena,
                   device::Stream& stream)
    : shape_(shape),
      lanes_(lanes),
      parameters_(parameters),
      stream_(stream),
      ops_(stream.ops()),
      scaling_(shape.fp8 ? static_cast<int>(units.layers.size()) : 0) {
  const plan::Fp8Weights fp8 = plan::Fp8WeightsOf(shape, units);
  for (size_t layer = 0; layer < units.layers.size(); ++layer) {
    first_of_layer_.push_back(static_cast<ProductId>(entries_.size()));
    for (const model::Product& product : units.layer(layer).products) {
      entries_.push_back({product, {}, fp8.products[entries_.size()]});
    }
  }
  if (!shape_.fp8) return;
  // Inputs need the precision of E4M3, gradients the range of E5M2 (Micikevicius et al. 2022).
  const auto values = [&](const char* name, Format format) {
    return kernels::Values(arena.Get<std::byte>(name), format, format);
  };
  eight_bit_weights_ = arena.Get<std::byte>("parameters.fp8");
  input_ = values("fp8.input", Format::kE4m3);
  gradient_ = values("fp8.gradient", Format::kE5m2);
  turned_gradient_ = values("fp8.turned_gradient", Format::kE5m2);
  scales_ = arena.Get<kernels::Scale>("fp8.scales");
  weight_scales_ = arena.Get<kernels::Scale>("fp8.weight_scales");
  largest_ = arena.Floats("fp8.largest");
  tensor_largest_ = arena.Floats("fp8.tensor_largest");
  all_largest_ = arena.Floats("fp8.all_largest");
}

void Products::BeginPass() {
  // What is recorded from here on may run after anything else.
  if (quantized_) quantized_->Forget();
  if (!shape_.fp8) return;
  const std::vector<kernels::Scale> scales = scaling_.Scales();
  stream_.CopyFromHost(scales_, scales.data(),
                       static_cast<int64_t>(scales.size() * sizeof(scales[0])));
  // All micro-batches read the same weights, so these are rounded once.
  if (weights_changed_) QuantizeWeights();
  weights_changed_ = false;
}

void Products::BeginStep() {
  BeginPass();
  if (!shape_.fp8) return;
  // Quantize only ever raises the largest magnitude.
  stream_.SetZero(largest_, scaling_.slots() * static_cast<int64_t>(sizeof(float)));
}

void Products::EndStep(collective::Communicator& tensor, collective::Communicator& data) {
  if (!shape_.fp8) return;
  const int64_t of_tensor = int64_t{scaling_.slots()} * tensor.size();
  const int64_t all = of_tensor * data.size();
  // The two gathers together reach all ranks that hold
  // this stage, which must choose the same scales.
  tensor.AllGather(stream_, largest_, tensor_largest_, scaling_.slots());
  data.AllGather(stream_, tensor_largest_, all_largest_, of_tensor);
  learned_.resize(static_cast<size_t>(all));
  stream_.CopyToHost(learned_.data(), all_largest_, all * static_cast<int64_t>(sizeof(float)));
}

void Products::RecordStep() {
  if (shape_.fp8) scaling_.Record(learned_);
}

void Products::QuantizeWeights() {
  for (ProductId product = 0; product < static_cast<int>(entries_.size()); ++product) {
    if (!TakesFp8(product)) continue;
    const Entry& entry = At(product);
    const kernels::ConstValues weight = entry.weight.In(parameters_);
    ops_.ChooseScale({.x = weight,
                      .count = entry.declared.outputs * entry.declared.inputs,
                      .format = Format::kE4m3,
                      .scale = WeightScaleOf(product)});
    ops_.Quantize({.x = weight,
                   .plain = WeightOf(product, WeightCopy::kPlain),
                   .transposed = WeightOf(product, WeightCopy::kTransposed),
                   .scale = WeightScaleOf(product),
                   .largest = nullptr,
                   .rows = entry.declared.outputs,
                   .columns = entry.declared.inputs});
  }
}

kernels::Values Products::WeightOf(ProductId product, WeightCopy copy) const {
  const plan::Fp8Weight& at = At(product).fp8;
  return {eight_bit_weights_ + (copy == WeightCopy::kTransposed ? at.transposed : at.plain),
          Format::kE4m3, Format::kE4m3};
}

// A job's first step has no history to scale by. A fixed scale could clip a
// whole factor, or round all of it to zero, so the factor's own values decide.
void Products::ScaleUnknown(ProductId product, Fp8Role role, kernels::ConstValues x,
                            int64_t count) {
  if (Knows(product, role)) return;
  ops_.ChooseScale({.x = x,
                    .count = count,
                    .format = role == Fp8Role::kInput ? Format::kE4m3 : Format::kE5m2,
                    .scale = ScaleOf(product, role)});
}

bool Products::RepeatsItself() const {
  if (!shape_.fp8) return true;
  for (ProductId product = 0; product < static_cast<int>(entries_.size()); ++product) {
    // Other products have no scales.
    if (!TakesFp8(product)) continue;
    if (!Knows(product, Fp8Role::kInput) || !Knows(product, Fp8Role::kGradient)) return false;
  }
  return true;
}

// As it is, for forward products and input gradients, whose magnitudes count.
kernels::QuantizeArgs Products::RoundingOf(ProductId product, Fp8Role role, kernels::ConstValues x,
                                           int64_t rows, int64_t columns) {
  return {.x = x,
          .plain = role == Fp8Role::kInput ? input_ : gradient_,
          .transposed = nullptr,
          .scale = ScaleOf(product, role),
          .largest = largest_ + Slot(product, role),
          .rows = rows,
          .columns = columns};
}

kernels::ScaledMatmulArgs Products::ScaledForward(ProductId product, const kernels::MatmulArgs& a) {
  if (!Holds(rounded_input_, product, a.x, a.m)) {
    ScaleUnknown(product, Fp8Role::kInput, a.x, a.m * a.k);
    rounded_input_.reset();
    ops_.Quantize(RoundingOf(product, Fp8Role::kInput, a.x, a.m, a.k));
  }
  return {.a = input_,
          .b = WeightOf(product, WeightCopy::kPlain),
          .a_scale = ScaleOf(product, Fp8Role::kInput),
          .b_scale = WeightScaleOf(product),
          .bias = a.bias,
          .c = a.y,
          .m = a.m,
          .n = a.n,
          .k = a.k,
          .accumulate = a.accumulate,
          // Gradients sum over a wider range of magnitudes, and keep all bits.
          .fast_accumulation = true};
}

kernels::Chain Products::WithProductOf(ProductId product, const kernels::Chain& chain) {
  const kernels::MatmulArgs& a = *chain.product;
  kernels::Chain scaled = chain;
  // Sizes that are not multiples of kernels::kScaledUnit stay in the job's format.
  if (!plan::TakesFp8(shape_, a.m, a.n, a.k)) {
    scaled.product = WithWeight(product, a);
    return scaled;
  }
  scaled.product.reset();
  scaled.scaled_product = ScaledForward(product, a);
  return scaled;
}

void Products::Forward(ProductId product, const kernels::MatmulArgs& a) {
  if (!plan::TakesFp8(shape_, a.m, a.n, a.k)) return ops_.Matmul(WithWeight(product, a));
  ops_.ScaledMatmul(ScaledForward(product, a));
}

void Products::ForwardChain(ProductId product, const kernels::Chain& chain) {
  ops_.RunChain(WithProductOf(product, chain));
}

void Products::ForwardAndMakeInput(ProductId product, ProductId reader,
                                   const kernels::Chain& chain) {
  MakeInput(reader, WithProductOf(product, chain));
}

void Products::MakeInput(ProductId reader, kernels::Chain chain) {
  const Result made = ResultOf(chain);
  const model::Product& declared = At(reader).declared;
  // What is spread over tensor ranks is gathered first, and a product that is cut to run beside its
  // sum may leave some rows in bf16.
  const bool gathers = shape_.sequence_parallel && declared.summed == model::Summed::kBackward;
  const bool is_cut = shape_.tensor_overlap > 1 && declared.summed == model::Summed::kForward;
  rounded_input_.reset();
  if (!gathers && !is_cut && plan::TakesFp8(shape_, made.rows, declared.outputs, declared.inputs) &&
      Knows(reader, Fp8Role::kInput)) {
    TERCIO_CHECK_EQ(made.columns, declared.inputs);
    chain.quantize = RoundingOf(reader, Fp8Role::kInput, made.values, made.rows, made.columns);
    rounded_input_ = Rounded{reader, made.values.data(), made.rows};
  }
  ops_.RunChain(chain);
}

void Products::BeginBackward(ProductId product, kernels::ConstValues dy, int64_t rows) {
  if (!TakesFp8(product)) return;
  ScaleUnknown(product, Fp8Role::kGradient, dy, rows * At(product).declared.outputs);
}

void Products::BackwardWeight(ProductId product, const kernels::MatmulBackwardWeightArgs& a,
                              int64_t row) {
  if (!TakesFp8(product)) return ops_.MatmulBackwardWeight(a);
  // The gradient is rounded even if this lane's rows do not fit, or nothing is made of it here:
  // BackwardInput reads all of them.
  const bool takes = a.dw != nullptr && plan::TakesFp8(shape_, a.m, a.n, a.k);
  const kernels::Scale* const dy_scale = ScaleOf(product, Fp8Role::kGradient);
  if (!Holds(rounded_gradient_, product, a.dy, a.m)) {
    kernels::QuantizeArgs both = RoundingOf(product, Fp8Role::kGradient, a.dy, a.m, a.n);
    both.plain = gradient_ + row * a.n;
    both.transposed = takes ? turned_gradient_ : nullptr;
    ops_.Quantize(both);
  }
  rounded_gradient_.reset();
  if (!takes) return ops_.MatmulBackwardWeight(a);
  ScaleUnknown(product, Fp8Role::kInput, a.x, a.m * a.k);
  rounded_input_.reset();
  const kernels::Scale* const x_scale = ScaleOf(product, Fp8Role::kInput);
  ops_.Quantize({.x = a.x,
                 .plain = nullptr,
                 .transposed = input_,
                 .scale = x_scale,
                 .largest = nullptr,
                 .rows = a.m,
                 .columns = a.k});
  ops_.ScaledMatmul({.a = turned_gradient_,
                     .b = input_,
                     .a_scale = dy_scale,
                     .b_scale = x_scale,
                     .bias = nullptr,
                     .c = kernels::Values(a.dw),
                     .m = a.n,
                     .n = a.k,
                     .k = a.m,
                     .accumulate = a.accumulate});
  // Scaled products make no bias gradient. A residual without
  // a branch sums the columns of dy by the same leaves.
  if (a.dbias == nullptr) return;
  if (!a.accumulate) ops_.Zero(a.dbias, a.n);
  kernels::ResidualBackwardArgs bias{};
  bias.dout = a.dy;
  bias.dbias = a.dbias;
  bias.rows = a.m;
  bias.columns = a.n;
  bias.rows_per_leaf = a.rows_per_leaf;
  ops_.ResidualBackward(bias);
}

kernels::ScaledMatmulArgs Products::ScaledBackward(ProductId product,
                                                   const kernels::MatmulBackwardInputArgs& a,
                                                   int64_t row) const {
  return {.a = gradient_ + row * a.n,
          .b = WeightOf(product, WeightCopy::kTransposed),
          .a_scale = ScaleOf(product, Fp8Role::kGradient),
          .b_scale = WeightScaleOf(product),
          .bias = nullptr,
          .c = a.dx,
          .m = a.m,
          .n = a.k,
          .k = a.n,
          .accumulate = a.accumulate};
}

void Products::BackwardInput(ProductId product, const kernels::MatmulBackwardInputArgs& a,
                             int64_t row) {
  if (!plan::TakesFp8(shape_, a.m, a.n, a.k)) {
    return ops_.MatmulBackwardInput(WithWeight(product, a));
  }
  ops_.ScaledMatmul(ScaledBackward(product, a, row));
}

void Products::BackwardAndMakeGradient(ProductId product, ProductId reader, kernels::Chain chain) {
  const kernels::MatmulBackwardInputArgs a = *chain.input_gradient;
  if (plan::TakesFp8(shape_, a.m, a.n, a.k)) {
    chain.input_gradient.reset();
    chain.scaled_product = ScaledBackward(product, a, 0);
  } else {
    chain.input_gradient = WithWeight(product, a);
  }
  const Result made = ResultOf(chain);
  const model::Product& declared = At(reader).declared;
  rounded_gradient_.reset();
  // Weight gradients read what is transposed, lane by lane: of several lanes it is several
  // matrices.
  if (lanes_ == 1 && plan::TakesFp8(shape_, made.rows, declared.outputs, declared.inputs) &&
      Knows(reader, Fp8Role::kGradient)) {
    TERCIO_CHECK_EQ(made.columns, declared.outputs);
    chain.quantize = RoundingOf(reader, Fp8Role::kGradient, made.values, made.rows, made.columns);
    if (At(reader).weight.has_gradient()) chain.quantize->transposed = turned_gradient_;
    rounded_gradient_ = Rounded{reader, made.values.data(), made.rows};
  }
  ops_.RunChain(chain);
}

}  // namespace tercio::blocks
