// One rank of a training job: its slice of the model, and the step that its plan describes.
//
// The engine owns one arena of device memory (plan/memory_map.h), walks the plan's action list, and
// talks to other ranks only through the communicators it is given. It knows no processes, files or
// clocks but a monotonic one for its timings.
//
// Threads: one thread drives an engine. Abort of the communicators (from any thread) ends a running
// call with an error; the engine can then only be destroyed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/sample_source.h"
#include "proto/tercio/v1/checkpoint_service.pb.h"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/device/device.h"
#include "worker/engine/communicators.h"
#include "worker/engine/load_target.h"
#include "worker/engine/memory_use.h"
#include "worker/engine/replica_check.h"
#include "worker/engine/step_guard.h"
#include "worker/progress/whereabouts.h"

namespace tercio::engine {

struct StepResult {
  double loss = 0;       // mean over all tokens of the global batch, before the update
  double grad_norm = 0;  // before clipping, without the loss scale
  double learning_rate = 0;
  double communication_seconds = 0;  // this rank, waiting for other ranks
  double signal = 0;                 // the value that rank 0 gave to Step; the same on every rank
  bool skipped = false;              // the weights are unchanged
  bool rolls_back = false;           // the weights are unchanged, and the run is to go back
  std::string spike;                 // StepRecord.spike
  std::string reason;                // why the step is skipped or a spike
  double loss_scale = 0;             // scale of this step; 0 except in fp16
  std::optional<v1::ObjectiveFigures> figures;  // where the objective has them
};

// The state of a rank after a step, copied aside: row-major values of slices.
struct StateSnapshot {
  std::vector<absl::Span<const float>> saved;  // one for each of SavedSlices
  // One for each of NeededSlices where the job keeps copies of snapshots, else none.
  std::vector<absl::Span<const float>> needed;
};

// One thing that a rank did in a step; times in seconds of the monotonic clock.
struct TraceEvent {
  std::string name;
  int micro_batch = 0;
  int chunk = 0;
  double start = 0;
  double seconds = 0;
  bool communication = false;  // on the communication stream
};

// Learning rate of step k >= 1: linear warm-up to the peak, then, by schedule.kind:
//   constant               the peak
//   cosine, linear         down to the minimum at decay_steps
//   wsd                    the peak, then linear to the minimum over the last decay_fraction of
//                          decay_steps (Hu et al. 2024)
//   inverse_square_root    peak * sqrt(warmup / k), at least the minimum (Vaswani et al. 2017)
double LearningRate(const v1::TrainingSpec& training, int64_t step);

struct EngineOptions {
  // Fills the arena with the pattern of worker/engine/memory_use.h instead of zeros: for tests and
  // trials of the memory plan. Training gives the same bits, since it reads nothing that it has not
  // written.
  bool fill_pattern = false;
  // Whether weights are initialized from the seed; else all NeededSlices that no checkpoint may
  // lack are loaded before the first step.
  bool initialise_weights = true;
  // Called in Step before the state changes, once the step is known to be taken; an error ends the
  // step. May be empty.
  std::function<absl::Status()> before_update = {};
  std::string scratch_directory = "";  // for what the job offloads to disk (plan/offload.h)
  progress::Whereabouts* whereabouts = nullptr;  // where the engine reports its place; may be null
};

// The state that LoadTarget fills is all that the rank needs to resume.
class TrainingEngine : public LoadTarget {
 public:
  // Allocates the arena and, if `options` say so, initialises the weights from the seed; optimizer
  // moments are zero. `device`, communicators and `source` must outlive the engine.
  // RESOURCE_EXHAUSTED names the bytes.
  static absl::StatusOr<std::unique_ptr<TrainingEngine>> Create(
      const v1::JobSpec& spec, const v1::RankPlan& plan, device::Device& device,
      const Communicators& communicators, data::SampleSource& source, EngineOptions options = {});

  // Where preferences are compared with a reference (plan/preference.h): the model as it is now
  // becomes the reference of the steps after `after_step` and of evaluations. It computes the
  // log-probabilities of all answers that these read, and keeps the numbers only, so that weights
  // may be loaded afterwards. Collective: every rank calls it. Else nothing.
  virtual absl::Status MeasureReferences(int64_t /*after_step*/) { return absl::OkStatus(); }

  // One optimizer step. Steps are given in ascending order. `signal` is a value that rank 0 sends
  // to all ranks with this step (other ranks give 0): it travels with the losses, so it costs
  // nothing. If loss or gradients are not finite, or a spike, the weights may stay as they are: the
  // step is skipped, the run is to go back, or FAILED_PRECONDITION names where the numbers went bad
  // (worker/engine/step_guard.h).
  virtual absl::StatusOr<StepResult> Step(int64_t step, double signal) = 0;

  // Whether the next steps are traced, and the trace of the last one.
  virtual void SetTracing(bool on) = 0;
  virtual std::vector<TraceEvent> TakeTrace() = 0;

  // Mean loss over held-out samples, dropout off, and the confusion of a classifier (where
  // plan::ScoresClasses): over the first evaluate.batches global batches of validation samples (all
  // if there are fewer, or if batches is 0), or over all test samples. The step is left out.
  // REQUIRES: the source has such samples. Collective: every rank calls it, and learns the same.
  virtual absl::StatusOr<v1::Evaluation> Evaluate(data::HeldOut set) = 0;

  // Whether all replicas of the weights are equal (worker/engine/replica_check.h). Collective:
  // every rank calls it. Costs nothing if there are none.
  virtual absl::StatusOr<ReplicaVerdict> CheckReplicas() = 0;
  // The digest of the training state of all ranks (plan/state_digest.h): the same in every layout.
  // Collective: every rank calls it, and learns the same. Reads all of the state once.
  virtual absl::StatusOr<uint64_t> StateDigest() = 0;
  // Whether all ranks hold what they have loaded, as far as the last StateDigest has learned:
  // frozen weights that come from a run of another precision are rounded to the job's.
  virtual bool HoldsWhatItLoaded() const { return true; }
  // A drill: flips one bit of this rank's weights.
  virtual void FlipBit() = 0;

  // This rank's contribution to a checkpoint: slices of "<tensor>", "adamw.m.<tensor>",
  // "adamw.v.<tensor>", and the step guard's and FP8's tensors if the job has them. All ranks
  // together give every element of every tensor exactly once.
  virtual const std::vector<v1::TensorSlice>& SavedSlices() const = 0;

  // Copies those slices, or all of NeededSlices, to the snapshot buffer: the values stay unchanged
  // until the next Snapshot, while training continues. Where the job saves in place
  // (plan/snapshots.h) they are the state itself, which the next update changes.
  virtual absl::StatusOr<StateSnapshot> Snapshot() = 0;

  // The weights of the teacher that the job learns from (plan::HasTeacher), which are loaded before
  // the first step; null: there is none.
  virtual LoadTarget* teacher() { return nullptr; }

  // Bytes of the device's arena: by the plan, and, measured, in use (Arena::UsedBytes). Measuring
  // takes up to a millisecond for each GiB: not for every step.
  virtual int64_t planned_bytes() const = 0;
  virtual int64_t used_bytes() const = 0;
  // The use of each planned buffer, by the pattern. REQUIRES: EngineOptions::fill_pattern.
  virtual absl::StatusOr<std::vector<BufferUse>> HighWaterMarks() = 0;
};

}  // namespace tercio::engine
