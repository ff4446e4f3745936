// The full view of `tercio watch`: a job's progress, its loss, the use of its time, its ranks as a
// grid, and the last events. Pure.
#pragma once

#include <string>
#include <vector>

#include "proto/tercio/v1/events.pb.h"
#include "proto/tercio/v1/job_service.pb.h"

namespace tercio::cli {

// What bars and curves are made of: blocks of Unicode, or ASCII.
enum class Glyphs { kBlocks, kAscii };

struct Screen {
  int width = 80;  // columns and rows
  int height = 24;
  bool colour = false;
  Glyphs glyphs = Glyphs::kBlocks;
};

struct WatchState {
  v1::JobStatus job;                 // with its ranks
  std::vector<double> losses;        // losses of steps in order, the newest last
  std::vector<v1::JobEvent> events;  // in order
  double now = 0;                    // seconds since 1970
};

// At most `height` lines of at most `width` columns, joined by '\n'. The first is ProgressLine;
// then a bar, the curve of the loss, goodput, the ranks (a row for each pipeline stage, a column
// for each data and tensor rank; one line for a stage if that does not fit), the last events, and
// the last lines of the rank at fault.
std::string WatchView(const WatchState& state, const Screen& screen);

// Bars for the means of at most `columns` equal parts, scaled from the lowest mean to the highest.
// Values that are not finite are left out.
std::string Sparkline(const std::vector<double>& values, size_t columns, Glyphs glyphs);

// "[#####-----]" of `columns` columns.
std::string Bar(double share, size_t columns, Glyphs glyphs);

}  // namespace tercio::cli
