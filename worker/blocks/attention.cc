#include "worker/blocks/attention.h"

#include "absl/container/inlined_vector.h"
#include "kernels/random.h"
#include "worker/blocks/relative_buckets.h"

namespace tercio::blocks {

Attention::Attention(const model::AttentionOptions& options, const WeightFinder& weights, int layer,
                     int stream, ProductId first, const Tools& tools)
    : options_(options),
      at_(model::WidthsOf(options, tools.shape.tensor)),
      tools_(tools),
      layer_(layer),
      stream_(stream),
      qkv_product_(first + model::AttentionProducts::kQkv),
      output_product_(first + model::AttentionProducts::kOutput),
      qkv_(weights.Joined({"query.weight", "key.weight", "value.weight"})),
      qkv_bias_(weights.Joined({"query.bias", "key.bias", "value.bias"})),
      query_norm_(weights.Find("query_norm.weight")),
      key_norm_(weights.Find("key_norm.weight")),
      output_(weights.Find("output.weight")),
      output_bias_(weights.Find("output.bias")),
      relative_bias_(weights.Find("relative_bias.weight")),
      qkv_adapters_(options.adapters, qkv_product_, weights, layer, tools),
      output_adapters_(options.adapters, output_product_, weights, layer, tools),
      qkv_gradient_(tools.Scratch("wide_gradient")),
      result_gradient_(tools.Scratch("attention_gradient")),
      rotary_(tools.arena.Floats("workspace.rotary")),
      buckets_(tools.arena.Get<int32_t>("workspace.buckets") + FirstBucketOf(tools.shape, stream)),
      scratch_(tools.arena.Floats("workspace.attention")) {
  tools.products.SetWeight(qkv_product_, qkv_);
  tools.products.SetWeight(output_product_, output_);
}

// Queries and keys lie side by side: one call rotates both.
void Attention::Rotate(const Pass& pass, kernels::Values qkv, int64_t first_position, int64_t rows,
                       Rotation direction) {
  if (!options_.rotary.has_value()) return;
  tools_.ops.Rotary({.x = qkv,
                     .table = rotary_ + first_position * options_.rotary->width,
                     .rows = rows,
                     .tokens = pass.tokens,
                     .stride = at_.qkv(),
                     .heads = at_.heads + at_.key_heads,
                     .head_dim = at_.head_dim,
                     .rotary_dim = options_.rotary->width,
                     .interleaved = options_.rotary->interleaved,
                     .inverse = direction == Rotation::kBack,
                     .positions = pass.batch.positions});
}

kernels::Dropout Attention::DropoutOf(const Pass& pass) const {
  return tools_.dropout.At(pass, layer_, kernels::kSiteAttention, 0);
}

kernels::AttentionBias Attention::BiasOf(int64_t tokens) const {
  if (!options_.relative.has_value()) return {};
  // The table's middle is distance 0, for sequences of any length.
  return {.weight = relative_bias_.In(tools_.parameters),
          .bucket = buckets_ + tools_.shape.stream(stream_).tokens - tokens,
          .buckets = options_.relative->buckets};
}

kernels::AttentionArgs Attention::ArgsOf(kernels::Values qkv, kernels::Values out,
                                         float* lse) const {
  kernels::AttentionArgs args{};
  args.q = qkv;
  args.k = qkv + at_.queries;
  args.v = qkv + at_.queries + at_.keys;
  args.stride = at_.qkv();
  args.out = out;
  args.lse = lse;
  args.heads = at_.heads;
  args.head_dim = at_.head_dim;
  args.group = at_.heads / at_.key_heads;
  args.first_head = tools_.tensor.index() * at_.heads;
  args.causal = options_.causal;
  args.scale = options_.scale;
  args.softcap = options_.softcap;
  args.window = options_.window;
  args.scratch = scratch_;
  return args;
}

void Attention::Forward(const Pass& pass, const Frame& frame, kernels::ConstValues x, After) {
  const bool in_parts = !pass.batch.parts.empty();
  const kernels::Values qkv = in_parts ? qkv_gradient_ : frame.Values(Fields::kQkv);
  // Gradients of the norms need what they have read; rows of parts have none.
  const bool keeps_raw = options_.head_norm.has_value() && !in_parts;
  const kernels::Values raw = keeps_raw ? frame.Values(Fields::kRawQkv) : qkv;
  tools_.products.Forward(qkv_product_, {.x = x,
                                         .w = qkv_.In(tools_.parameters),
                                         .bias = qkv_bias_.In(tools_.parameters),
                                         .y = raw,
                                         .m = pass.rows,
                                         .n = at_.qkv(),
                                         .k = options_.hidden});
  qkv_adapters_.Forward(pass, pass, frame, {0, pass.rows}, x, raw);
  if (options_.head_norm.has_value()) NormHeads(pass, frame, raw, qkv);
  if (pass.batch.cache != nullptr) return AttendPages(pass, frame);
  if (in_parts) return AttendParts(pass, frame);
  Rotate(pass, qkv, 0, pass.rows, Rotation::kForward);
  kernels::AttentionArgs attention =
      ArgsOf(qkv, frame.Values(Fields::kResult), frame.Floats(Fields::kLogSumExp));
  attention.sequences = tools_.shape.sequences;
  attention.tokens = pass.tokens;
  if (!options_.causal) attention.lengths = pass.batch.lengths;
  attention.document_starts = pass.batch.document_starts;
  attention.bias = BiasOf(pass.tokens);
  attention.dropout = DropoutOf(pass);
  tools_.ops.Attention(attention);
}

void Attention::NormHeads(const Pass& pass, const Frame& frame, kernels::ConstValues raw,
                          kernels::Values qkv) {
  // Values stay as they are.
  if (raw != kernels::ConstValues(qkv)) tools_.ops.Copy(qkv, raw, pass.rows * at_.qkv());
  float* const rstd = frame.Floats(Fields::kHeadRstd);
  const auto norm = [&](int64_t first, WeightRef weight, float* at, int64_t heads) {
    tools_.ops.HeadNorm({.x = raw + first,
                         .weight = weight.In(tools_.parameters),
                         .y = qkv + first,
                         .rstd = at,
                         .rows = pass.rows,
                         .heads = heads,
                         .head_dim = at_.head_dim,
                         .stride = at_.qkv(),
                         .eps = options_.head_norm->eps});
  };
  norm(0, query_norm_, rstd, at_.heads);
  norm(at_.queries, key_norm_, rstd + pass.rows * at_.heads, at_.key_heads);
}

// Each tensor rank has the part of its heads, which are summed with the other gradients
// (model::Tensor::partial).
void Attention::BackwardHeadNorms(const Pass& pass, const Frame& frame, GradientLanes& lanes) {
  const float* const rstd = frame.Floats(Fields::kHeadRstd);
  const auto backward = [&](int64_t first, WeightRef weight, const float* at, int64_t heads) {
    lanes.Accumulate(pass.batch.index, {weight}, tools_.ops,
                     [&](const plan::LaneSegment& segment, const Gradients& gradients) {
                       const int64_t row = segment.first_sequence * pass.tokens;
                       const int64_t offset = row * at_.qkv() + first;
                       tools_.ops.HeadNormBackward({.dy = qkv_gradient_ + offset,
                                                    .x = frame.Values(Fields::kRawQkv) + offset,
                                                    .weight = weight.In(tools_.parameters),
                                                    .rstd = at + row * heads,
                                                    .dx = qkv_gradient_ + offset,
                                                    .dweight = weight.GradientIn(gradients),
                                                    .rows = segment.sequences * pass.tokens,
                                                    .heads = heads,
                                                    .head_dim = at_.head_dim,
                                                    .stride = at_.qkv(),
                                                    .rows_per_leaf = pass.tokens});
                     });
  };
  backward(0, query_norm_, rstd, at_.heads);
  backward(at_.queries, key_norm_, rstd + pass.rows * at_.heads, at_.key_heads);
}

void Attention::AttendParts(const Pass& pass, const Frame& frame) {
  const int64_t context = tools_.shape.stream(stream_).tokens;
  kernels::Values rows = qkv_gradient_;
  kernels::Values result = frame.Values(Fields::kResult);
  for (const SequencePart& part : pass.batch.parts) {
    Rotate(pass, rows, part.first_position, part.rows, Rotation::kForward);
    const int64_t first_row = part.sequence * context;
    const kernels::Values sequence = frame.Values(Fields::kQkv) + first_row * at_.qkv();
    tools_.ops.Copy(sequence + part.first_position * at_.qkv(), rows, part.rows * at_.qkv());
    // Attention writes a row where its sequence has it; the other buffers have only the parts'
    // rows.
    const kernels::Values out = result_gradient_ + first_row * at_.queries;
    kernels::AttentionArgs attention =
        ArgsOf(sequence, out, frame.Floats(Fields::kLogSumExp) + first_row * at_.heads);
    attention.sequences = 1;
    attention.tokens = part.first_position + part.rows;
    attention.first_query = part.first_position;
    attention.bias = BiasOf(attention.tokens);
    tools_.ops.Attention(attention);
    tools_.ops.Copy(result, out + part.first_position * at_.queries, part.rows * at_.queries);
    rows += part.rows * at_.qkv();
    result += part.rows * at_.queries;
  }
}

void Attention::AttendPages(const Pass& pass, const Frame& frame) {
  const KeyCache& cache = *pass.batch.cache;
  Rotate(pass, qkv_gradient_, 0, pass.rows, Rotation::kForward);
  absl::InlinedVector<kernels::PagedText, 64> texts;
  int64_t row = 0;
  for (const SequencePart& part : pass.batch.parts) {
    texts.push_back({row, part.rows, part.first_position, part.pages});
    row += part.rows;
  }
  const kernels::KeyPages pages = {.data = cache.data + layer_ * cache.pages * cache.page_elements,
                                   .page_elements = cache.page_elements,
                                   .page_tokens = cache.page_tokens,
                                   .texts = texts.data(),
                                   .count = static_cast<int64_t>(texts.size())};
  kernels::AttentionArgs attention =
      ArgsOf(qkv_gradient_, frame.Values(Fields::kResult), /*lse=*/nullptr);
  attention.sequences = 1;
  attention.tokens = tools_.shape.stream(stream_).tokens;
  attention.bias = BiasOf(attention.tokens);
  attention.pages = &pages;
  tools_.ops.Attention(attention);
}

void Attention::Output(const Pass& pass, const Frame& frame, const plan::RowPiece& piece,
                       kernels::Values branch) {
  const kernels::ConstValues x = frame.Values(Fields::kResult) + piece.first * at_.queries;
  const kernels::Values y = branch + piece.first * options_.hidden;
  tools_.products.Forward(output_product_, {.x = output_adapters_.Input(pass, piece, x),
                                            .w = output_.In(tools_.parameters),
                                            .bias = nullptr,
                                            .y = y,
                                            .m = piece.count,
                                            .n = options_.hidden,
                                            .k = at_.queries});
  output_adapters_.Forward(pass, pass, frame, piece, x, y);
}

void Attention::BackwardBranch(const Pass& pass, const Frame& frame, kernels::ConstValues dbranch,
                               GradientLanes& lanes) {
  const kernels::Values result = frame.Values(Fields::kResult);
  output_adapters_.BackwardOutput(pass, pass, frame, result, dbranch, lanes);
  BackwardWeight(pass.batch, pass, output_product_, output_, {}, dbranch,
                 output_adapters_.Input(pass, {0, pass.rows}, result), options_.hidden, at_.queries,
                 tools_, lanes);
  tools_.products.BackwardInput(output_product_,
                                {.dy = dbranch,
                                 .w = output_.In(tools_.parameters),
                                 .dx = result_gradient_,
                                 .m = pass.rows,
                                 .n = options_.hidden,
                                 .k = at_.queries},
                                0);
  output_adapters_.BackwardInput(pass, pass, {0, pass.rows}, result, result_gradient_, &lanes);
  if (!options_.relative.has_value()) {
    BackwardSequences(pass, frame, 0, tools_.shape.sequences, nullptr);
  } else {
    lanes.Accumulate(pass.batch.index, {relative_bias_}, tools_.ops,
                     [&](const plan::LaneSegment& segment, const Gradients& gradients) {
                       BackwardSequences(pass, frame, segment.first_sequence, segment.sequences,
                                         relative_bias_.GradientIn(gradients));
                     });
  }
  Rotate(pass, qkv_gradient_, 0, pass.rows, Rotation::kBack);
  if (options_.head_norm.has_value()) BackwardHeadNorms(pass, frame, lanes);
}

void Attention::BackwardSequences(const Pass& pass, const Frame& frame, int64_t first,
                                  int64_t count, float* dbias) {
  const int64_t row = first * pass.tokens;
  const kernels::Values qkv = frame.Values(Fields::kQkv) + row * at_.qkv();
  const kernels::Values dqkv = qkv_gradient_ + row * at_.qkv();
  kernels::Dropout dropout = DropoutOf(pass);
  dropout.first_sequence += first;
  tools_.ops.AttentionBackward(
      {.dout = result_gradient_ + row * at_.queries,
       .out = frame.Values(Fields::kResult) + row * at_.queries,
       .lse = frame.Floats(Fields::kLogSumExp) + row * at_.heads,
       .q = qkv,
       .k = qkv + at_.queries,
       .v = qkv + at_.queries + at_.keys,
       .dq = dqkv,
       .dk = dqkv + at_.queries,
       .dv = dqkv + at_.queries + at_.keys,
       .stride = at_.qkv(),
       .sequences = count,
       .tokens = pass.tokens,
       .heads = at_.heads,
       .head_dim = at_.head_dim,
       .group = at_.heads / at_.key_heads,
       .first_head = tools_.tensor.index() * at_.heads,
       .causal = options_.causal,
       .lengths =
           options_.causal || pass.batch.lengths == nullptr ? nullptr : pass.batch.lengths + first,
       .document_starts =
           pass.batch.document_starts == nullptr ? nullptr : pass.batch.document_starts + row,
       .scale = options_.scale,
       .softcap = options_.softcap,
       .window = options_.window,
       .bias = BiasOf(pass.tokens),
       .dbias = dbias,
       .dropout = dropout,
       .scratch = scratch_});
}

void Attention::BackwardFirstWeight(const Pass& pass, const Frame& frame, kernels::ConstValues x,
                                    GradientLanes& lanes) {
  qkv_adapters_.BackwardOutput(pass, pass, frame, x, qkv_gradient_, lanes);
  BackwardWeight(pass.batch, pass, qkv_product_, qkv_, qkv_bias_, qkv_gradient_, x, at_.qkv(),
                 options_.hidden, tools_, lanes);
}

void Attention::BackwardInput(const Pass& pass, const plan::RowPiece& piece, kernels::Values dx,
                              bool accumulate) {
  const kernels::Values of_piece = dx + piece.first * options_.hidden;
  tools_.products.BackwardInput(qkv_product_,
                                {.dy = qkv_gradient_ + piece.first * at_.qkv(),
                                 .w = qkv_.In(tools_.parameters),
                                 .dx = of_piece,
                                 .m = piece.count,
                                 .n = at_.qkv(),
                                 .k = options_.hidden,
                                 .accumulate = accumulate},
                                piece.first);
  qkv_adapters_.BackwardInput(pass, pass, piece, nullptr, of_piece, nullptr);
}

}  // namespace tercio::blocks
