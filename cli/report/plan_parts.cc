#include "cli/report/plan_parts.h"

namespace tercio::report {
namespace {

double Computing(const v1::RankFigures& figures) {
  return figures.phases().forward() + figures.phases().backward();
}

// The rank that computes longest, as the planner's parts are those of the busiest stage; nullptr:
// none has made a step, or they compute on GPUs.
const v1::RankFigures* BusiestRank(const JobData& job) {
  if (job.status.spec().resources().device() == v1::DEVICE_KIND_CUDA) return nullptr;
  const v1::RankFigures* busiest = nullptr;
  for (const v1::RankView& rank : job.status.ranks()) {
    if (!rank.has_figures() || rank.figures().steps() <= 0) continue;
    const v1::RankFigures& figures = rank.figures();
    const auto of_step = [](const v1::RankFigures& f) {
      return Computing(f) / static_cast<double>(f.steps());
    };
    if (busiest == nullptr || of_step(figures) > of_step(*busiest)) busiest = &figures;
  }
  return busiest;
}

}  // namespace

std::vector<PlanPart> PlanPartsOf(const JobData& job, const Numbers& numbers) {
  const v1::Prediction& told = job.status.plan().predicted();
  const bool has_parts = told.has_parts();
  const v1::StepParts& parts = told.parts();
  const auto predicted = [&](double seconds) {
    return has_parts ? std::optional<double>(seconds) : std::nullopt;
  };
  const v1::RankFigures* rank = BusiestRank(job);
  const auto measured = [&](double seconds) {
    return rank != nullptr ? std::optional<double>(seconds / static_cast<double>(rank->steps()))
                           : std::nullopt;
  };
  const v1::PhaseSeconds phases = rank != nullptr ? rank->phases() : v1::PhaseSeconds();
  // A prediction of 0 was not made.
  const auto made = [](double value) {
    return value > 0 ? std::optional<double>(value) : std::nullopt;
  };
  std::optional<double> step;
  if (numbers.step_seconds.has_value()) step = numbers.step_seconds->median;
  std::optional<double> memory;
  if (numbers.used_bytes_most.has_value()) memory = static_cast<double>(*numbers.used_bytes_most);
  return {
      {"compute", "computing", "s", predicted(parts.compute() + parts.recompute()),
       measured(phases.forward() + phases.backward())},
      {"wait", "waiting for other ranks", "s",
       predicted(parts.tensor_communication() + parts.pipeline_bubble() +
                 parts.pipeline_transfers() + parts.data_exposed()),
       measured(phases.wait())},
      {"optimizer", "optimizer", "s", predicted(parts.optimizer() + parts.offload()),
       measured(phases.optimizer())},
      {"other", "other", "s", predicted(parts.other()), measured(phases.data() + phases.other())},
      {"step", "step (measured: median)", "s", made(told.step_seconds()), step},
      {"tokens_per_second", "tokens per second", "tokens/s", made(told.tokens_per_second()),
       numbers.tokens_per_second},
      {"memory", "memory of the rank with the most", "bytes",
       made(static_cast<double>(told.memory_bytes_peak())), memory},
  };
}

Json PlanPartsJson(const std::vector<PlanPart>& parts) {
  Json json = Json::array();
  for (const PlanPart& part : parts) {
    json.push_back({{"part", part.key},
                    {"unit", part.unit},
                    {"predicted", part.predicted.has_value() ? Json(*part.predicted) : Json()},
                    {"measured", part.measured.has_value() ? Json(*part.measured) : Json()}});
  }
  return json;
}

}  // namespace tercio::report
