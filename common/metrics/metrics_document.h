// docs/metrics.md, from the table of metrics.
#pragma once

#include <string>

namespace tercio {

std::string MetricsDocument();

}  // namespace tercio
