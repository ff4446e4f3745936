#include "plan/simulator/step_timeline.h"

#include <algorithm>

#include "plan/planner/cost/pipeline_time.h"

namespace tercio::plan::simulator {
namespace {

class TimelineMaker {
 public:
  explicit TimelineMaker(const cost::StepTiming& timing) : timing_(timing) {
    timeline_.shape = timing.shape;
    timeline_.stages.resize(static_cast<size_t>(timing.shape.stages));
  }

  StepTimeline Make() {
    std::vector<cost::PassSpan> passes;
    cost::PipelineWalk(timing_.shape).Play(timing_.pipeline, &passes);
    for (const cost::PassSpan& pass : passes) AddPass(pass);
    AddRest();
    for (const std::vector<TimelineSpan>& stage : timeline_.stages) {
      if (stage.empty()) continue;
      timeline_.seconds = std::max(timeline_.seconds, stage.back().begin + stage.back().seconds);
    }
    return std::move(timeline_);
  }

 private:
  // Appends to the stage's row what takes time.
  void Add(size_t stage, const TimelineSpan& span) {
    if (span.seconds > 0) timeline_.stages[stage].push_back(span);
  }

  double EndOf(size_t stage) const {
    const std::vector<TimelineSpan>& spans = timeline_.stages[stage];
    return spans.empty() ? 0 : spans.back().begin + spans.back().seconds;
  }

  void AddPass(const cost::PassSpan& pass) {
    const auto stage = static_cast<size_t>(pass.stage);
    const auto of_pass = [&](SpanKind kind, double begin, double seconds) {
      Add(stage, {.kind = kind,
                  .micro_batch = pass.micro_batch,
                  .chunk = pass.chunk,
                  .begin = begin,
                  .seconds = seconds});
    };
    using enum SpanKind;
    of_pass(pass.forward ? kWaitActivation : kWaitGradient, pass.free, pass.begin - pass.free);
    if (pass.forward) {
      of_pass(kForward, pass.begin, pass.seconds);
    } else {
      const auto place = static_cast<size_t>(pass.chunk * timing_.shape.stages + pass.stage);
      const double again = std::min(timing_.recompute[place], pass.seconds);
      of_pass(kRecompute, pass.begin, again);
      of_pass(kBackward, pass.begin + again, pass.seconds - again);
    }
    of_pass(pass.forward ? kSendActivation : kSendGradient, pass.begin + pass.seconds,
            pass.sending);
  }

  // What follows the passes: exchanges of each stage, then what all do together.
  void AddRest() {
    double end = 0;
    for (size_t stage = 0; stage < timeline_.stages.size(); ++stage) {
      const double passes = EndOf(stage);
      if (stage + 1 == timeline_.stages.size()) {
        Add(stage,
            {.kind = SpanKind::kHeadGradient, .begin = passes, .seconds = timing_.head_gradient});
      }
      // It runs beside the gradient of the head.
      const double begin = EndOf(stage);
      Add(stage, {.kind = SpanKind::kExchange,
                  .begin = begin,
                  .seconds = passes + timing_.exchange[stage] - begin});
      end = std::max(end, EndOf(stage));
    }
    if (timing_.tied_table > 0) {
      for (const size_t stage : {size_t{0}, timeline_.stages.size() - 1}) {
        Add(stage, {.kind = SpanKind::kTiedTable, .begin = end, .seconds = timing_.tied_table});
      }
      end += timing_.tied_table;
    }
    for (size_t stage = 0; stage < timeline_.stages.size(); ++stage) {
      Add(stage, {.kind = SpanKind::kOptimizer, .begin = end, .seconds = timing_.optimizer});
      Add(stage, {.kind = SpanKind::kOther,
                  .begin = end + timing_.optimizer,
                  .seconds = timing_.cost.other});
    }
  }

  const cost::StepTiming& timing_;
  StepTimeline timeline_;
};

}  // namespace

StepTimeline TimelineOfStep(const cost::StepTiming& timing) { return TimelineMaker(timing).Make(); }

}  // namespace tercio::plan::simulator
