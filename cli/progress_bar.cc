#include "cli/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/format.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/watch_view.h"
#include "common/steady_time.h"

namespace tercio::cli {
namespace {

// A terminal is redrawn, while each line in a file stays.
constexpr absl::Duration kTerminalInterval = absl::Milliseconds(200);
constexpr absl::Duration kPlainInterval = absl::Seconds(5);
constexpr size_t kProgressColumns = 32;

}  // namespace

std::string ProgressText(int64_t first, int64_t done, int64_t total, double seconds,
                         const ProgressUnit& unit, ProgressStyle style) {
  // Nothing to do is done already.
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
  // Work that an earlier run has done says nothing about the speed of this one.
  const double rate = static_cast<double>(done - first) / std::max(1e-3, seconds);
  const auto number = [&](double value) {
    return unit.scale > 1 ? absl::StrFormat("%.1f", value / unit.scale)
                          : absl::StrFormat("%.0f", value);
  };
  std::string text;
  if (style == ProgressStyle::kBar) text = Bar(share, kProgressColumns, GlyphsOfLocale()) + " ";
  // Files may grow while they are read, so that the share is bounded.
  absl::StrAppendFormat(&text, "%5.1f%%", 100 * std::min(1.0, share));
  absl::StrAppend(&text, "  ", number(static_cast<double>(done)), " of ",
                  number(static_cast<double>(total)), " ", unit.name);
  absl::StrAppendFormat(&text, "  %.1f %s/s", rate / unit.scale, unit.name);
  // Without progress there is no estimate.
  if (rate > 0 && done < total) {
    absl::StrAppend(&text, "  ETA ", DurationText(static_cast<double>(total - done) / rate));
  }
  return text;
}

ProgressBar::ProgressBar(std::string what, ProgressUnit unit)
    : what_(std::move(what)),
      unit_(unit),
      terminal_(isatty(STDERR_FILENO) != 0 && CanDraw()),
      start_(SteadyNow()),
      // On a terminal the bar appears at once; a file is spared the lines of short work.
      last_(start_ - (terminal_ ? kTerminalInterval : absl::ZeroDuration())) {}

ProgressBar::~ProgressBar() {
  // The line is removed, so that what follows does not start behind it.
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::Show(int64_t done, int64_t total, const std::string& more) {
  MutexLock lock(mutex_);
  if (first_ < 0) first_ = done;
  const absl::Time now = SteadyNow();
  if (now - last_ < (terminal_ ? kTerminalInterval : kPlainInterval)) return;
  last_ = now;
  const ProgressStyle style = terminal_ ? ProgressStyle::kBar : ProgressStyle::kPlain;
  std::string text =
      ProgressText(first_, done, total, absl::ToDoubleSeconds(now - start_), unit_, style);
  if (!more.empty()) absl::StrAppend(&text, "  ", more);
  if (terminal_) {
    // A line that wraps could not be overwritten.
    const auto width = static_cast<size_t>(GetScreen().width);
    std::fprintf(stderr, "\r%s\x1b[K", Clip(text, width - 1).c_str());
    drawn_ = true;
  } else {
    std::fprintf(stderr, "%s: %s\n", what_.c_str(), text.c_str());
  }
}

}  // namespace tercio::cli
