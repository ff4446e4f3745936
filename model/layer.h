// A layer as one tensor rank holds it: the declarations of its blocks, of its norms and of the
// residual stream between them, joined. Pure.
#pragma once

#include <vector>

#include "model/description.h"
#include "model/options.h"

namespace tercio::model {

// Indexes of a norm's fields: its result, and means and rstds of its rows. -1: it has none.
struct NormFields {
  int result = -1;
  int mean = -1;
  int rstd = -1;
};

struct BranchPlaces {
  NormFields norm;      // of the norm that the block reads through; shared where branches share it
  int first_field = 0;  // of the block
  int first_product = 0;   // of the block, within the layer
  int result = -1;         // what the norm of the result reads
  NormFields result_norm;  // without a result of its own
};

struct SublayerPlaces {
  int input = 0;  // the residual stream before it
  std::vector<BranchPlaces> branches;
  int sum = -1;         // what the norm of the sum reads; its result is the next input
  NormFields sum_norm;  // without a result of its own
};

struct LayerDescription {
  int stream = 0;               // whose rows the fields have
  std::vector<Tensor> tensors;  // in the order of randomness keys and of flat buffers
  std::vector<Field> fields;    // the first one is the layer's input
  std::vector<Scratch> scratch;
  std::vector<Product> products;
  std::vector<SublayerPlaces> sublayers;
};

// The block alone. REQUIRES: tensor divides what the block cuts.
BlockDescription Describe(const BlockOptions& block, int tensor);

LayerDescription Describe(const Layer& layer, int64_t hidden, int tensor);

// The tensors of a norm over rows of `size` elements.
std::vector<Tensor> TensorsOf(const Norm& norm, int64_t size);

}  // namespace tercio::model
