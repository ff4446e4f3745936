// How a rank on a GPU gets the algorithms of its matrix products.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/cuda/product_algorithms.h"
#include "proto/tercio/v1/plan.pb.h"
#include "proto/tercio/v1/trainer.pb.h"
#include "worker/collective/gloo_transport.h"
#include "worker/device/device.h"

namespace tercio::trainer {

// Fills `algorithms` with those of the plan; for shapes that it lacks the first rank of the stage
// reads its node's file, times the rest, and puts all of them at the rendezvous for the others.
// Returns the choices of this rank. REQUIRES: `device` is one of CreateCudaDevice, and little else
// is in its memory: if there is no room for timing, nothing is chosen, and products use the first
// of the library's ranking.
absl::StatusOr<v1::ProductTable> ChooseProducts(const v1::TrainerAssignment& assignment,
                                                device::Device& device,
                                                collective::RendezvousStore& rendezvous,
                                                kernels::cuda::ProductAlgorithms* algorithms);

}  // namespace tercio::trainer
