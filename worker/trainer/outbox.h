// Numbered messages of a trainer that its agent has not kept yet. It stays small while the agent is
// away: of messages that only count when newest (steps of ranks other than 0, memory) the
// newest is kept; all others must arrive. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "proto/tercio/v1/trainer.pb.h"

namespace tercio::trainer {

class Outbox {
 public:
  // The message with its number, valid until the next call.
  const v1::TrainerMessage& Add(v1::TrainerMessage message);
  // The agent has kept all messages up to `sequence`.
  void Received(uint64_t sequence);
  // The oldest message after `sequence`, null if there is none.
  const v1::TrainerMessage* After(uint64_t sequence) const;
  // Queues the rank's present phase again: a new agent must receive it, even if the previous one
  // had.
  void RepeatPhase();

  bool empty() const { return messages_.empty(); }
  size_t size() const { return messages_.size(); }

 private:
  uint64_t next_ = 1;
  std::map<uint64_t, v1::TrainerMessage> messages_;
  // The message of its kind that the next replaces; 0: none.
  uint64_t last_figures_ = 0;
  uint64_t last_memory_ = 0;
  v1::TrainerMessage last_phase_;
};

}  // namespace tercio::trainer
