#include "worker/blocks/embedding.h"

#include <cmath>

#include "absl/container/inlined_vector.h"
#include "common/check.h"
#include "kernels/random.h"

namespace tercio::blocks {
namespace {

// The nearest number of the format, as PyTorch rounds a factor before it multiplies with it.
// REQUIRES: neither subnormal nor too large.
float RoundedTo(float factor, kernels::Format format) {
  if (format == kernels::Format::kFloat32) return factor;
  const int bits = format == kernels::Format::kBfloat16 ? 8 : 11;
  int exponent = 0;
  const float mantissa = std::frexp(factor, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, bits)), exponent - bits);
}

}  // namespace

Embedding::Embedding(const model::EmbeddingOptions& options, const WeightFinder& weights,
                     const Tools& tools)
    : options_(options),
      tools_(tools),
      scale_(RoundedTo(options.scale, tools.shape.precision.format)),
      vocabulary_begin_(tools.tensor.index() * tools.shape.vocabulary),
      token_(weights.TokenTable()),
      position_(weights.Find("embedding.position.weight")),
      type_(weights.Find("embedding.type.weight")),
      norm_(options.norm.has_value()
                ? std::optional<NormLayer>(
                      NormLayer(*options.norm, options.hidden, weights, tools.parameters))
                : std::nullopt),
      all_rows_(tools.Scratch("branch")) {
  // The backward pass of a second stream would overwrite their gradients.
  const bool is_plain = !norm_.has_value() && position_.elements == 0 && type_.elements == 0;
  TERCIO_CHECK(tools.shape.streams.size() == 1 || is_plain);
}

kernels::Dropout Embedding::DropoutOf(const Pass& pass, int64_t first_row) const {
  // The streams differ in what is otherwise the layer.
  return tools_.dropout.At(pass, pass.stream, kernels::kSiteEmbedding, first_row);
}

void Embedding::Forward(const Pass& pass, const Kept& kept, kernels::Values out) {
  const kernels::Values sum = norm_.has_value() ? kept.sum : out;
  kernels::EmbeddingArgs lookup{};
  lookup.tokens = InputsOf(pass);
  lookup.weight = token_.In(tools_.parameters);
  lookup.out = tools_.tensor.divides_rows() ? all_rows_ : sum;
  lookup.count = pass.rows;
  lookup.columns = options_.hidden;
  lookup.scale = scale_;
  lookup.vocabulary_begin = vocabulary_begin_;
  lookup.vocabulary_rows = tools_.shape.vocabulary;
  tools_.ops.Embedding(lookup);
  const kernels::Values embedded = tools_.tensor.SumRows(pass, lookup.out);
  if (embedded != sum) tools_.ops.Copy(sum, embedded, pass.local_rows * options_.hidden);
  AddPositions(pass, sum);
  if (!norm_.has_value()) return;
  tools_.ops.LayerNorm(norm_->Args(pass, sum, out, kept.mean, kept.rstd));
  tools_.ops.PositionEmbedding({.x = out,
                                .weight = nullptr,
                                .rows = pass.local_rows,
                                .columns = options_.hidden,
                                .tokens = pass.tokens,
                                .first_row = pass.first_local_row,
                                .dropout = DropoutOf(pass, pass.first_local_row)});
}

void Embedding::AddPositions(const Pass& pass, kernels::Values sum) {
  kernels::PositionEmbeddingArgs position{};
  position.x = sum;
  position.weight = position_.In(tools_.parameters);
  if (position.weight != nullptr) position.weight += FirstPosition();
  position.rows = pass.local_rows;
  position.first_row = pass.first_local_row;
  position.columns = options_.hidden;
  position.tokens = pass.tokens;
  position.types = TypesAt(pass.batch, pass.first_local_row);
  position.type_weight = type_.In(tools_.parameters);
  position.positions = PositionsAt(pass.batch, pass.first_local_row);
  // With a norm, dropout follows it.
  if (!norm_.has_value()) position.dropout = DropoutOf(pass, position.first_row);
  // Known positions of rows need no parts.
  if (pass.batch.parts.empty() || position.positions != nullptr) {
    return tools_.ops.PositionEmbedding(position);
  }
  for (const SequencePart& part : pass.batch.parts) {
    position.rows = part.rows;
    position.first_row = part.first_position;
    tools_.ops.PositionEmbedding(position);
    position.x += part.rows * options_.hidden;
  }
}

