// Adapters of one base, in memory beside it. Each text of a batch chooses one of them, or none
// (TextOptions::adapter), and grows as with a model that has this adapter alone, to the bit.
//
// Owns the adapters' tensors, and the scratch of blocks::ChosenAdapter. Ranks, targets and kinds
// may differ.
//
// Threads: const methods from any; one pass of the model at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/weight_source.h"
#include "plan/stage_units.h"
#include "proto/tercio/v1/job.pb.h"
#include "worker/blocks/chosen_adapter.h"
#include "worker/device/device.h"

namespace tercio::inference {

class AdapterSet {
 public:
  // `adapted`: the base with each of the adapters; only what is an adapter's is read. `shape`: of
  // the base. Errors of the sources; RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<AdapterSet>> Load(
      absl::Span<const std::unique_ptr<checkpoint::WeightSource>> adapted,
      const plan::StageShape& shape, device::Device& device, int threads);

  // Memory that it takes. Pure.
  static int64_t PlanBytes(absl::Span<const v1::ModelSpec> adapted, const plan::StageShape& shape);

  size_t size() const { return adapters_.size(); }
  const blocks::ChosenAdapter& at(size_t i) const { return adapters_[i]; }

 private:
  AdapterSet() = default;

  std::vector<std::unique_ptr<device::DeviceMemory>> memory_;
  std::vector<blocks::ChosenAdapter> adapters_;
};

}  // namespace tercio::inference
