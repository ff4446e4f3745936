#include "model/blocks/attention.h"

#include <string>

#include "kernels/random.h"

namespace tercio::model {
namespace {

std::vector<Tensor> ProjectionTensors(const AttentionOptions& o) {
  std::vector<Tensor> tensors;
  const int64_t queries = o.heads * o.head_dim;
  const int64_t keys = o.key_heads * o.head_dim;
  const auto part = [&](const char* name, int64_t rows, bool continues) {
    tensors.push_back(Matrix(std::string(name) + ".weight", rows, o.hidden, Cut::kRows));
    tensors.back().continues = continues;
  };
  // Weights come first, then biases: each three lie side by side as one matrix and one vector.
  part("query", queries, false);
  part("key", keys, true);
  part("value", keys, true);
  const auto bias = [&](const char* name, int64_t size, bool continues) {
    if (!o.bias) return;
    tensors.push_back(Vector(std::string(name) + ".bias", size, Cut::kRows));
    tensors.back().continues = continues;
  };
  bias("query", queries, false);
  bias("key", keys, true);
  bias("value", keys, true);
  if (o.head_norm.has_value()) {
    for (const char* name : {"query_norm.weight", "key_norm.weight"}) {
      tensors.push_back(Vector(name, o.head_dim, Cut::kWhole, Initialization::kOnes));
      tensors.back().partial = true;
    }
  }
  // A product cut by columns needs one sum after it, and its bias is added once, after the sum.
  tensors.push_back(
      Matrix("output.weight", o.hidden, queries, Cut::kColumns, o.output_initialization));
  if (o.output_bias) tensors.push_back(Vector("output.bias", o.hidden, Cut::kWhole));
  if (o.relative.has_value()) {
    tensors.push_back(Matrix("relative_bias.weight", o.heads, o.relative->buckets, Cut::kRows));
    tensors.back().ties = o.relative->shared;
  }
  return tensors;
}

}  // namespace

AttentionWidths WidthsOf(const AttentionOptions& o, int tensor) {
  AttentionWidths widths{};
  widths.heads = o.heads / tensor;
  widths.key_heads = o.key_heads / tensor;
  widths.head_dim = o.head_dim;
  widths.queries = widths.heads * o.head_dim;
  widths.keys = widths.key_heads * o.head_dim;
  return widths;
}

BlockDescription Describe(const AttentionOptions& options, int tensor) {
  const AttentionWidths at = WidthsOf(options, tensor);
  BlockDescription block;
  block.tensors = ProjectionTensors(options);
  block.fields = {{"qkv", Rows::kAll, at.qkv(), false, Kept::kUnlessFull},
                  {"attention", Rows::kAll, at.queries, false, Kept::kUnlessFull},
                  // The probabilities follow from it, and are never kept.
                  {"log_sum_exp", Rows::kAll, at.heads, true, Kept::kUnlessFull}};
  if (options.head_norm.has_value()) {
    block.fields.push_back({"raw_qkv", Rows::kAll, at.qkv(), false, Kept::kUnlessFull});
    block.fields.push_back(
        {"head_rstd", Rows::kAll, at.heads + at.key_heads, true, Kept::kUnlessFull});
  }
  block.scratch = {{"wide_gradient", Rows::kAll, at.qkv()},
                   {"attention_gradient", Rows::kAll, at.queries}};
  block.products = {{.outputs = at.qkv(),
                     .inputs = options.hidden,
                     .bias = options.bias,
                     .summed = Summed::kBackward},
                    {.outputs = options.hidden, .inputs = at.queries, .summed = Summed::kForward}};
  block.divided = {{"model.heads", options.heads}, {"model.kv_heads", options.key_heads}};
  block.elements_per_key = at.queries;
  block.most_keys = options.window;
  block.causal = options.causal;
  DescribeAdapters(options.adapters, AdaptablePartsOf(options), tensor,
                   kernels::kAdapterSiteAttention, &block);
  return block;
}

std::vector<AdaptablePart> AdaptablePartsOf(const AttentionOptions& options) {
  using Products = AttentionProducts;
  const AdaptablePart output{"output", {"output"}, Products::kOutput};
  if (options.joined) {
    return {{"query_key_value", {"query", "key", "value"}, Products::kQkv}, output};
  }
  return {{"query", {"query"}, Products::kQkv},
          {"key", {"key"}, Products::kQkv},
          {"value", {"value"}, Products::kQkv},
          output};
}

}  // namespace tercio::model
