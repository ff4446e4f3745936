#include "worker/trainer/outbox.h"

#include <algorithm>
#include <utility>

namespace tercio::trainer {

const v1::TrainerMessage& Outbox::Add(v1::TrainerMessage message) {
  if (message.has_phase()) last_phase_ = message;
  uint64_t* replaced = message.has_memory() ? &last_memory_ : &last_figures_;
  if (message.has_memory() || (message.has_step() && !message.step().has_record())) {
    // The number of the one that is dropped stays unused: the newest must come behind all others.
    messages_.erase(*replaced);
    *replaced = next_;
  }
  message.set_sequence(next_);
  return messages_.emplace(next_++, std::move(message)).first->second;
}

void Outbox::Received(uint64_t sequence) {
  // Messages arrive in order, so the newest number stands for those before it.
  messages_.erase(messages_.begin(), messages_.upper_bound(sequence));
}

const v1::TrainerMessage* Outbox::After(uint64_t sequence) const {
  const auto found = messages_.upper_bound(sequence);
  return found == messages_.end() ? nullptr : &found->second;
}

void Outbox::RepeatPhase() {
  // A phase that was not received yet is sent anyway.
  const bool waits = std::any_of(messages_.begin(), messages_.end(),
                                 [](const auto& entry) { return entry.second.has_phase(); });
  if (!waits && last_phase_.has_phase()) Add(last_phase_);
}

}  // namespace tercio::trainer
