// Point-to-point messages between the ranks of one process group: the one primitive on which all
// collectives are written (collective/communicator.h). Two implementations: ranks as threads in one
// process (thread_transport.h) and Gloo between processes (gloo_transport.h).
//
// Messages between a pair of ranks with equal tags arrive in order. Zero-byte messages are legal.
// Threads: Send and Receive may be called from several threads for different tags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tercio::collective {

// A message on its way. The buffer must stay valid until Wait returns (also with an error).
class Transfer {
 public:
  virtual ~Transfer() = default;
  // DEADLINE_EXCEEDED names peer and bytes; ABORTED after Abort; UNAVAILABLE if the peer is gone.
  virtual absl::Status Wait(absl::Duration timeout) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // REQUIRES: peer != rank(), 0 <= peer < size().
  virtual std::unique_ptr<Transfer> Send(const void* data, int64_t bytes, int peer,
                                         uint64_t tag) = 0;
  virtual std::unique_ptr<Transfer> Receive(void* data, int64_t bytes, int peer, uint64_t tag) = 0;
  // Wakes every waiter, now and later, with ABORTED. Any thread.
  virtual void Abort() = 0;
};

}  // namespace tercio::collective
