#include "worker/engine/stream_links.h"

namespace tercio::engine {

void StreamLinks::Receive(const blocks::MicroBatch& batch) {
  for (int stream = 0; stream < model_.streams(); ++stream) {
    const int buffer = BufferOf(batch.slot, stream);
    // What passes through is sent from where it arrives.
    if (model_.PassesThrough(batch, stream)) links_.WaitSend(PipelineLinks::kActivation, buffer);
    links_.Receive(PipelineLinks::kActivation, buffer, model_.Input(batch, stream).data(),
                   BytesOf(batch, stream), PreviousStage(plan_));
  }
}

void StreamLinks::Send(const blocks::MicroBatch& batch) {
  for (int stream = 0; stream < model_.streams(); ++stream) {
    links_.Send(PipelineLinks::kActivation, BufferOf(batch.slot, stream),
                model_.Output(batch, stream).data(), BytesOf(batch, stream), NextStage(plan_));
  }
}

void StreamLinks::Wait(int slot) {
  for (int stream = 0; stream < model_.streams(); ++stream) {
    links_.WaitReceive(PipelineLinks::kActivation, BufferOf(slot, stream));
    links_.WaitSend(PipelineLinks::kActivation, BufferOf(slot, stream));
  }
}

}  // namespace tercio::engine
