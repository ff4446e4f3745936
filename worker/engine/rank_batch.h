// A rank's part of one global batch: its samples, where its micro-batches lie, and the sums of its
// sequences in the exchange vector.
//
// Threads: that of the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "data/sample_source.h"
#include "plan/memory_map.h"
#include "plan/preference.h"
#include "proto/tercio/v1/job.pb.h"
#include "proto/tercio/v1/plan.pb.h"
#include "worker/blocks/micro_batch.h"
#include "worker/device/device.h"
#include "worker/engine/arena.h"
#include "worker/engine/communicators.h"
#include "worker/engine/exchange_vector.h"
#include "worker/engine/rank_samples.h"
#include "worker/engine/teacher_rows.h"

namespace tercio::engine {

class RankBatch {
 public:
  using Sum = ExchangeVector::Sum;

  // The arguments outlive it.
  RankBatch(const v1::JobSpec& spec, const v1::RankPlan& plan, const plan::StageShape& shape,
            Arena& arena, const Communicators& communicators, device::Stream& stream);

  // Reads the samples of the rank, each by its place in the global batch, if the stage needs them.
  void Read(absl::FunctionRef<void(int64_t sequence, data::Sample* out)> read);

  // Counts the tokens that the global batch predicts, where that is not fixed: the divisor of their
  // losses, which the first backward pass needs already. This borrows the first sum. Collective
  // over data ranks.
  absl::Status CountPredictions();

  // A micro-batch of a step, in a chunk of the stage and a slot of activations.
  blocks::MicroBatch At(int64_t step, int micro_batch, int chunk, int slot) const;

  // Where preferences are learnt: the log-probabilities by the reference, by the numbers of samples
  // (data/sample_source.h), which outlive the batch, and the divergence of the global batch that is
  // read.
  void SetReferences(const std::vector<double>* references) { references_ = references; }
  void SetDivergence(double divergence) {
    divergence_ = divergence;
    exchange_.SetDivergence(divergence);
  }

  // All sums become zero.
  void ClearSums();
  // Where the losses of the micro-batch's sequences are added.
  blocks::LossSums LossesAt(const blocks::MicroBatch& batch) const;
  // Sets a sum of each sequence of the rank.
  void SetSums(Sum sum, const std::vector<double>& numbers);
  // The sums are ready to be added over all ranks.
  void ContributeSums();
  // Makes the first `count` numbers of the exchange vector known.
  absl::Status Learn(int64_t count);

  // Whether the sums of the rank are those that count.
  bool gives_losses() const { return gives_losses_; }
  const RankSamples& samples() const { return samples_; }
  ExchangeVector& exchange() { return exchange_; }

  // Its data ranks count predictions together (CountPredictions).
  bool counts_predictions() const { return kind_.chooses_targets; }

 private:
  void KeepAnswer(size_t of_rank);
  // In the global batch.
  int64_t FirstSequenceOf(int micro_batch) const;

  const v1::RankPlan& plan_;
  const plan::StageShape& shape_;
  const RankSamples::Kind kind_;
  const Communicators& communicators_;
  device::Stream& stream_;
  // Every sum of a sequence has one contributor: the first tensor rank of the last stage that has
  // it.
  const bool gives_losses_;
  const bool distills_;
  RankSamples samples_;
  // Where a teacher's logits were stored, on ranks that have the head.
  std::optional<TeacherRows> teacher_;
  ExchangeVector exchange_;
  data::Sample sample_;
  std::vector<double> counts_;  // kept, so that a step allocates nothing
  int64_t predictions_ = 0;     // of the global batch
  // One for each sequence, where preferences are learnt.
  std::vector<plan::Answer> answers_;
  const std::vector<double>* references_ = nullptr;  // null: none are known
  double divergence_ = 0;
};

}  // namespace tercio::engine
