#include "model/blocks/cross_attention.h"

#include "kernels/random.h"

namespace tercio::model {

BlockDescription Describe(const CrossAttentionOptions& o, int tensor) {
  const int64_t heads = o.heads / tensor;
  const int64_t width = heads * o.head_dim;
  const int64_t whole_width = o.heads * o.head_dim;
  BlockDescription block;
  block.tensors = {Matrix("query.weight", whole_width, o.hidden, Cut::kRows),
                   Matrix("key.weight", whole_width, o.hidden, Cut::kRows),
                   Matrix("value.weight", whole_width, o.hidden, Cut::kRows),
                   Matrix("output.weight", o.hidden, whole_width, Cut::kColumns,
                          Initialization::kResidualNormal)};
  // Both are multiplied with the same rows, in one product.
  block.tensors[2].continues = true;
  block.fields = {{"queries", Rows::kAll, width, false, Kept::kUnlessFull},
                  {"memory_keys", Rows::kMemory, 2 * width, false, Kept::kUnlessFull},
                  {"attention", Rows::kAll, width, false, Kept::kUnlessFull},
                  {"log_sum_exp", Rows::kAll, heads, true, Kept::kUnlessFull}};
  block.scratch = {{"wide_gradient", Rows::kAll, width},
                   {"attention_gradient", Rows::kAll, width},
                   {"memory_keys_gradient", Rows::kMemory, 2 * width},
                   {"memory_gradient", Rows::kMemory, o.hidden}};
  block.products = {
      {.outputs = width, .inputs = o.hidden, .summed = Summed::kBackward},
      {.outputs = 2 * width, .inputs = o.hidden, .summed = Summed::kBackward, .of_memory = true},
      {.outputs = o.hidden, .inputs = width, .summed = Summed::kForward}};
  block.divided = {{"model.heads", o.heads}};
  block.elements_per_key = width;
  block.reads_memory = true;
  DescribeAdapters(o.adapters, AdaptablePartsOf(o), tensor, kernels::kAdapterSiteCrossAttention,
                   &block);
  return block;
}

std::vector<AdaptablePart> AdaptablePartsOf(const CrossAttentionOptions&) {
  using Products = CrossAttentionProducts;
  return {{"query", {"query"}, Products::kQuery},
          {"key", {"key"}, Products::kKeysAndValues},
          {"value", {"value"}, Products::kKeysAndValues},
          {"output", {"output"}, Products::kOutput}};
}

}  // namespace tercio::model
