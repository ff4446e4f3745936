// The parts of a trainer that depend on the kind of its device. Every trainer program is linked
// with one implementation of CreateBackend: cpu_backend.cc or cuda_backend.cc.
//
// Threads: the training thread. Communicators must not outlive the device, nor both the backend.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "proto/tercio/v1/trainer.pb.h"
#include "worker/collective/communicator.h"
#include "worker/collective/gloo_transport.h"
#include "worker/device/device.h"

namespace tercio::trainer {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual v1::DeviceKind kind() const = 0;

  // The device of this rank; called once, first. FAILED_PRECONDITION if the node has none.
  virtual absl::StatusOr<std::unique_ptr<device::Device>> OpenDevice() = 0;

  // This rank's part of a process group, for memory of its device; all ranks of the job join their
  // groups in the order of their plans. Waits for the others: DEADLINE_EXCEEDED | UNAVAILABLE if
  // one does not join. `rendezvous` is used during the call only; after OpenDevice. Null: the calls
  // of the group are to go through that of the same ranks (Communicators::sums).
  virtual absl::StatusOr<std::unique_ptr<collective::Communicator>> JoinGroup(
      const v1::ProcessGroup& group, collective::CommunicatorOptions options,
      collective::RendezvousStore& rendezvous) = 0;

  // Chooses the algorithms with which this rank multiplies matrices, before its first step: those
  // of the plan; for shapes that it lacks, one rank of the stage chooses and shares its choice with
  // the others. Returns the choices of this rank, for the plan. After OpenDevice.
  virtual absl::StatusOr<v1::ProductTable> ChooseProducts(
      collective::RendezvousStore& rendezvous) = 0;

  // What the rank's GPU computes in a slower way than was meant, so far; none without a GPU.
  virtual std::optional<v1::GpuFallbacks> Fallbacks() { return std::nullopt; }

  // Logs how much memory of the GPU is free at some point, beside what the plan leaves free;
  // without a GPU nothing.
  virtual void LogMemory(std::string_view /*when*/) {}
};

// The assignment must outlive it.
std::unique_ptr<Backend> CreateBackend(const v1::TrainerAssignment& assignment);

}  // namespace tercio::trainer
