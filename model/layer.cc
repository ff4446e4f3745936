#include "model/layer.h"

#include <string>
#include <utility>

#include "model/blocks/attention.h"
#include "model/blocks/cross_attention.h"
#include "model/blocks/mlp.h"

namespace tercio::model {
namespace {

class LayerBuilder {
 public:
  LayerBuilder(int64_t hidden, int tensor, int stream) : hidden_(hidden), tensor_(tensor) {
    layer_.stream = stream;
  }

  void Add(const Sublayer& sublayer, bool is_first, bool is_last, bool follows_norm) {
    SublayerPlaces places;
    // The layer's input is what recomputation starts from. Behind a norm an input is made again
    // from the sum that the norm reads.
    places.input = Local("input", is_first       ? Kept::kAlways
                                  : follows_norm ? Kept::kUnlessCheap
                                                 : Kept::kUnlessFull);
    // The order of tensors is that of older versions, whose keys of randomness follow from it.
    if (sublayer.sum_norm.has_value()) AddTensors(TensorsOf(*sublayer.sum_norm, hidden_), "");
    // Recomputation leaves out a layer's last product, so that what it makes is kept.
    const Kept of_last = is_last ? Kept::kAlways : Kept::kUnlessFull;
    NormFields norm;
    // All branches take the gradient of the sum as it was before the first of them adds its own.
    if (sublayer.branches.size() > 1) {
      layer_.scratch.push_back({"sum_gradient", Rows::kLocal, hidden_});
    }
    for (const Branch& branch : sublayer.branches) {
      places.branches.push_back(AddBranch(branch, of_last, &norm));
    }
    if (sublayer.sum_norm.has_value()) {
      places.sum = Local("sum", of_last);
      places.sum_norm = Statistics(of_last);
    }
    layer_.sublayers.push_back(std::move(places));
  }

  LayerDescription Finish() { return std::move(layer_); }

 private:
  BranchPlaces AddBranch(const Branch& branch, Kept of_last, NormFields* norm) {
    BranchPlaces places;
    if (branch.norm.has_value()) {
      AddTensors(TensorsOf(*branch.norm, hidden_), "");
      const int result = Local("norm", Kept::kUnlessCheap);
      *norm = Statistics(Kept::kUnlessFull);
      norm->result = result;
    }
    places.norm = *norm;
    places.first_field = static_cast<int>(layer_.fields.size());
    places.first_product = static_cast<int>(layer_.products.size());
    BlockDescription block = Describe(branch.block, tensor_);
    AddTensors(std::move(block.tensors), branch.name + ".");
    Append(block.fields, &layer_.fields);
    Append(block.scratch, &layer_.scratch);
    Append(block.products, &layer_.products);
    if (branch.result_norm.has_value()) {
      AddTensors(TensorsOf(*branch.result_norm, hidden_), "");
      places.result = Local("result", of_last);
      places.result_norm = Statistics(of_last);
      layer_.scratch.push_back({"result_gradient", Rows::kLocal, hidden_});
    }
    return places;
  }
  void AddTensors(std::vector<Tensor> tensors, const std::string& prefix) {
    for (Tensor& tensor : tensors) {
      tensor.name = prefix + tensor.name;
      layer_.tensors.push_back(std::move(tensor));
    }
  }
  template <typename T>
  static void Append(const std::vector<T>& from, std::vector<T>* to) {
    to->insert(to->end(), from.begin(), from.end());
  }
  int Add(const Field& field) {
    layer_.fields.push_back(field);
    return static_cast<int>(layer_.fields.size()) - 1;
  }
  int Local(const char* name, Kept kept) { return Add({name, Rows::kLocal, hidden_, false, kept}); }
  NormFields Statistics(Kept kept) {
    NormFields norm;
    norm.mean = Add({"mean", Rows::kLocal, 1, true, kept});
    norm.rstd = Add({"rstd", Rows::kLocal, 1, true, kept});
    return norm;
  }

  const int64_t hidden_;
  const int tensor_;
  LayerDescription layer_;
};

}  // namespace

BlockDescription Describe(const BlockOptions& block, int tensor) {
  return std::visit([&](const auto& options) { return Describe(options, tensor); }, block);
}

LayerDescription Describe(const Layer& layer, int64_t hidden, int tensor) {
  LayerBuilder builder(hidden, tensor, layer.stream);
  bool follows_norm = false;
  for (size_t i = 0; i < layer.sublayers.size(); ++i) {
    const Sublayer& sublayer = layer.sublayers[i];
    builder.Add(sublayer, i == 0, i + 1 == layer.sublayers.size(), follows_norm);
    follows_norm = sublayer.sum_norm.has_value();
  }
  return builder.Finish();
}

std::vector<Tensor> TensorsOf(const Norm& norm, int64_t size) {
  // With an offset of one the weight itself begins at zero.
  const Initialization initialization =
      norm.options.unit_offset ? Initialization::kZeros : Initialization::kOnes;
  std::vector<Tensor> tensors = {Vector(norm.name + ".weight", size, Cut::kWhole, initialization)};
  if (norm.options.bias) tensors.push_back(Vector(norm.name + ".bias", size, Cut::kWhole));
  return tensors;
}

}  // namespace tercio::model
