#include "model/blocks/mlp.h"

#include "kernels/random.h"

namespace tercio::model {

BlockDescription Describe(const MlpOptions& o, int tensor) {
  const int64_t width = o.width / tensor;
  const int64_t up = o.gated ? 2 * width : width;
  BlockDescription block;
  // The gate and the up part are multiplied elementwise, so both are cut alike.
  if (o.gated) block.tensors.push_back(Matrix("gate.weight", o.width, o.hidden, Cut::kRows));
  block.tensors.push_back(Matrix("up.weight", o.width, o.hidden, Cut::kRows));
  block.tensors.back().continues = o.gated;
  if (o.bias && o.gated) block.tensors.push_back(Vector("gate.bias", o.width, Cut::kRows));
  if (o.bias) block.tensors.push_back(Vector("up.bias", o.width, Cut::kRows));
  block.tensors.back().continues = o.gated;
  block.tensors.push_back(
      Matrix("down.weight", o.hidden, o.width, Cut::kColumns, o.output_initialization));
  if (o.bias) block.tensors.push_back(Vector("down.bias", o.hidden, Cut::kWhole));
  block.fields = {{"up", Rows::kAll, up, false, Kept::kUnlessFull},
                  {"activated", Rows::kAll, width, false, Kept::kUnlessCheap}};
  block.scratch = {{"wide_gradient", Rows::kAll, up}};
  // The gradient of a gated product cannot be made in place.
  if (o.gated) block.scratch.push_back({"gated_gradient", Rows::kAll, width});
  block.products = {{.outputs = up,
                     .inputs = o.hidden,
                     .bias = o.bias,
                     .summed = Summed::kBackward,
                     .activates = !o.gated,
                     .activation = o.activation},
                    {.outputs = o.hidden,
                     .inputs = width,
                     .summed = Summed::kForward,
                     .activates_gradient = !o.gated,
                     .activation = o.activation}};
  block.divided = {{"model.ffn_hidden", o.width}};
  DescribeAdapters(o.adapters, AdaptablePartsOf(o), tensor, kernels::kAdapterSiteMlp, &block);
  return block;
}

std::vector<AdaptablePart> AdaptablePartsOf(const MlpOptions& options) {
  const AdaptablePart down{"down", {"down"}, MlpProducts::kDown};
  if (!options.gated) return {{"up", {"up"}, MlpProducts::kUp}, down};
  if (options.joined) return {{"gate_up", {"gate", "up"}, MlpProducts::kUp}, down};
  return {{"gate", {"gate"}, MlpProducts::kUp}, {"up", {"up"}, MlpProducts::kUp}, down};
}

}  // namespace tercio::model
