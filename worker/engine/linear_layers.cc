#include "worker/engine/linear_layers.h"

#include "common/check.h"

namespace tercio::engine {
namespace {

using kernels::Format;
using plan::Fp8Role;
using plan::Linear;

WeightRef WeightIn(const LayerWeights& layer, Linear linear) {
  switch (linear) {
    case Linear::kQkv:
      return layer.qkv;
    case Linear::kOutput:
      return layer.output;
    case Linear::kUp:
      return layer.up;
    case Linear::kDown:
      return layer.down;
  }
  return {};
}

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

LinearLayers::LinearLayers(const plan::StageShape& shape, const StageWeights& weights,
                           kernels::ConstValues parameters, int lanes, Arena& arena,
                           device::Stream& stream)
    : shape_(shape),
      lanes_(lanes),
      weights_(weights),
      parameters_(parameters),
      stream_(stream),
      ops_(stream.ops()),
      scaling_(shape.fp8 ? static_cast<int>(weights.layers.size()) : 0) {
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

void LinearLayers::BeginPass() {
  if (!shape_.fp8) return;
  const std::vector<kernels::Scale> scales = scaling_.Scales();
  stream_.CopyFromHost(scales_, scales.data(),
                       static_cast<int64_t>(scales.size() * sizeof(scales[0])));
  // All micro-batches read the same weights, so these are rounded once.
  if (weights_changed_) QuantizeWeights();
  weights_changed_ = false;
}

void LinearLayers::BeginStep() {
  if (!shape_.fp8) return;
  BeginPass();
  // Quantize only ever raises the largest magnitude.
  stream_.SetZero(largest_, scaling_.slots() * static_cast<int64_t>(sizeof(float)));
}

void LinearLayers::EndStep(collective::Communicator& tensor, collective::Communicator& data) {
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

void LinearLayers::RecordStep() {
  if (shape_.fp8) scaling_.Record(learned_);
}

void LinearLayers::QuantizeWeights() {
  for (int layer = 0; layer < static_cast<int>(weights_.layers.size()); ++layer) {
    for (const Linear linear : plan::kLinears) {
      if (!plan::TakesFp8(shape_, linear)) continue;
      const Part part = {layer, linear};
      const plan::LinearSize size = plan::SizeOfLinear(shape_, linear);
      const kernels::ConstValues weight =
          WeightIn(weights_.layers[static_cast<size_t>(layer)], linear).In(parameters_);
      ops_.ChooseScale({.x = weight,
                        .count = size.n * size.k,
                        .format = Format::kE4m3,
                        .scale = WeightScaleOf(part)});
      ops_.Quantize({.x = weight,
                     .plain = WeightOf(part, WeightCopy::kPlain),
                     .transposed = WeightOf(part, WeightCopy::kTransposed),
                     .scale = WeightScaleOf(part),
                     .largest = nullptr,
                     .rows = size.n,
                     .columns = size.k});
    }
  }
}

kernels::Values LinearLayers::WeightOf(const Part& part, WeightCopy copy) const {
  const plan::Fp8Weight at = plan::Fp8WeightOf(shape_, part.linear);
  std::byte* const layer = eight_bit_weights_ + part.layer * plan::Fp8LayerBytes(shape_);
  return {layer + (copy == WeightCopy::kTransposed ? at.transposed : at.plain), Format::kE4m3,
          Format::kE4m3};
}

// A job's first step has no history to scale by. A fixed scale could clip a
// whole factor, or round all of it to zero, so the factor's own values decide.
void LinearLayers::ScaleUnknown(const Part& part, Fp8Role role, kernels::ConstValues x,
                                int64_t count) {
  if (Knows(part, role)) return;
  ops_.ChooseScale({.x = x,
                    .count = count,
                    .format = role == Fp8Role::kInput ? Format::kE4m3 : Format::kE5m2,
                    .scale = ScaleOf(part, role)});
}

bool LinearLayers::RepeatsItself() const {
  if (!shape_.fp8) return true;
  for (int layer = 0; layer < static_cast<int>(weights_.layers.size()); ++layer) {
    for (const Linear linear : plan::kLinears) {
      // Other parts have no scales.
      if (!plan::TakesFp8(shape_, linear)) continue;
      const Part part = {layer, linear};
      if (!Knows(part, Fp8Role::kInput) || !Knows(part, Fp8Role::kGradient)) return false;
    }
  }
  return true;
}

// As it is, for forward products and input gradients, whose magnitudes count.
kernels::QuantizeArgs LinearLayers::RoundingOf(const Part& part, Fp8Role role,
                                               kernels::ConstValues x, int64_t rows,
                                               int64_t columns) {
  return {.x = x,
          .plain = role == Fp8Role::kInput ? input_ : gradient_,
          .transposed = nullptr,
          .scale = ScaleOf(part, role),
          .largest = largest_ + Slot(part, role),
          .rows = rows,
          .columns = columns};
}

kernels::ScaledMatmulArgs LinearLayers::ScaledForward(const Part& part,
                                                      const kernels::MatmulArgs& a) {
  if (!Holds(rounded_input_, part, a.x, a.m)) {
    ScaleUnknown(part, Fp8Role::kInput, a.x, a.m * a.k);
    rounded_input_.reset();
    ops_.Quantize(RoundingOf(part, Fp8Role::kInput, a.x, a.m, a.k));
  }
  return {.a = input_,
          .b = WeightOf(part, WeightCopy::kPlain),
          .a_scale = ScaleOf(part, Fp8Role::kInput),
          .b_scale = WeightScaleOf(part),
          .bias = a.bias,
          .c = a.y,
          .m = a.m,
          .n = a.n,
          .k = a.k,
          .accumulate = a.accumulate,
          // Gradients sum over a wider range of magnitudes, and keep all bits.
          .fast_accumulation = true};
}

kernels::Chain LinearLayers::WithProductOf(const Part& part, const kernels::Chain& chain) {
  const kernels::MatmulArgs& a = *chain.product;
  // Sizes that are not multiples of kernels::kScaledUnit stay in the job's format.
  if (!plan::TakesFp8(shape_, a.m, a.n, a.k)) return chain;
  kernels::Chain scaled = chain;
  scaled.product.reset();
  scaled.scaled_product = ScaledForward(part, a);
  return scaled;
}

void LinearLayers::Forward(const Part& part, const kernels::MatmulArgs& a) {
  if (!plan::TakesFp8(shape_, a.m, a.n, a.k)) return ops_.Matmul(a);
  ops_.ScaledMatmul(ScaledForward(part, a));
}

void LinearLayers::ForwardChain(const Part& part, const kernels::Chain& chain) {
  ops_.RunChain(WithProductOf(part, chain));
}

void LinearLayers::ForwardAndMakeInput(const Part& part, const Part& reader,
                                       const kernels::Chain& chain) {
  MakeInput(reader, WithProductOf(part, chain));
}

void LinearLayers::MakeInput(const Part& reader, kernels::Chain chain) {
  const Result made = ResultOf(chain);
  const plan::LinearSize size = plan::SizeOfLinear(shape_, reader.linear);
  // What is spread over tensor ranks is gathered first, and a product that is cut to run beside its
  // sum may leave some rows in bf16.
  const bool gathers =
      shape_.sequence_parallel && (reader.linear == Linear::kQkv || reader.linear == Linear::kUp);
  const bool is_cut = shape_.tensor_overlap > 1 && reader.linear == Linear::kDown;
  rounded_input_.reset();
  if (!gathers && !is_cut && plan::TakesFp8(shape_, made.rows, size.n, size.k) &&
      Knows(reader, Fp8Role::kInput)) {
    TERCIO_CHECK_EQ(made.columns, size.k);
    chain.quantize = RoundingOf(reader, Fp8Role::kInput, made.values, made.rows, made.columns);
    rounded_input_ = Rounded{reader, made.values.data(), made.rows};
  }
  ops_.RunChain(chain);
}

void LinearLayers::BeginBackward(const Part& part, kernels::ConstValues dy, int64_t rows) {
  if (!plan::TakesFp8(shape_, part.linear)) return;
  ScaleUnknown(part, Fp8Role::kGradient, dy, rows * plan::SizeOfLinear(shape_, part.linear).n);
}

void LinearLayers::BackwardWeight(const Part& part, const kernels::MatmulBackwardWeightArgs& a,
                                  int64_t row) {
  if (!plan::TakesFp8(shape_, part.linear)) return ops_.MatmulBackwardWeight(a);
  // The gradient is rounded even if this lane's rows do not fit: BackwardInput reads all of them.
  const bool takes = plan::TakesFp8(shape_, a.m, a.n, a.k);
  const kernels::Scale* const dy_scale = ScaleOf(part, Fp8Role::kGradient);
  if (!Holds(rounded_gradient_, part, a.dy, a.m)) {
    kernels::QuantizeArgs both = RoundingOf(part, Fp8Role::kGradient, a.dy, a.m, a.n);
    both.plain = gradient_ + row * a.n;
    both.transposed = takes ? turned_gradient_ : nullptr;
    ops_.Quantize(both);
  }
  rounded_gradient_.reset();
  if (!takes) return ops_.MatmulBackwardWeight(a);
  ScaleUnknown(part, Fp8Role::kInput, a.x, a.m * a.k);
  rounded_input_.reset();
  const kernels::Scale* const x_scale = ScaleOf(part, Fp8Role::kInput);
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

kernels::ScaledMatmulArgs LinearLayers::ScaledBackward(const Part& part,
                                                       const kernels::MatmulBackwardInputArgs& a,
                                                       int64_t row) const {
  return {.a = gradient_ + row * a.n,
          .b = WeightOf(part, WeightCopy::kTransposed),
          .a_scale = ScaleOf(part, Fp8Role::kGradient),
          .b_scale = WeightScaleOf(part),
          .bias = nullptr,
          .c = a.dx,
          .m = a.m,
          .n = a.k,
          .k = a.n,
          .accumulate = a.accumulate};
}

void LinearLayers::BackwardInput(const Part& part, const kernels::MatmulBackwardInputArgs& a,
                                 int64_t row) {
  if (!plan::TakesFp8(shape_, a.m, a.n, a.k)) return ops_.MatmulBackwardInput(a);
  ops_.ScaledMatmul(ScaledBackward(part, a, row));
}

void LinearLayers::BackwardAndMakeGradient(const Part& part, const Part& reader,
                                           kernels::Chain chain) {
  const kernels::MatmulBackwardInputArgs a = *chain.input_gradient;
  if (plan::TakesFp8(shape_, a.m, a.n, a.k)) {
    chain.input_gradient.reset();
    chain.scaled_product = ScaledBackward(part, a, 0);
  }
  const Result made = ResultOf(chain);
  const plan::LinearSize size = plan::SizeOfLinear(shape_, reader.linear);
  rounded_gradient_.reset();
  // Weight gradients read what is transposed, lane by lane: of several lanes it is several
  // matrices.
  if (lanes_ == 1 && plan::TakesFp8(shape_, made.rows, size.n, size.k) &&
      Knows(reader, Fp8Role::kGradient)) {
    TERCIO_CHECK_EQ(made.columns, size.n);
    chain.quantize = RoundingOf(reader, Fp8Role::kGradient, made.values, made.rows, made.columns);
    chain.quantize->transposed = turned_gradient_;
    rounded_gradient_ = Rounded{reader, made.values.data(), made.rows};
  }
  ops_.RunChain(chain);
}

}  // namespace tercio::engine
