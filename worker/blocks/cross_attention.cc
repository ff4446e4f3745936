#include "worker/blocks/cross_attention.h"

#include "kernels/random.h"

namespace tercio::blocks {

CrossAttention::CrossAttention(const model::CrossAttentionOptions& options,
                               const WeightFinder& weights, int layer, ProductId first,
                               const Tools& tools)
    : options_(options),
      heads_(options.heads / tools.shape.tensor),
      width_(heads_ * options.head_dim),
      tools_(tools),
      layer_(layer),
      query_product_(first + model::CrossAttentionProducts::kQuery),
      keys_product_(first + model::CrossAttentionProducts::kKeysAndValues),
      output_product_(first + model::CrossAttentionProducts::kOutput),
      query_(weights.Find("query.weight")),
      keys_(weights.Joined({"key.weight", "value.weight"})),
      output_(weights.Find("output.weight")),
      query_adapters_(options.adapters, query_product_, weights, layer, tools),
      keys_adapters_(options.adapters, keys_product_, weights, layer, tools),
      output_adapters_(options.adapters, output_product_, weights, layer, tools),
      query_gradient_(tools.Scratch("wide_gradient")),
      result_gradient_(tools.Scratch("attention_gradient")),
      keys_gradient_(tools.Scratch("memory_keys_gradient")),
      memory_gradient_(tools.Scratch("memory_gradient")),
      scratch_(tools.arena.Floats("workspace.attention")) {
  tools.products.SetWeight(query_product_, query_);
  tools.products.SetWeight(keys_product_, keys_);
  tools.products.SetWeight(output_product_, output_);
}

kernels::Dropout CrossAttention::DropoutOf(const Pass& pass) const {
  return tools_.dropout.At(pass, layer_, kernels::kSiteCrossAttention, 0);
}

kernels::AttentionArgs CrossAttention::ArgsOf(const Pass& pass, const Frame& frame) const {
  const kernels::Values keys = frame.Values(Fields::kKeysAndValues);
  kernels::AttentionArgs args{};
  args.q = frame.Values(Fields::kQueries);
  args.k = keys;
  args.v = keys + width_;
  args.stride = width_;
  args.key_stride = 2 * width_;
  args.key_tokens = pass.memory.tokens;
  args.out = frame.Values(Fields::kResult);
  args.lse = frame.Floats(Fields::kLogSumExp);
  args.heads = heads_;
  args.head_dim = options_.head_dim;
  args.first_head = tools_.tensor.index() * heads_;
  args.causal = false;
  args.scale = options_.scale;
  args.scratch = scratch_;
  return args;
}

void CrossAttention::MakeKeys(const Pass& pass, const Frame& frame) {
  const kernels::ConstValues memory = tools_.tensor.GatherRows(pass.memory, pass.memory.values);
  const kernels::Values keys = frame.Values(Fields::kKeysAndValues);
  tools_.products.Forward(keys_product_, {.x = memory,
                                          .w = keys_.In(tools_.parameters),
                                          .bias = nullptr,
                                          .y = keys,
                                          .m = pass.memory.rows,
                                          .n = 2 * width_,
                                          .k = options_.hidden});
  keys_adapters_.Forward(pass, pass.memory, frame, {0, pass.memory.rows}, memory, keys);
}

void CrossAttention::Forward(const Pass& pass, const Frame& frame, kernels::ConstValues x, After) {
  tools_.products.Forward(query_product_, {.x = x,
                                           .w = query_.In(tools_.parameters),
                                           .bias = nullptr,
                                           .y = frame.Values(Fields::kQueries),
                                           .m = pass.rows,
                                           .n = width_,
                                           .k = options_.hidden});
  query_adapters_.Forward(pass, pass, frame, {0, pass.rows}, x, frame.Values(Fields::kQueries));
  // Behind the queries, since gathered rows of the memory take the place of x.
  if (!pass.memory.known) MakeKeys(pass, frame);
  if (!pass.batch.parts.empty()) return AttendParts(pass, frame);
  kernels::AttentionArgs attention = ArgsOf(pass, frame);
  attention.sequences = tools_.shape.sequences;
  attention.tokens = pass.tokens;
  attention.lengths = pass.batch.lengths;
  attention.dropout = DropoutOf(pass);
  tools_.ops.Attention(attention);
}

void CrossAttention::AttendParts(const Pass& pass, const Frame& frame) {
  kernels::AttentionArgs attention = ArgsOf(pass, frame);
  const kernels::ConstValues keys = attention.k;
  attention.sequences = 1;
  for (const SequencePart& part : pass.batch.parts) {
    const int64_t row = part.sequence * pass.memory.tokens;
    attention.k = keys + row * attention.key_stride;
    attention.v = attention.k + width_;
    attention.tokens = part.rows;
    attention.lengths =
        pass.batch.lengths == nullptr ? nullptr : pass.batch.lengths + part.sequence;
    tools_.ops.Attention(attention);
    attention.q += part.rows * width_;
    attention.out += part.rows * width_;
  }
}

void CrossAttention::Output(const Pass& pass, const Frame& frame, const plan::RowPiece& piece,
                            kernels::Values branch) {
  const kernels::ConstValues x = frame.Values(Fields::kResult) + piece.first * width_;
  const kernels::Values y = branch + piece.first * options_.hidden;
  tools_.products.Forward(output_product_, {.x = output_adapters_.Input(pass, piece, x),
                                            .w = output_.In(tools_.parameters),
                                            .bias = nullptr,
                                            .y = y,
                                            .m = piece.count,
                                            .n = options_.hidden,
                                            .k = width_});
  output_adapters_.Forward(pass, pass, frame, piece, x, y);
}

void CrossAttention::BackwardBranch(const Pass& pass, const Frame& frame,
                                    kernels::ConstValues dbranch, GradientLanes& lanes) {
  const kernels::Values result = frame.Values(Fields::kResult);
  output_adapters_.BackwardOutput(pass, pass, frame, result, dbranch, lanes);
  BackwardWeight(pass.batch, pass, output_product_, output_, {}, dbranch,
                 output_adapters_.Input(pass, {0, pass.rows}, result), options_.hidden, width_,
                 tools_, lanes);
  tools_.products.BackwardInput(output_product_,
                                {.dy = dbranch,
                                 .w = output_.In(tools_.parameters),
                                 .dx = result_gradient_,
                                 .m = pass.rows,
                                 .n = options_.hidden,
                                 .k = width_},
                                0);
  output_adapters_.BackwardInput(pass, pass, {0, pass.rows}, result, result_gradient_, &lanes);
  const kernels::Values keys = frame.Values(Fields::kKeysAndValues);
  tools_.ops.AttentionBackward({.dout = result_gradient_,
                                .out = result,
                                .lse = frame.Floats(Fields::kLogSumExp),
                                .q = frame.Values(Fields::kQueries),
                                .k = keys,
                                .v = keys + width_,
                                .dq = query_gradient_,
                                .dk = keys_gradient_,
                                .dv = keys_gradient_ + width_,
                                .stride = width_,
                                .key_stride = 2 * width_,
                                .sequences = tools_.shape.sequences,
                                .tokens = pass.tokens,
                                .heads = heads_,
                                .head_dim = options_.head_dim,
                                .key_tokens = pass.memory.tokens,
                                .first_head = tools_.tensor.index() * heads_,
                                .causal = false,
                                .lengths = pass.batch.lengths,
                                .scale = options_.scale,
                                .dropout = DropoutOf(pass),
                                .scratch = scratch_});
  BackwardMemory(pass, frame, lanes);
}

void CrossAttention::BackwardMemory(const Pass& pass, const Frame& frame, GradientLanes& lanes) {
  const Memory& memory = pass.memory;
  const kernels::ConstValues x = tools_.tensor.GatherRows(memory, memory.values);
  keys_adapters_.BackwardOutput(pass, memory, frame, x, keys_gradient_, lanes);
  BackwardWeight(pass.batch, memory, keys_product_, keys_, {}, keys_gradient_, x, 2 * width_,
                 options_.hidden, tools_, lanes);
  tools_.products.BackwardInput(keys_product_,
                                {.dy = keys_gradient_,
                                 .w = keys_.In(tools_.parameters),
                                 .dx = memory_gradient_,
                                 .m = memory.rows,
                                 .n = 2 * width_,
                                 .k = options_.hidden},
                                0);
  keys_adapters_.BackwardInput(pass, memory, {0, memory.rows}, nullptr, memory_gradient_, nullptr);
  tools_.ops.Add(memory.gradient, tools_.tensor.SumRows(memory, memory_gradient_),
                 memory.local_rows * options_.hidden);
}

void CrossAttention::BackwardFirstWeight(const Pass& pass, const Frame& frame,
                                         kernels::ConstValues x, GradientLanes& lanes) {
  query_adapters_.BackwardOutput(pass, pass, frame, x, query_gradient_, lanes);
  BackwardWeight(pass.batch, pass, query_product_, query_, {}, query_gradient_, x, width_,
                 options_.hidden, tools_, lanes);
}

void CrossAttention::BackwardInput(const Pass& pass, const plan::RowPiece& piece,
                                   kernels::Values dx, bool accumulate) {
  const kernels::Values of_piece = dx + piece.first * options_.hidden;
  tools_.products.BackwardInput(query_product_,
                                {.dy = query_gradient_ + piece.first * width_,
                                 .w = query_.In(tools_.parameters),
                                 .dx = of_piece,
                                 .m = piece.count,
                                 .n = width_,
                                 .k = options_.hidden,
                                 .accumulate = accumulate},
                                piece.first);
  query_adapters_.BackwardInput(pass, pass, piece, nullptr, of_piece, nullptr);
}

}  // namespace tercio::blocks
