#include "worker/blocks/mlp.h"

namespace tercio::blocks {
namespace {

kernels::Activation FunctionOf(model::Activation activation) {
  switch (activation) {
    case model::Activation::kGeluTanh:
      return kernels::Activation::kGeluTanh;
    case model::Activation::kGelu:
      return kernels::Activation::kGelu;
    case model::Activation::kRelu:
      return kernels::Activation::kRelu;
    case model::Activation::kSilu:
      return kernels::Activation::kSilu;
  }
  return kernels::Activation::kGeluTanh;
}

}  // namespace

Mlp::Mlp(const model::MlpOptions& options, const WeightFinder& weights, ProductId first,
         const Tools& tools)
    : options_(options),
      tools_(tools),
      function_(FunctionOf(options.activation)),
      width_(options.width / tools.shape.tensor),
      up_width_(options.gated ? 2 * width_ : width_),
      up_product_(first + model::MlpProducts::kUp),
      down_product_(first + model::MlpProducts::kDown),
      up_(weights.Joined({"gate.weight", "up.weight"})),
      up_bias_(weights.Joined({"gate.bias", "up.bias"})),
      down_(weights.Find("down.weight")),
      down_bias_(weights.Find("down.bias")),
      up_gradient_(tools.Scratch("wide_gradient")),
      gate_gradient_(options.gated ? tools.Scratch("gated_gradient") : kernels::Values()) {
  tools.products.SetWeight(up_product_, up_);
  tools.products.SetWeight(down_product_, down_);
}

kernels::Chain Mlp::Activate(const Pass& pass, const Frame& frame) const {
  const kernels::Values up = frame.Values(Fields::kUp);
  const kernels::Values out = frame.Values(Fields::kActivated);
  kernels::Chain chain;
  if (options_.gated) {
    chain.gated = kernels::GatedArgs{
        .h = up, .g = out, .rows = pass.rows, .columns = width_, .function = function_};
  } else {
    chain.activation = kernels::ActivationArgs{
        .h = up, .g = out, .rows = pass.rows, .columns = width_, .function = function_};
  }
  return chain;
}

void Mlp::Forward(const Pass& pass, const Frame& frame, kernels::ConstValues x, After after) {
  kernels::Chain chain = Activate(pass, frame);
  chain.product = kernels::MatmulArgs{.x = x,
                                      .w = up_.In(tools_.parameters),
                                      .bias = up_bias_.In(tools_.parameters),
                                      .y = frame.Values(Fields::kUp),
                                      .m = pass.rows,
                                      .n = up_width_,
                                      .k = options_.hidden};
  if (after == After::kBackward) return tools_.products.ForwardChain(up_product_, chain);
  tools_.products.ForwardAndMakeInput(up_product_, down_product_, chain);
}

void Mlp::Output(const Pass&, const Frame& frame, const plan::RowPiece& piece,
                 kernels::Values branch) {
  tools_.products.Forward(down_product_,
                          {.x = frame.Values(Fields::kActivated) + piece.first * width_,
                           .w = down_.In(tools_.parameters),
                           .bias = nullptr,
                           .y = branch + piece.first * options_.hidden,
                           .m = piece.count,
                           .n = options_.hidden,
                           .k = width_});
}

void Mlp::Restore(const Pass& pass, const Frame& frame) {
  tools_.ops.RunChain(Activate(pass, frame));
}

void Mlp::BackwardBranch(const Pass& pass, const Frame& frame, kernels::ConstValues dbranch,
                         GradientLanes& lanes) {
  BackwardWeight(pass.batch, pass, down_product_, down_, {}, dbranch,
                 frame.Values(Fields::kActivated), options_.hidden, width_, tools_, lanes);
  const kernels::Values gradient = options_.gated ? gate_gradient_ : up_gradient_;
  const kernels::Values up = frame.Values(Fields::kUp);
  kernels::Chain chain;
  chain.input_gradient = kernels::MatmulBackwardInputArgs{.dy = dbranch,
                                                          .w = down_.In(tools_.parameters),
                                                          .dx = gradient,
                                                          .m = pass.rows,
                                                          .n = options_.hidden,
                                                          .k = width_};
  if (options_.gated) {
    chain.gated_gradient = kernels::GatedBackwardArgs{.dg = gradient,
                                                      .h = up,
                                                      .dh = up_gradient_,
                                                      .rows = pass.rows,
                                                      .columns = width_,
                                                      .function = function_};
  } else {
    chain.activation_gradient = kernels::ActivationBackwardArgs{.dg = gradient,
                                                                .h = up,
                                                                .dh = up_gradient_,
                                                                .rows = pass.rows,
                                                                .columns = width_,
                                                                .function = function_};
  }
  tools_.products.BackwardAndMakeGradient(down_product_, up_product_, chain);
}

void Mlp::BackwardFirstWeight(const Pass& pass, kernels::ConstValues x, GradientLanes& lanes) {
  BackwardWeight(pass.batch, pass, up_product_, up_, up_bias_, up_gradient_, x, up_width_,
                 options_.hidden, tools_, lanes);
}

void Mlp::BackwardInput(const plan::RowPiece& piece, kernels::Values dx, bool accumulate) {
  tools_.products.BackwardInput(up_product_,
                                {.dy = up_gradient_ + piece.first * up_width_,
                                 .w = up_.In(tools_.parameters),
                                 .dx = dx + piece.first * options_.hidden,
                                 .m = piece.count,
                                 .n = up_width_,
                                 .k = options_.hidden,
                                 .accumulate = accumulate},
                                piece.first);
}

}  // namespace tercio::blocks
