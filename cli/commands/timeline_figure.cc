#include "cli/commands/timeline_figure.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/plot/scale.h"
#include "plan/rank_layout.h"

namespace tercio::cli {
namespace {

using plan::simulator::SpanKind;
using plan::simulator::StepTimeline;
using plan::simulator::TimelineSpan;

struct DrawnKind {
  SpanKind kind;
  const char* name;
  int colour;
};
// Waits are left empty: they are what the others do not fill.
constexpr DrawnKind kDrawnKinds[] = {{SpanKind::kForward, "forward", 0},
                                     {SpanKind::kRecompute, "recomputation", 4},
                                     {SpanKind::kBackward, "backward", 2},
                                     {SpanKind::kSendActivation, "sending activations", 5},
                                     {SpanKind::kSendGradient, "sending gradients", 5},
                                     {SpanKind::kHeadGradient, "gradient of the head", 5},
                                     {SpanKind::kExchange, "exchange of data ranks, not hidden", 3},
                                     {SpanKind::kTiedTable, "gradient of the tied table", 1},
                                     {SpanKind::kOptimizer, "optimizer", 6},
                                     {SpanKind::kOther, "other", 7}};

std::string TimeOf(double seconds) {
  const plot::Unit unit = plot::SecondsUnit(seconds);
  return absl::StrCat(plot::ShortText(seconds / unit.divisor), " ", unit.name);
}

std::string TitleOf(const TimelineSpan& span, size_t stage, const char* name, bool has_chunks) {
  std::string title = absl::StrCat("stage ", stage);
  if (span.micro_batch >= 0) absl::StrAppend(&title, ", micro-batch ", span.micro_batch);
  if (span.micro_batch >= 0 && has_chunks) absl::StrAppend(&title, ", chunk ", span.chunk);
  absl::StrAppend(&title, ": ", name, ", ", TimeOf(span.seconds), " from ", TimeOf(span.begin));
  return title;
}

// As the trainer's (worker/engine/program_executor.cc); nullptr: it has none.
const char* TraceName(SpanKind kind) {
  switch (kind) {
    case SpanKind::kForward:
      return "forward";
    case SpanKind::kRecompute:
    case SpanKind::kBackward:
      return "backward";
    case SpanKind::kWaitActivation:
      return "wait activation";
    case SpanKind::kWaitGradient:
      return "wait gradient";
    case SpanKind::kSendActivation:
      return "send activation";
    case SpanKind::kSendGradient:
      return "send gradient";
    case SpanKind::kHeadGradient:
      return "head gradient";
    case SpanKind::kExchange:
    case SpanKind::kTiedTable:
      return "finish reduction";
    case SpanKind::kOptimizer:
      return "optimizer";
    case SpanKind::kOther:
      return nullptr;
  }
  return nullptr;
}

int FirstRankOf(const v1::Layout& layout, int stage) {
  return plan::RankOfCoordinates(layout, {.tensor = 0, .data = 0, .pipeline = stage});
}

}  // namespace

plot::Timeline TimelineFigure(const StepTimeline& timeline, const v1::Layout& layout,
                              const std::string& cluster) {
  plot::Timeline figure;
  const bool has_chunks = timeline.shape.chunks > 1;
  figure.title = absl::StrCat("One step: tensor ", layout.tensor(), " x pipeline ",
                              layout.pipeline(), " x data ", layout.data(), ", ",
                              layout.micro_batches(), " micro-batches of ", layout.micro_batch());
  figure.unit = absl::StrCat(TimeOf(timeline.seconds), " predicted on ", cluster);
  figure.label = absl::StrCat("Timeline of the stages. ", figure.title, ", ", figure.unit);
  figure.note = absl::StrCat(
      "A row is a stage: what each of its ranks does. Numbers, where there is room: micro-batches, "
      "from 0.",
      has_chunks ? " Paler: later chunks of the stage." : "", " Empty: the stage waits.");
  figure.shades = timeline.shape.chunks;
  figure.seconds = timeline.seconds;
  for (const DrawnKind& kind : kDrawnKinds) figure.kinds.push_back({kind.name, kind.colour});
  for (size_t stage = 0; stage < timeline.stages.size(); ++stage) {
    plot::TimelineRow row;
    row.name = absl::StrCat("stage ", stage);
    for (const TimelineSpan& span : timeline.stages[stage]) {
      const auto* kind =
          std::find_if(std::begin(kDrawnKinds), std::end(kDrawnKinds),
                       [&](const DrawnKind& each) { return each.kind == span.kind; });
      if (kind == std::end(kDrawnKinds)) continue;
      const bool numbered = span.kind == SpanKind::kForward || span.kind == SpanKind::kBackward;
      row.boxes.push_back({.kind = static_cast<size_t>(kind - std::begin(kDrawnKinds)),
                           .shade = span.chunk,
                           .begin = span.begin,
                           .seconds = span.seconds,
                           .text = numbered ? absl::StrCat(span.micro_batch) : "",
                           .title = TitleOf(span, stage, kind->name, has_chunks)});
    }
    figure.rows.push_back(std::move(row));
  }
  return figure;
}

std::vector<v1::RankTrace> TimelineTraces(const StepTimeline& timeline, const v1::Layout& layout) {
  std::vector<v1::RankTrace> traces;
  for (size_t stage = 0; stage < timeline.stages.size(); ++stage) {
    v1::RankTrace& trace = traces.emplace_back();
    trace.set_step(1);
    trace.set_rank(FirstRankOf(layout, static_cast<int>(stage)));
    double again = 0;  // recomputation that the next backward pass begins with
    for (const TimelineSpan& span : timeline.stages[stage]) {
      if (span.kind == SpanKind::kRecompute) again = span.seconds;
      const char* const name = TraceName(span.kind);
      if (name == nullptr || span.kind == SpanKind::kRecompute) continue;
      if (span.kind != SpanKind::kBackward) again = 0;
      v1::TraceEvent* event = trace.add_events();
      event->set_name(name);
      event->set_micro_batch(std::max(0, span.micro_batch));
      event->set_chunk(span.chunk);
      event->set_start_seconds(span.begin - again);
      event->set_seconds(span.seconds + again);
      again = 0;
    }
  }
  return traces;
}

v1::Plan PlacesOfRanks(const v1::Layout& layout) {
  v1::Plan plan;
  *plan.mutable_layout() = layout;
  const int last = FirstRankOf(layout, std::max(1, layout.pipeline()) - 1);
  for (int rank = 0; rank <= last; ++rank) {
    const plan::Coordinates place = plan::CoordinatesOfRank(layout, rank);
    v1::RankPlacement* placement = plan.add_ranks();
    placement->set_rank(rank);
    placement->set_tensor_index(place.tensor);
    placement->set_data_index(place.data);
    placement->set_pipeline_index(place.pipeline);
  }
  return plan;
}

}  // namespace tercio::cli
