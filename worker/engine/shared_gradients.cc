#include "worker/engine/shared_gradients.h"

#include <algorithm>
#include <map>

#include "model/architecture.h"
#include "plan/stage_layers.h"

namespace tercio::engine {
namespace {

// Slots of activations have the numbers from 0 on.
constexpr int kBuffer = -1;

}  // namespace

SharedGradients::SharedGradients(const v1::JobSpec& job, const v1::RankPlan& plan,
                                 const plan::StageTensors& tensors, const plan::RankShards& shards,
                                 float* sums)
    : plan_(plan), sums_(sums) {
  std::map<int, int64_t> places;  // by the tensors' numbers
  for (const plan::LogicalTensor& tensor : plan::TensorsSharedByLayers(job)) {
    places[tensor.index] = elements_;
    elements_ += tensor.rows / plan.layout().tensor() * tensor.columns;
  }
  const auto& layers = plan.stage().layers();
  const plan::StageRuns runs = plan::RunsOfStage(model::LayersOf(job.model()), plan.layout(),
                                                 plan.placement().pipeline_index());
  for (size_t i = 0; i < tensors.tensors.size(); ++i) {
    const plan::StageTensor& entry = tensors.tensors[i];
    const auto place = places.find(entry.tensor.index);
    const plan::ShardPart& part = shards.own.part(i);
    if (place == places.end() || part.elements() == 0) continue;
    const auto layer = std::find(layers.begin(), layers.end(), entry.layer) - layers.begin();
    uses_.push_back({place->second + part.begin, part.sum_offset, part.elements(),
                     runs.ChunkOf(static_cast<int>(layer)), entry.own_parameter});
  }
}

void SharedGradients::Join(float* gradients, PipelineLinks& links, device::Stream& stream) const {
  if (elements_ == 0) return;
  const int chunks = std::max(1, plan_.layout().virtual_pipeline());
  for (int chunk = 0; chunk < chunks; ++chunk) AddChunk(chunk, gradients, links, stream);
  if (plan_.layout().pipeline() > 1) SpreadBack(links);
  for (const Use& use : uses_) {
    if (use.own_parameter)
      stream.ops().Copy(gradients + use.gradient, sums_ + use.sum, use.elements);
  }
}

void SharedGradients::AddChunk(int chunk, float* gradients, PipelineLinks& links,
                               device::Stream& stream) const {
  const int stages = plan_.layout().pipeline();
  const int stage = plan_.placement().pipeline_index();
  const int64_t bytes = elements_ * static_cast<int64_t>(sizeof(float));
  if (chunk == 0 && stage == 0) {
    stream.ops().Zero(sums_, elements_);
  } else if (stages > 1) {
    links.Receive(PipelineLinks::kActivation, kBuffer, sums_, bytes, PreviousStage(plan_));
    links.WaitReceive(PipelineLinks::kActivation, kBuffer);
  }
  for (const Use& use : uses_) {
    if (use.chunk != chunk) continue;
    stream.ops().Add(sums_ + use.sum, gradients + use.gradient, use.elements);
  }
  const int chunks = std::max(1, plan_.layout().virtual_pipeline());
  if (stages == 1 || (chunk + 1 == chunks && stage + 1 == stages)) return;
  links.Send(PipelineLinks::kActivation, kBuffer, sums_, bytes, NextStage(plan_));
  links.WaitSend(PipelineLinks::kActivation, kBuffer);
}

void SharedGradients::SpreadBack(PipelineLinks& links) const {
  const int stages = plan_.layout().pipeline();
  const int stage = plan_.placement().pipeline_index();
  const int64_t bytes = elements_ * static_cast<int64_t>(sizeof(float));
  if (stage + 1 < stages) {
    links.Receive(PipelineLinks::kGradient, kBuffer, sums_, bytes, NextStage(plan_));
    links.WaitReceive(PipelineLinks::kGradient, kBuffer);
  }
  if (stage == 0) return;
  links.Send(PipelineLinks::kGradient, kBuffer, sums_, bytes, PreviousStage(plan_));
  links.WaitSend(PipelineLinks::kGradient, kBuffer);
}

}  // namespace tercio::engine
