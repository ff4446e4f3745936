// A planned step in time (plan/simulator/step_timeline.h) as a figure, and as the traces of ranks
// that a measured step has. Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/plot/timeline.h"
#include "plan/simulator/step_timeline.h"
#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/plan.pb.h"

namespace tercio::cli {

// A row for each stage; passes by micro-batch, chunks as shades.
plot::Timeline TimelineFigure(const plan::simulator::StepTimeline& timeline,
                              const v1::Layout& layout, const std::string& cluster);

// The first rank of each stage, with the trainer's names of what it does.
std::vector<v1::RankTrace> TimelineTraces(const plan::simulator::StepTimeline& timeline,
                                          const v1::Layout& layout);

// A plan in which these ranks have their places, from which a trace takes their names.
v1::Plan PlacesOfRanks(const v1::Layout& layout);

}  // namespace tercio::cli
