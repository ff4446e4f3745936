// A job on one screen, as `tercio watch` draws it: its progress, the loss, where the time went, its
// ranks as a grid, and what happened last. Pure.
#pragma once

#include <string>
#include <vector>

#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job_service.pb.h"

namespace tercio::cli {

struct Screen {
  int width = 80;  // columns and rows
  int height = 24;
  bool colour = false;
  bool unicode = true;  // blocks for bars and curves; else ASCII
};

struct WatchState {
  v1::JobStatus job;                 // with its ranks
  std::vector<double> losses;        // of steps in order, the newest last
  std::vector<v1::JobEvent> events;  // in order
  double now = 0;                    // seconds since 1970
};

// Lines of at most `width` columns, `height` of them at most, joined by '\n'. The first is
// ProgressLine; then a bar, the curve of the loss, goodput, the ranks (a row for each pipeline
// stage, a column for each data and tensor rank; one line for a stage where that does not fit), the
// last events, and the last words of the rank at fault.
std::string WatchView(const WatchState& state, const Screen& screen);

// Means of as many equal parts as there are columns, the lowest and the highest value at its ends.
// Values that are not finite are left out.
std::string Sparkline(const std::vector<double>& values, size_t columns, bool unicode);

// "[#####-----]" of so many columns.
std::string Bar(double share, size_t columns, bool unicode);

}  // namespace tercio::cli
