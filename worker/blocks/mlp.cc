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

Mlp::Mlp(const model::MlpOptions& options, const WeightFinder& weights, int layer, ProductId first,
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
      up_adapters_(options.adapters, up_product_, weights, layer, tools),
      down_adapters_(options.adapters, down_product_, weights, layer, tools),
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
  const kernels::MatmulArgs product{.x = x,
                                    .w = up_.In(tools_.parameters),
                                    .bias = up_bias_.In(tools_.parameters),
                                    .y = frame.Values(Fields::kUp),
                                    .m = pass.rows,
                                    .n = up_width_,
                                    .k = options_.hidden};
  if (up_adapters_.ChangesOutput(pass)) {
    // The activation reads the sum of both.
    tools_.products.Forward(up_product_, product);
    up_adapters_.Forward(pass, pass, frame, {0, pass.rows}, x, frame.Values(Fields::kUp));
    if (after == After::kBackward) return tools_.ops.RunChain(chain);
    return tools_.products.MakeInput(down_product_, chain);
  }
  chain.product = product;
  if (after == After::kBackward) return tools_.products.ForwardChain(up_product_, chain);
  tools_.products.ForwardAndMakeInput(up_product_, down_product_, chain);
}

void Mlp::Output(const Pass& pass, const Frame& frame, const plan::RowPiece& piece,
                 kernels::Values branch) {
  const kernels::ConstValues x = frame.Values(Fields::kActivated) + piece.first * width_;
  const kernels::Values y = branch + piece.first * options_.hidden;
  tools_.products.Forward(down_product_, {.x = down_adapters_.Input(pass, piece, x),
                                          .w = down_.In(tools_.parameters),
                                          .bias = nullptr,
                                          .y = y,
                                          .m = piece.count,
                                          .n = options_.hidden,
                                          .k = width_});
  down_adapters_.Forward(pass, pass, frame, piece, x, y);
}

void Mlp::Restore(const Pass& pass, const Frame& frame) {
  tools_.ops.RunChain(Activate(pass, frame));
}

void Mlp::BackwardBranch(const Pass& pass, const Frame& frame, kernels::ConstValues dbranch,
                         GradientLanes& lanes) {
  const kernels::ConstValues activated = frame.Values(Fields::kActivated);
  down_adapters_.BackwardOutput(pass, pass, frame, activated, dbranch, lanes);
  BackwardWeight(pass.batch, pass, down_product_, down_, {}, dbranch,
                 down_adapters_.Input(pass, {0, pass.rows}, activated), options_.hidden, width_,
                 tools_, lanes);
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
  if (down_adapters_.empty()) {
    return tools_.products.BackwardAndMakeGradient(down_product_, up_product_, chain);
  }
  tools_.products.BackwardInput(down_product_, *chain.input_gradient, 0);
  down_adapters_.BackwardInput(pass, pass, {0, pass.rows}, activated, gradient, &lanes);
  chain.input_gradient.reset();
  tools_.ops.RunChain(chain);
}

void Mlp::BackwardFirstWeight(const Pass& pass, const Frame& frame, kernels::ConstValues x,
                              GradientLanes& lanes) {
  up_adapters_.BackwardOutput(pass, pass, frame, x, up_gradient_, lanes);
  BackwardWeight(pass.batch, pass, up_product_, up_, up_bias_, up_gradient_, x, up_width_,
                 options_.hidden, tools_, lanes);
}

void Mlp::BackwardInput(const Pass& pass, const plan::RowPiece& piece, kernels::Values dx,
                        bool accumulate) {
  const kernels::Values of_piece = dx + piece.first * options_.hidden;
  tools_.products.BackwardInput(up_product_,
                                {.dy = up_gradient_ + piece.first * up_width_,
                                 .w = up_.In(tools_.parameters),
                                 .dx = of_piece,
                                 .m = piece.count,
                                 .n = up_width_,
                                 .k = options_.hidden,
                                 .accumulate = accumulate},
                                piece.first);
  up_adapters_.BackwardInput(pass, pass, piece, nullptr, of_piece, nullptr);
}

}  // namespace tercio::blocks
