#include "worker/blocks/layer.h"

#include <algorithm>

namespace tercio::blocks {
namespace {

std::optional<NormLayer> MakeNorm(const std::optional<model::Norm>& norm,
                                  const WeightFinder& weights, const Tools& tools) {
  if (!norm.has_value()) return std::nullopt;
  return NormLayer(*norm, tools.shape.hidden, weights, tools.parameters);
}

bool HasGradients(const std::optional<model::Norm>& norm, const WeightFinder& weights) {
  return norm.has_value() && weights.FindsGradient(norm->name);
}

}  // namespace

Layer::Layer(const model::Layer& declared, const model::LayerDescription& description,
             const WeightFinder& weights, int model_layer, ProductId first, Input input,
             const Tools& tools)
    : tools_(tools),
      model_layer_(model_layer),
      branch_(tools.Scratch("branch")),
      branch_gradient_(tools.Scratch("branch_gradient")),
      norm_gradient_(tools.Scratch("norm_gradient")) {
  for (size_t i = 0; i < declared.sublayers.size(); ++i) {
    const model::Sublayer& options = declared.sublayers[i];
    Sublayer sublayer;
    sublayer.at = description.sublayers[i];
    sublayer.sum_norm = MakeNorm(options.sum_norm, weights, tools);
    for (size_t j = 0; j < options.branches.size(); ++j) {
      const model::Branch& branch = options.branches[j];
      const model::BranchPlaces& at = sublayer.at.branches[j];
      sublayer.branches.push_back(
          {MakeBlock(branch.block, weights.Under(branch.name), model_layer, declared.stream,
                     first + at.first_product, tools),
           MakeNorm(branch.norm, weights, tools), MakeNorm(branch.result_norm, weights, tools),
           branch.dropout_site, at,
           weights.FindsGradient(branch.name) || HasGradients(branch.result_norm, weights),
           HasGradients(branch.norm, weights)});
      if (branch.result_norm.has_value()) result_gradient_ = tools.Scratch("result_gradient");
    }
    if (options.branches.size() > 1) sum_gradient_ = tools.Scratch("sum_gradient");
    sublayers_.push_back(std::move(sublayer));
  }
  if (input == Input::kTakesGradient) return;
  // What the sum's norm reads needs a gradient of its weight only.
  const auto trains = [&](size_t i) {
    const std::vector<Branch>& branches = sublayers_[i].branches;
    return HasGradients(declared.sublayers[i].sum_norm, weights) ||
           std::any_of(branches.begin(), branches.end(), [](const Branch& branch) {
             return branch.has_gradients || branch.norm_has_gradients;
           });
  };
  while (backward_end_ + 1 < sublayers_.size() && !trains(backward_end_)) ++backward_end_;
  const std::vector<Branch>& last = sublayers_[backward_end_].branches;
  stops_at_branches_ = std::none_of(last.begin(), last.end(),
                                    [](const Branch& branch) { return branch.norm_has_gradients; });
}

kernels::LayerNormArgs Layer::NormOf(const Pass& pass, const Frame& frame, const Sublayer& sublayer,
                                     const Branch& branch) const {
  const model::NormFields& at = branch.at.norm;
  return branch.norm->Args(pass, frame.Values(sublayer.at.input), frame.Values(at.result),
                           frame.Floats(at.mean), frame.Floats(at.rstd));
}

Continuation Layer::EntryOf(const Pass& pass, const Frame& frame, size_t i) const {
  const Branch& first = sublayers_[i].branches.front();
  Continuation entry;
  if (first.norm.has_value()) entry.norm = NormOf(pass, frame, sublayers_[i], first);
  entry.reader = first.block->reader();
  return entry;
}

Continuation Layer::Entry(const Pass& pass, const Frame& frame) const {
  return EntryOf(pass, frame, 0);
}

kernels::ConstValues Layer::InputOf(const Frame& frame, const Sublayer& sublayer,
                                    const Branch& branch) const {
  const int norm = branch.at.norm.result;
  return frame.Values(norm >= 0 ? norm : sublayer.at.input);
}

void Layer::RunContinuation(kernels::Chain chain, const Continuation& next) {
  // A chain has room for one norm: that of the sum takes a call of its own.
  if (next.norm.has_value() && chain.norm.has_value()) {
    tools_.ops.RunChain(chain);
    chain = {};
  }
  if (next.norm.has_value()) chain.norm = next.norm;
  // A sum without a norm is read as it is, and rounded to 8 bits where it is multiplied.
  if (next.reader.has_value() && chain.norm.has_value()) {
    return tools_.products.MakeInput(*next.reader, chain);
  }
  tools_.ops.RunChain(chain);
}

void Layer::Compute(const Pass& pass, const Frame& frame, const Sublayer& sublayer, size_t index,
                    After after) {
  const Branch& branch = sublayer.branches[index];
  // The first branch's norm has been computed with the sum before it.
  if (index > 0 && branch.norm.has_value()) {
    tools_.products.MakeInput(branch.block->reader(),
                              {.norm = NormOf(pass, frame, sublayer, branch)});
  }
  branch.block->Forward(pass, frame.From(branch.at.first_field),
                        tools_.tensor.GatherRows(pass, InputOf(frame, sublayer, branch)), after);
}

kernels::ConstValues Layer::ResultOf(const Pass& pass, const Frame& frame, const Branch& branch) {
  const Frame fields = frame.From(branch.at.first_field);
  const kernels::Values sum = tools_.tensor.SumProduct(
      pass, branch_,
      [&](const plan::RowPiece& piece) { branch.block->Output(pass, fields, piece, branch_); });
  if (!branch.result_norm.has_value()) return sum;
  const kernels::Values kept = frame.Values(branch.at.result);
  tools_.ops.Copy(kept, sum, pass.local_rows * tools_.shape.hidden);
  tools_.ops.LayerNorm(branch.result_norm->Args(pass, kept, sum,
                                                frame.Floats(branch.at.result_norm.mean),
                                                frame.Floats(branch.at.result_norm.rstd)));
  return sum;
}

void Layer::ForwardSublayer(const Pass& pass, const Frame& frame, size_t index,
                            kernels::Values output, const Continuation& next) {
  const Sublayer& sublayer = sublayers_[index];
  const kernels::Values result =
      IsLast(index) ? output : frame.Values(sublayers_[index + 1].at.input);
  const kernels::Values sum = sublayer.sum_norm ? frame.Values(sublayer.at.sum) : result;
  kernels::ConstValues before = frame.Values(sublayer.at.input);
  for (size_t i = 0; i < sublayer.branches.size(); ++i) {
    const Branch& branch = sublayer.branches[i];
    Compute(pass, frame, sublayer, i, After::kOutput);
    kernels::Chain chain;
    chain.residual =
        kernels::ResidualArgs{.residual = before,
                              .branch = ResultOf(pass, frame, branch),
                              .bias = branch.block->output_bias().In(tools_.parameters),
                              .out = sum,
                              .rows = pass.local_rows,
                              .columns = tools_.shape.hidden};
    if (!branch.result_norm) {
      chain.residual->dropout =
          tools_.dropout.At(pass, model_layer_, branch.dropout_site, pass.first_local_row);
    }
    before = sum;
    if (i + 1 < sublayer.branches.size()) {
      tools_.ops.RunChain(chain);
      continue;
    }
    if (sublayer.sum_norm) {
      chain.norm =
          sublayer.sum_norm->Args(pass, sum, result, frame.Floats(sublayer.at.sum_norm.mean),
                                  frame.Floats(sublayer.at.sum_norm.rstd));
    }
    RunContinuation(chain, next);
  }
}

void Layer::Forward(const Pass& pass, const Frame& frame, kernels::Values output,
                    const Continuation& next) {
  for (size_t i = 0; i < sublayers_.size(); ++i) {
    ForwardSublayer(pass, frame, i, output, IsLast(i) ? next : EntryOf(pass, frame, i + 1));
  }
}

void Layer::Restore(const Pass& pass, const Frame& frame) {
  switch (tools_.shape.recompute) {
    case plan::Recompute::kNone:
      return;
    case plan::Recompute::kSelective:
      return RestoreCheap(pass, frame);
    case plan::Recompute::kFull:
      return RestoreAll(pass, frame);
  }
}

// All but the last product and what follows it, which is kept.
void Layer::RestoreAll(const Pass& pass, const Frame& frame) {
  const Continuation entry = Entry(pass, frame);
  if (entry.norm.has_value()) tools_.products.MakeInput(*entry.reader, {.norm = entry.norm});
  for (size_t i = 0; !IsLast(i); ++i) {
    ForwardSublayer(pass, frame, i, kernels::Values(), EntryOf(pass, frame, i + 1));
  }
  const Sublayer& last = sublayers_.back();
  for (size_t i = 0; i < last.branches.size(); ++i) {
    Compute(pass, frame, last, i, After::kBackward);
  }
}

void Layer::RestoreCheap(const Pass& pass, const Frame& frame) {
  for (size_t i = 0; i < sublayers_.size(); ++i) {
    const Sublayer& sublayer = sublayers_[i];
    for (const Branch& branch : sublayer.branches) {
      if (branch.norm) tools_.ops.LayerNorm(NormOf(pass, frame, sublayer, branch));
      branch.block->Restore(pass, frame.From(branch.at.first_field));
    }
    if (IsLast(i) || !sublayer.sum_norm) continue;
    tools_.ops.LayerNorm(sublayer.sum_norm->Args(
        pass, frame.Values(sublayer.at.sum), frame.Values(sublayers_[i + 1].at.input),
        frame.Floats(sublayer.at.sum_norm.mean), frame.Floats(sublayer.at.sum_norm.rstd)));
  }
}

void Layer::Backward(const Pass& pass, const Frame& frame, kernels::Values flow,
                     GradientLanes& lanes) {
  for (size_t i = sublayers_.size(); i-- > backward_end_;) {
    BackwardSublayer(pass, frame, i, flow, lanes);
  }
}

void Layer::BackwardSublayer(const Pass& pass, const Frame& frame, size_t index,
                             kernels::Values flow, GradientLanes& lanes) {
  const Sublayer& sublayer = sublayers_[index];
  if (sublayer.sum_norm) {
    sublayer.sum_norm->Backward(pass, flow, frame.Values(sublayer.at.sum),
                                frame.Floats(sublayer.at.sum_norm.mean),
                                frame.Floats(sublayer.at.sum_norm.rstd), flow,
                                NormLayer::Change::kReplace, tools_.ops, lanes);
  }
  kernels::ConstValues dsum = flow;
  if (sublayer.branches.size() > 1) {
    tools_.ops.Copy(sum_gradient_, flow, pass.local_rows * tools_.shape.hidden);
    dsum = sum_gradient_;
  }
  const bool stops = index == backward_end_ && stops_at_branches_;
  for (size_t i = sublayer.branches.size(); i-- > 0;) {
    if (stops && !sublayer.branches[i].has_gradients) continue;
    BackwardWeights(pass, frame, sublayer, sublayer.branches[i], dsum, lanes);
    if (!stops) BackwardInput(pass, frame, sublayer, i, flow, lanes);
  }
}

kernels::ConstValues Layer::BackwardSum(const Pass& pass, const Frame& frame, const Branch& branch,
                                        kernels::ConstValues dsum, GradientLanes& lanes) {
  if (branch.result_norm) {
    branch.result_norm->Backward(pass, dsum, frame.Values(branch.at.result),
                                 frame.Floats(branch.at.result_norm.mean),
                                 frame.Floats(branch.at.result_norm.rstd), result_gradient_,
                                 NormLayer::Change::kReplace, tools_.ops, lanes);
    return tools_.tensor.GatherRows(pass, result_gradient_);
  }
  const bool dropped = pass.batch.training && tools_.dropout.probability > 0;
  const WeightRef bias = branch.block->output_bias();
  lanes.Accumulate(pass.batch.index, {bias}, tools_.ops,
                   [&](const plan::LaneSegment& segment, const Gradients& gradients) {
                     const LocalRows part = LocalPart(pass, segment);
                     if (part.count == 0) return;
                     const int64_t at = part.begin * tools_.shape.hidden;
                     tools_.ops.ResidualBackward(
                         {.dout = dsum + at,
                          .dbranch = dropped ? branch_gradient_ + at : kernels::Values(),
                          .dbias = bias.GradientIn(gradients),
                          .rows = part.count,
                          .columns = tools_.shape.hidden,
                          .rows_per_leaf = pass.tokens,
                          .dropout = tools_.dropout.At(pass, model_layer_, branch.dropout_site,
                                                       pass.first_local_row + part.begin)});
                   });
  return tools_.tensor.GatherRows(pass, dropped ? kernels::ConstValues(branch_gradient_) : dsum);
}

void Layer::BackwardWeights(const Pass& pass, const Frame& frame, const Sublayer& sublayer,
                            const Branch& branch, kernels::ConstValues dsum, GradientLanes& lanes) {
  Block& block = *branch.block;
  block.BackwardBranch(pass, frame.From(branch.at.first_field),
                       BackwardSum(pass, frame, branch, dsum, lanes), lanes);
  block.BackwardFirstWeight(pass, frame.From(branch.at.first_field),
                            tools_.tensor.GatherRows(pass, InputOf(frame, sublayer, branch)),
                            lanes);
}

void Layer::BackwardInput(const Pass& pass, const Frame& frame, const Sublayer& sublayer,
                          size_t index, kernels::Values flow, GradientLanes& lanes) {
  const Branch& branch = sublayer.branches[index];
  Block& block = *branch.block;
  // Branches behind this one that read through the same norm have left their part.
  const bool adds = index + 1 < sublayer.branches.size() && !sublayer.branches[index + 1].norm;
  // A norm that several branches read through gets the sum of their gradients, from the first one.
  if (index > 0 && !branch.norm) {
    return block.BackwardInput(pass, {0, pass.rows}, norm_gradient_, adds);
  }
  const kernels::Values gradient = tools_.tensor.SumProduct(
      pass, norm_gradient_,
      [&](const plan::RowPiece& piece) { block.BackwardInput(pass, piece, norm_gradient_, adds); });
  if (!branch.norm) {
    return tools_.ops.Add(flow, gradient, pass.local_rows * tools_.shape.hidden);
  }
  branch.norm->Backward(pass, gradient, frame.Values(sublayer.at.input),
                        frame.Floats(branch.at.norm.mean), frame.Floats(branch.at.norm.rstd), flow,
                        NormLayer::Change::kAdd, tools_.ops, lanes);
}

}  // namespace tercio::blocks
