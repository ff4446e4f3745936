#include "worker/blocks/adapters.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/random.h"
#include "worker/blocks/chosen_adapter.h"

namespace tercio::blocks {
namespace {

// Masks are drawn for four neighbouring channels at a time, so that each rank begins with such
// four.
int64_t FirstChannel(const model::Product& product, const Tools& tools) {
  if (product.summed == model::Summed::kBackward) return 0;
  return tools.tensor.index() * ((product.inputs + 3) / 4 * 4);
}

// The rows of a piece that choose one adapter, counted from the piece's first. No adapter: the base
// alone.
struct Run {
  const ChosenAdapter* adapter = nullptr;
  int64_t first = 0;
  int64_t rows = 0;
};

// visit(run) for all rows of the piece, ascending.
template <typename Visit>
void ForRuns(const Pass& pass, const plan::RowPiece& piece, const Visit& visit) {
  Run run;
  int64_t row = 0;  // of the pass
  for (const SequencePart& part : pass.batch.parts) {
    const int64_t begin = std::max(row, piece.first);
    const int64_t end = std::min(row + part.rows, piece.first + piece.count);
    row += part.rows;
    if (begin >= end) continue;
    if (run.rows > 0 && run.adapter == part.adapter) {
      run.rows += end - begin;
      continue;
    }
    if (run.rows > 0) visit(run);
    run = {part.adapter, begin - piece.first, end - begin};
  }
  if (run.rows > 0) visit(run);
}

}  // namespace

Adapters::Adapters(const model::AdapterOptions& options, ProductId product,
                   const WeightFinder& weights, int layer, const Tools& tools)
    : options_(options),
      id_(product),
      product_(tools.products.DeclarationOf(product)),
      layer_(layer),
      tools_(tools),
      first_channel_(FirstChannel(product_, tools)) {
  int64_t kept = 0;
  for (const model::AdaptedPart& adapted : product_.adapted) {
    parts_.push_back({FindAdapterTensors(adapted, weights), kept, adapted.site});
    kept += IsLowRank() ? options_.rank : adapted.outputs;
  }
  if (parts_.empty()) return;
  if (IsLowRank()) gradient_ = tools.Scratch("adapter_gradient");
  if (ScalesInput() || options_.dropout > 0) input_ = tools.Scratch("adapter_input");
  if (!ScalesInput() && !(IsLowRank() && IsWhole(parts_.front()))) {
    output_ = tools.Scratch("adapter_output");
  }
}

kernels::Values Adapters::KeptOf(const PassRows& rows, const Frame& frame, const Part& part) const {
  return frame.Values(product_.adapted_field) + part.first_kept * rows.rows;
}

kernels::Values Adapters::GradientOf(const PassRows& rows, const Part& part) const {
  return gradient_ + part.first_kept * rows.rows;
}

kernels::Dropout Adapters::DropoutOf(const Pass& pass, const PassRows& rows, const Part& part,
                                     int64_t first_row) const {
  const DropoutSource source{options_.dropout, kernels::AdapterSeed(tools_.dropout.seed)};
  kernels::Dropout dropout = source.At(pass, layer_, part.site, first_row);
  dropout.tokens = rows.tokens;
  return dropout;
}

kernels::ConstValues Adapters::Dropped(const Pass& pass, const PassRows& rows, const Part& part,
                                       const plan::RowPiece& piece, kernels::ConstValues x) {
  if (!Drops(pass)) return x;
  tools_.ops.Columns({.from = x,
                      .from_stride = product_.inputs,
                      .to = input_,
                      .to_stride = product_.inputs,
                      .rows = piece.count,
                      .columns = product_.inputs,
                      .dropout = DropoutOf(pass, rows, part, piece.first),
                      .first_channel = first_channel_});
  return input_;
}

bool Adapters::ChangesOutput(const Pass& pass) const {
  if (!empty()) return !ScalesInput();
  return std::any_of(pass.batch.parts.begin(), pass.batch.parts.end(),
                     [this](const SequencePart& part) {
                       return part.adapter != nullptr && part.adapter->ChangesOutput(id_);
                     });
}

kernels::ConstValues Adapters::Input(const Pass& pass, const plan::RowPiece& piece,
                                     kernels::ConstValues x) {
  if (empty()) return pass.batch.parts.empty() ? x : ChosenInput(pass, piece, x);
  if (!ScalesInput()) return x;
  ScaleInput(x, parts_.front().factors.In(tools_.parameters), input_, piece.count, product_.inputs,
             tools_.ops);
  return input_;
}

void Adapters::Forward(const Pass& pass, const PassRows& rows, const Frame& frame,
                       const plan::RowPiece& piece, kernels::ConstValues x, kernels::Values y) {
  if (!ChangesOutput(pass)) return;
  if (empty()) return ForwardChosen(pass, piece, x, y);
  for (const Part& part : parts_) ForwardPart(pass, rows, frame, part, piece, x, y);
}

void Adapters::ForwardPart(const Pass& pass, const PassRows& rows, const Frame& frame,
                           const Part& part, const plan::RowPiece& piece, kernels::ConstValues x,
                           kernels::Values y) {
  if (!IsLowRank()) {
    return ScaleOutput({.y = y,
                        .factors = part.factors.In(tools_.parameters),
                        .kept = KeptOf(rows, frame, part) + piece.first * part.outputs,
                        .rows = piece.count,
                        .outputs = part.outputs,
                        .first = part.first_output,
                        .stride = product_.outputs},
                       tools_.ops);
  }
  AddLowRank({.x = Dropped(pass, rows, part, piece, x),
              .a = part.a.In(tools_.parameters),
              .b = part.b.In(tools_.parameters),
              .y = y,
              .kept = KeptOf(rows, frame, part) + piece.first * options_.rank,
              .output = output_,
              .rows = piece.count,
              .inputs = product_.inputs,
              .rank = options_.rank,
              .outputs = part.outputs,
              .first = part.first_output,
              .stride = product_.outputs,
              .scale = options_.scale},
             tools_.ops);
}

kernels::ConstValues Adapters::ChosenInput(const Pass& pass, const plan::RowPiece& piece,
                                           kernels::ConstValues x) const {
  kernels::Values scaled;  // null: all rows are multiplied as they are
  ForRuns(pass, piece, [&](const Run& run) {
    if (run.adapter != nullptr && run.adapter->ScalesInput(id_)) {
      scaled = run.adapter->scratch().input;
    }
  });
  if (scaled == nullptr) return x;
  const int64_t inputs = product_.inputs;
  ForRuns(pass, piece, [&](const Run& run) {
    const kernels::ConstValues from = x + run.first * inputs;
    const kernels::Values to = scaled + run.first * inputs;
    if (run.adapter != nullptr && run.adapter->ScalesInput(id_)) {
      return run.adapter->ScaleInput(id_, from, to, run.rows, tools_.ops);
    }
    tools_.ops.Copy(to, from, run.rows * inputs);
  });
  return scaled;
}

void Adapters::ForwardChosen(const Pass& pass, const plan::RowPiece& piece, kernels::ConstValues x,
                             kernels::Values y) const {
  ForRuns(pass, piece, [&](const Run& run) {
    if (run.adapter == nullptr || !run.adapter->ChangesOutput(id_)) return;
    run.adapter->ChangeOutput(id_, x + run.first * product_.inputs,
                              y + run.first * product_.outputs, run.rows, tools_.ops);
  });
}

void Adapters::BackwardOutput(const Pass& pass, const PassRows& rows, const Frame& frame,
                              kernels::ConstValues x, kernels::Values dy, GradientLanes& lanes) {
  if (ScalesInput()) return;
  for (const Part& part : parts_) {
    if (IsLowRank()) {
      BackwardLowRank(pass, rows, frame, part, x, dy, lanes);
    } else {
      BackwardScaledOutput(pass, rows, frame, part, dy, lanes);
    }
  }
}

void Adapters::BackwardOutput(const Pass& pass, const PassRows& rows, const Frame& frame,
                              kernels::ConstValues x, kernels::ConstValues dy,
                              GradientLanes& lanes) {
  TERCIO_CHECK(empty() || product_.summed == model::Summed::kForward);
  if (ScalesInput()) return;
  for (const Part& part : parts_) BackwardLowRank(pass, rows, frame, part, x, dy, lanes);
}

void Adapters::BackwardLowRank(const Pass& pass, const PassRows& rows, const Frame& frame,
                               const Part& part, kernels::ConstValues x, kernels::ConstValues dy,
                               GradientLanes& lanes) {
  const int64_t rank = options_.rank;
  const int64_t inputs = product_.inputs;
  kernels::ConstValues of_part = dy;
  if (!IsWhole(part)) {
    tools_.ops.Columns({.from = dy + part.first_output,
                        .from_stride = product_.outputs,
                        .to = output_,
                        .to_stride = part.outputs,
                        .rows = rows.rows,
                        .columns = part.outputs});
    of_part = output_;
  }
  const kernels::Values gradient = GradientOf(rows, part);
  tools_.ops.MatmulBackwardInput({.dy = of_part,
                                  .w = part.b.In(tools_.parameters),
                                  .dx = gradient,
                                  .m = rows.rows,
                                  .n = part.outputs,
                                  .k = rank});
  tools_.ops.Scale(gradient, options_.scale, rows.rows * rank);
  const kernels::ConstValues kept = KeptOf(rows, frame, part);
  const kernels::ConstValues input = Dropped(pass, rows, part, {0, rows.rows}, x);
  lanes.Assign(pass.batch.index, {part.a, part.b}, tools_.ops,
               [&](const plan::LaneSegment& segment, const Gradients& gradients, bool accumulate) {
                 const int64_t row = segment.first_sequence * rows.tokens;
                 const int64_t count = segment.sequences * rows.tokens;
                 tools_.ops.MatmulBackwardWeight({.dy = gradient + row * rank,
                                                  .x = input + row * inputs,
                                                  .dw = part.a.GradientIn(gradients),
                                                  .m = count,
                                                  .n = rank,
                                                  .k = inputs,
                                                  .rows_per_leaf = rows.tokens,
                                                  .accumulate = accumulate});
                 tools_.ops.MatmulBackwardWeight({.dy = of_part + row * part.outputs,
                                                  .x = kept + row * rank,
                                                  .dw = part.b.GradientIn(gradients),
                                                  .m = count,
                                                  .n = part.outputs,
                                                  .k = rank,
                                                  .rows_per_leaf = rows.tokens,
                                                  .accumulate = accumulate});
               });
}

void Adapters::SumFactors(const Pass& pass, const PassRows& rows, const WeightRef& factors,
                          kernels::ConstValues products, int64_t columns, GradientLanes& lanes) {
  lanes.Accumulate(pass.batch.index, {factors}, tools_.ops,
                   [&](const plan::LaneSegment& segment, const Gradients& gradients) {
                     const int64_t row = segment.first_sequence * rows.tokens;
                     kernels::ResidualBackwardArgs sums{};
                     sums.dout = products + row * columns;
                     sums.dbias = factors.GradientIn(gradients);
                     sums.rows = segment.sequences * rows.tokens;
                     sums.columns = columns;
                     sums.rows_per_leaf = rows.tokens;
                     tools_.ops.ResidualBackward(sums);
                   });
}

void Adapters::BackwardScaledOutput(const Pass& pass, const PassRows& rows, const Frame& frame,
                                    const Part& part, kernels::Values dy, GradientLanes& lanes) {
  const kernels::Values of_part = dy + part.first_output;
  tools_.ops.Columns({.from = of_part,
                      .from_stride = product_.outputs,
                      .to = output_,
                      .to_stride = part.outputs,
                      .rows = rows.rows,
                      .columns = part.outputs,
                      .times = KeptOf(rows, frame, part),
                      .times_stride = part.outputs});
  SumFactors(pass, rows, part.factors, output_, part.outputs, lanes);
  tools_.ops.Columns({.from = of_part,
                      .from_stride = product_.outputs,
                      .to = of_part,
                      .to_stride = product_.outputs,
                      .rows = rows.rows,
                      .columns = part.outputs,
                      .times = part.factors.In(tools_.parameters)});
}

void Adapters::BackwardScaledInput(const Pass& pass, const PassRows& rows, const Part& part,
                                   kernels::ConstValues x, kernels::Values dx,
                                   GradientLanes& lanes) {
  const int64_t inputs = product_.inputs;
  tools_.ops.Columns({.from = dx,
                      .from_stride = inputs,
                      .to = input_,
                      .to_stride = inputs,
                      .rows = rows.rows,
                      .columns = inputs,
                      .times = x,
                      .times_stride = inputs});
  SumFactors(pass, rows, part.factors, input_, inputs, lanes);
  tools_.ops.Columns({.from = dx,
                      .from_stride = inputs,
                      .to = dx,
                      .to_stride = inputs,
                      .rows = rows.rows,
                      .columns = inputs,
                      .times = part.factors.In(tools_.parameters)});
}

void Adapters::BackwardInput(const Pass& pass, const PassRows& rows, const plan::RowPiece& piece,
                             kernels::ConstValues x, kernels::Values dx, GradientLanes* lanes) {
  const int64_t inputs = product_.inputs;
  for (const Part& part : parts_) {
    if (ScalesInput()) {
      TERCIO_CHECK(lanes != nullptr && piece.count == rows.rows);
      BackwardScaledInput(pass, rows, part, x, dx, *lanes);
    }
    if (!IsLowRank()) continue;
    const bool drops = Drops(pass);
    tools_.ops.MatmulBackwardInput({.dy = GradientOf(rows, part) + piece.first * options_.rank,
                                    .w = part.a.In(tools_.parameters),
                                    .dx = drops ? input_ : dx,
                                    .m = piece.count,
                                    .n = options_.rank,
                                    .k = inputs,
                                    .accumulate = !drops});
    if (!drops) continue;
    tools_.ops.Columns({.from = input_,
                        .from_stride = inputs,
                        .to = dx,
                        .to_stride = inputs,
                        .rows = piece.count,
                        .columns = inputs,
                        .accumulate = true,
                        .dropout = DropoutOf(pass, rows, part, piece.first),
                        .first_channel = first_channel_});
  }
}

}  // namespace tercio::blocks
