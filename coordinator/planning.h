// How the core plans: its settings of layouts and plans are those of plan/planner/.
#pragma once

#include "coordinator/core/core.h"

namespace tercio::coordinator {

// Sets make_plan and smaller_layout.
void UsePlanner(Settings* settings);

}  // namespace tercio::coordinator
