// The bytes that a rank has sent, by kind of group. Threads: any.
#pragma once

#include "proto/tercio/v1/events.pb.h"
#include "worker/engine/training_engine.h"

namespace tercio::engine {

// REQUIRES: all communicators are there.
inline v1::CommunicationBytes SentBytes(const Communicators& communicators) {
  v1::CommunicationBytes bytes;
  bytes.set_tensor(communicators.tensor->sent_bytes());
  bytes.set_pipeline(communicators.pipeline->sent_bytes());
  bytes.set_data(communicators.data->sent_bytes());
  bytes.set_world(communicators.world->sent_bytes());
  return bytes;
}

}  // namespace tercio::engine
