#include "worker/engine/linear_layers.h"

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

}  // namespace

LinearLayers::LinearLayers(const plan::StageShape& shape, const StageWeights& weights,
                           kernels::ConstValues parameters, Arena& arena, device::Stream& stream)
    : shape_(shape),
      weights_(weights),
      parameters_(parameters),
      stream_(stream),
      ops_(stream.ops()),
      scaling_(shape.fp8 ? static_cast<int>(weights.layers.size()) : 0) {
  if (!shape_.fp8) return;
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
  if (weights_changed_) QuantizeWeights();
  weights_changed_ = false;
}

void LinearLayers::BeginStep() {
  if (!shape_.fp8) return;
  BeginPass();
  stream_.SetZero(largest_, scaling_.slots() * static_cast<int64_t>(sizeof(float)));
}

void LinearLayers::EndStep(collective::Communicator& tensor, collective::Communicator& data) {
  if (!shape_.fp8) return;
  const int64_t of_tensor = int64_t{scaling_.slots()} * tensor.size();
  const int64_t all = of_tensor * data.size();
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
      ops_.ChooseScale({weight, size.n * size.k, Format::kE4m3, WeightScaleOf(part)});
      ops_.Quantize({weight, WeightOf(part, WeightCopy::kPlain),
                     WeightOf(part, WeightCopy::kTransposed), WeightScaleOf(part), nullptr, size.n,
                     size.k});
    }
  }
}

kernels::Values LinearLayers::WeightOf(const Part& part, WeightCopy copy) const {
  const plan::Fp8Weight at = plan::Fp8WeightOf(shape_, part.linear);
  std::byte* const layer = eight_bit_weights_ + part.layer * plan::Fp8LayerBytes(shape_);
  return {layer + (copy == WeightCopy::kTransposed ? at.transposed : at.plain), Format::kE4m3,
          Format::kE4m3};
}

void LinearLayers::ScaleUnknown(const Part& part, Fp8Role role, kernels::ConstValues x,
                                int64_t count) {
  if (scaling_.Knows(static_cast<int>(Slot(part, role)))) return;
  ops_.ChooseScale(
      {x, count, role == Fp8Role::kInput ? Format::kE4m3 : Format::kE5m2, ScaleOf(part, role)});
}

void LinearLayers::Forward(const Part& part, const kernels::MatmulArgs& a) {
  if (!plan::TakesFp8(shape_, a.m, a.n, a.k)) return ops_.Matmul(a);
  ScaleUnknown(part, Fp8Role::kInput, a.x, a.m * a.k);
  kernels::Scale* const scale = ScaleOf(part, Fp8Role::kInput);
  ops_.Quantize({a.x, input_, nullptr, scale, largest_ + Slot(part, Fp8Role::kInput), a.m, a.k});
  ops_.ScaledMatmul({input_, WeightOf(part, WeightCopy::kPlain), scale, WeightScaleOf(part), a.bias,
                     a.y, a.m, a.n, a.k, a.accumulate});
}

void LinearLayers::ForwardGelu(const Part& part, const kernels::MatmulArgs& a,
                               const kernels::GeluArgs& gelu) {
  if (!plan::TakesFp8(shape_, a.m, a.n, a.k)) return ops_.MatmulGelu(a, gelu);
  Forward(part, a);
  ops_.Gelu(gelu);
}

void LinearLayers::BeginBackward(const Part& part, kernels::ConstValues dy, int64_t rows) {
  if (!plan::TakesFp8(shape_, part.linear)) return;
  ScaleUnknown(part, Fp8Role::kGradient, dy, rows * plan::SizeOfLinear(shape_, part.linear).n);
}

void LinearLayers::BackwardWeight(const Part& part, const kernels::MatmulBackwardWeightArgs& a,
                                  int64_t row) {
  if (!plan::TakesFp8(shape_, part.linear)) return ops_.MatmulBackwardWeight(a);
  const bool takes = plan::TakesFp8(shape_, a.m, a.n, a.k);
  const kernels::Scale* const dy_scale = ScaleOf(part, Fp8Role::kGradient);
  ops_.Quantize({a.dy, gradient_ + row * a.n, takes ? turned_gradient_ : nullptr, dy_scale,
                 largest_ + Slot(part, Fp8Role::kGradient), a.m, a.n});
  if (!takes) return ops_.MatmulBackwardWeight(a);
  ScaleUnknown(part, Fp8Role::kInput, a.x, a.m * a.k);
  const kernels::Scale* const x_scale = ScaleOf(part, Fp8Role::kInput);
  ops_.Quantize({a.x, nullptr, input_, x_scale, nullptr, a.m, a.k});
  ops_.ScaledMatmul({turned_gradient_, input_, dy_scale, x_scale, nullptr, kernels::Values(a.dw),
                     a.n, a.k, a.m, a.accumulate});
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

void LinearLayers::BackwardInput(const Part& part, const kernels::MatmulBackwardInputArgs& a,
                                 int64_t row) {
  if (!plan::TakesFp8(shape_, a.m, a.n, a.k)) return ops_.MatmulBackwardInput(a);
  ops_.ScaledMatmul({gradient_ + row * a.n, WeightOf(part, WeightCopy::kTransposed),
                     ScaleOf(part, Fp8Role::kGradient), WeightScaleOf(part), nullptr, a.dx, a.m,
                     a.k, a.n, a.accumulate});
}

void LinearLayers::BackwardInputGelu(const Part& part, const kernels::MatmulBackwardInputArgs& a,
                                     const kernels::GeluBackwardArgs& gelu) {
  if (!plan::TakesFp8(shape_, a.m, a.n, a.k)) return ops_.MatmulGeluBackward(a, gelu);
  BackwardInput(part, a, 0);
  ops_.GeluBackward(gelu);
}

}  // namespace tercio::engine
