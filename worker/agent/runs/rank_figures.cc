#include "worker/agent/runs/rank_figures.h"

#include <algorithm>
#include <utility>

#include "plan/data_position.h"

namespace tercio::agent {

void RankFigures::Adopt(const RunKey& key, int rank) { ranks_[key][rank].steps_unknown = true; }

int64_t RankFigures::Take(const RunKey& key, const RunState& run, int rank,
                          const v1::TrainerMessage& message, double now) {
  if (run.ranks.at(rank).life == RankState::Life::kEnded) return 0;
  Rank& known = ranks_[key][rank];
  const RankLabels labels = LabelsOf(key, run, rank);
  if (message.has_step()) {
    TakeStep(labels, run, message.step(), &known);
  } else if (message.has_last_figures()) {
    metrics_.Figures(labels, message.last_figures());
  } else if (message.has_memory()) {
    return TakeMemory(labels, message.memory(), &known);
  } else if (message.has_checkpoint()) {
    metrics_.Checkpoint(labels, message.checkpoint());
  } else if (message.has_phase()) {
    TakePhase(labels, run, message.phase().phase(), now, &known);
  }
  return 0;
}

void RankFigures::TakeStep(const RankLabels& labels, const RunState& run,
                           const v1::TrainerStep& step, Rank* rank) {
  // Trainers keep their version when their agent is upgraded; older ones report a record from rank
  // 0 only.
  if (RecordOf(step).step() == 0) {
    if (step.has_figures()) metrics_.Figures(labels, step.figures());
    return;
  }
  const v1::JobSpec& spec = run.start.spec();
  const bool unknown = std::exchange(rank->steps_unknown, false);
  const int64_t last_step = run.ranks.at(labels.rank).last_step;
  const int64_t steps = unknown ? 0 : std::max<int64_t>(0, RecordOf(step).step() - last_step);
  metrics_.Step(labels, step, steps,
                steps * spec.training().global_batch() * plan::TokensOfSequence(spec.model()));
}

int64_t RankFigures::TakeMemory(const RankLabels& labels, const v1::TrainerMemory& memory,
                                Rank* rank) {
  metrics_.Memory(labels, memory);
  const int64_t more = memory.log_lines_lost() - rank->log_lines_lost;
  if (more <= 0) return 0;
  rank->log_lines_lost += more;
  metrics_.LogLinesLost(labels, more);
  return more;
}

void RankFigures::TakePhase(const RankLabels& labels, const RunState& run, v1::TrainerPhase phase,
                            double now, Rank* rank) {
  if (phase == v1::TRAINER_PHASE_LOADING) {
    rank->loading_since = now;
  } else if (rank->loading_since > 0) {
    const bool memory = run.start.snapshot_sources().contains(labels.rank);
    metrics_.Loaded(labels, memory ? "memory" : "disk",
                    now - std::exchange(rank->loading_since, 0));
  }
}

void RankFigures::CountLostLines(const RunKey& key, const RunState& run, int rank, int64_t lines) {
  metrics_.LogLinesLost(LabelsOf(key, run, rank), lines);
}

void RankFigures::CountExit(const RunKey& key, const RunState& run, int rank, RankEnd end) {
  metrics_.Exited(LabelsOf(key, run, rank), end);
}

void RankFigures::AddTo(const RunKey& key, const RunState& run,
                        const std::map<int, double>& utilization, v1::RunHealth* health) {
  std::map<int, Rank>& ranks = ranks_[key];
  for (const auto& [index, rank] : run.ranks) {
    Rank& known = ranks[index];
    const int64_t step = rank.figures.step();
    if (rank.life != RankState::Life::kLive || step <= known.step_added) continue;
    known.step_added = step;
    if (const auto sample = utilization.find(index); sample != utilization.end()) {
      known.utilization_sum += sample->second;
      ++known.utilization_samples;
    }
    v1::RankFigures* figures = health->add_figures();
    *figures = rank.figures;
    if (const auto mean = MeanUtilization(known); mean.has_value()) {
      figures->set_device_utilization(*mean);
    }
  }
}

std::optional<double> RankFigures::Utilization(const RunKey& key, int rank) const {
  const auto run = ranks_.find(key);
  if (run == ranks_.end()) return std::nullopt;
  const auto known = run->second.find(rank);
  return known == run->second.end() ? std::nullopt : MeanUtilization(known->second);
}

std::optional<double> RankFigures::MeanUtilization(const Rank& rank) {
  if (rank.utilization_samples == 0) return std::nullopt;
  return rank.utilization_sum / rank.utilization_samples;
}

RankLabels RankFigures::LabelsOf(const RunKey& key, const RunState& run, int rank) {
  const v1::RankPlacement& place = run.ranks.at(rank).plan.placement();
  return {key.first,
          run.start.spec().name(),
          rank,
          place.tensor_index(),
          place.pipeline_index(),
          place.data_index(),
          place.device()};
}

}  // namespace tercio::agent