void Embedding::BackwardPositions(const Pass& pass, kernels::Values flow, GradientLanes& lanes) {
  lanes.Accumulate(
      pass.batch.index, {position_, type_}, tools_.ops,
      [&](const plan::LaneSegment& segment, const Gradients& gradients) {
        const LocalRows part = LocalPart(pass, segment);
        if (part.count == 0) return;
        const int64_t first = pass.first_local_row + part.begin;
        kernels::Dropout dropout = DropoutOf(pass, first);
        // With a norm, dropout follows it, and its gradient has been taken before.
        if (norm_.has_value()) dropout.probability = 0;
        float* const table = position_.GradientIn(gradients);
        float* const dweight = table == nullptr ? nullptr : table + FirstPosition();
        tools_.ops.PositionEmbeddingBackward({.dx = flow + part.begin * options_.hidden,
                                              .dweight = dweight,
                                              .rows = part.count,
                                              .columns = options_.hidden,
                                              .tokens = pass.tokens,
                                              .first_row = first,
                                              .dropout = dropout,
                                              .types = TypesAt(pass.batch, first),
                                              .dtype_weight = type_.GradientIn(gradients),
                                              .positions = PositionsAt(pass.batch, first)});
      });
}

void Embedding::BackwardRows(const Pass& pass, const Kept& kept, kernels::Values flow,
                             GradientLanes& lanes) {
  if (norm_.has_value()) {
    tools_.ops.PositionEmbeddingBackward({.dx = flow,
                                          .dweight = nullptr,
                                          .rows = pass.local_rows,
                                          .columns = options_.hidden,
                                          .tokens = pass.tokens,
                                          .first_row = pass.first_local_row,
                                          .dropout = DropoutOf(pass, pass.first_local_row)});
    norm_->Backward(pass, flow, kept.sum, kept.mean, kept.rstd, flow, NormLayer::Change::kReplace,
                    tools_.ops, lanes);
  }
  BackwardPositions(pass, flow, lanes);
}

void Embedding::Backward(absl::Span<const Part> parts, const Kept& kept, GradientLanes& lanes) {
  absl::InlinedVector<kernels::ConstValues, 2> gradients_of;  // all rows of each stream
  for (size_t i = 0; i < parts.size(); ++i) {
    const Pass& pass = parts[i].pass;
    BackwardRows(pass, kept, parts[i].flow, lanes);
    if (!token_.has_gradient()) continue;
    kernels::ConstValues all = tools_.tensor.GatherRows(pass, parts[i].flow);
    // Gathered rows are valid until the next ones are.
    if (tools_.tensor.divides_rows() && i + 1 < parts.size()) {
      tools_.ops.Copy(all_rows_, all, pass.rows * options_.hidden);
      all = all_rows_;
    }
    gradients_of.push_back(all);
  }
  if (!token_.has_gradient()) return;
  const auto backward = [&](const Gradients& gradients, size_t part, int64_t first, int64_t count) {
    const Pass& pass = parts[part].pass;
    const int64_t row = first * pass.tokens;
    tools_.ops.EmbeddingBackward({.tokens = InputsOf(pass) + row,
                                  .dx = gradients_of[part] + row * options_.hidden,
                                  .dweight = token_.GradientIn(gradients),
                                  .count = count * pass.tokens,
                                  .columns = options_.hidden,
                                  .vocabulary_begin = vocabulary_begin_,
                                  .vocabulary_rows = tools_.shape.vocabulary,
                                  .scale = scale_});
  };
  lanes.Accumulate(parts.front().pass.batch.index, {token_}, tools_.ops,
                   [&](const plan::LaneSegment& segment, const Gradients& gradients) {
                     if (parts.size() == 1) {
                       return backward(gradients, 0, segment.first_sequence, segment.sequences);
                     }
                     // Sequence by sequence, so that the order does not depend on how many of them
                     // a micro-batch has.
                     for (int64_t i = 0; i < segment.sequences; ++i) {
                       for (size_t part = 0; part < parts.size(); ++part) {
                         backward(gradients, part, segment.first_sequence + i, 1);
                       }
                     }
                   });
}

}  // namespace tercio::blocks
