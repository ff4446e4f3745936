// What a trainer has told its agent and the agent has not kept yet, numbered. While the agent is
// away it stays small: of what only the newest counts (figures of steps without a record, memory)
// the newest is kept; everything else must arrive. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "proto/tercio/v1/trainer.pb.h"

namespace tercio {

class Outbox {
 public:
  // The message with its number, valid until the next call.
  const v1::TrainerMessage& Add(v1::TrainerMessage message);
  // The agent has kept everything up to there.
  void Received(uint64_t sequence);
  // The oldest after `sequence`, null when there is none.
  const v1::TrainerMessage* After(uint64_t sequence) const;
  // Another agent must hear in which phase this rank is, also when the one before had heard it.
  void RepeatPhase();

  bool empty() const { return messages_.empty(); }
  size_t size() const { return messages_.size(); }

 private:
  uint64_t next_ = 1;
  std::map<uint64_t, v1::TrainerMessage> messages_;
  // The one of its kind that the next replaces; 0: none.
  uint64_t last_figures_ = 0;
  uint64_t last_memory_ = 0;
  v1::TrainerMessage last_phase_;
};

}  // namespace tercio
