// An adapter that rows of a pass choose (SequencePart::adapter), beside a model without adapters of
// its own: several of them lie in memory beside one base, and each row gets the arithmetic of a
// model that has its adapter alone, to the bit. Forward only, on one rank.
//
// The product itself is computed for all rows at once; what this adds is computed for each run of
// rows of one adapter, at most Scratch::rows of them at a time.
//
// Reads tensors and writes scratch of its owner, which adapters of one model share: one pass at a
// time. All work goes to the stream of the operations.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "model/options.h"
#include "plan/stage_units.h"
#include "worker/blocks/adapter_tensors.h"
#include "worker/blocks/products.h"

namespace tercio::blocks {

class ChosenAdapter {
 public:
  struct Scratch {
    int64_t rows = 0;
    kernels::Values kept;    // (rows, rank or outputs of the largest part)
    kernels::Values output;  // (rows, outputs of the largest part)
    kernels::Values input;   // (rows of the largest pass, inputs); none without IA3
  };
  // Elements of a row of each scratch that the model's adapters need.
  struct Widths {
    int64_t kept = 0;
    int64_t output = 0;
    int64_t input = 0;
    void Cover(const Widths& other);
  };
  static Widths WidthsOf(const v1::ModelSpec& adapted);

  // `adapted`: the model with this adapter. `tensors`: those of the adapter, whose values are in
  // `values`.
  ChosenAdapter(const v1::ModelSpec& adapted, const plan::StageTensors& tensors,
                kernels::ConstValues values, const Scratch& scratch);

  // Whether the product's results, or its inputs, are changed.
  bool ChangesOutput(ProductId product) const {
    return !Of(product).parts.empty() && !ScalesInput(product);
  }
  bool ScalesInput(ProductId product) const { return Of(product).scales_input; }

  // x (rows x inputs) as the product multiplies it. REQUIRES: ScalesInput.
  void ScaleInput(ProductId product, kernels::ConstValues x, kernels::Values scaled, int64_t rows,
                  kernels::Ops& ops) const;
  // Changes the product's result y (rows x outputs) of x. REQUIRES: ChangesOutput.
  void ChangeOutput(ProductId product, kernels::ConstValues x, kernels::Values y, int64_t rows,
                    kernels::Ops& ops) const;

  const Scratch& scratch() const { return scratch_; }

 private:
  struct AdaptedProduct {
    int64_t inputs = 0;
    int64_t outputs = 0;
    bool scales_input = false;
    std::vector<AdapterTensors> parts;
  };
  const AdaptedProduct& Of(ProductId product) const {
    return products_[static_cast<size_t>(product)];
  }

  const bool is_low_rank_;
  const int64_t rank_;
  const float scale_;
  const kernels::ConstValues values_;
  const Scratch scratch_;
  std::vector<AdaptedProduct> products_;  // of the stage
};

}  // namespace tercio::blocks
