#include "cli/watch_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/format.h"
#include "cli/log_text.h"
#include "cli/text.h"

namespace tercio::cli {
namespace {

// More would push the ranks off a usual terminal.
constexpr size_t kMostEvents = 5;
constexpr size_t kMostLastLines = 6;
constexpr size_t kBarColumns = 40;
constexpr size_t kCurveColumns = 40;
// Shares of waiting time from which a rank is coloured.
constexpr double kSomeWait = 0.25;
constexpr double kMuchWait = 0.5;

enum class Style { kPlain, kBold, kDim, kGreen, kYellow, kRed };

std::string_view CodeOf(Style style) {
  switch (style) {
    case Style::kPlain:
      return "";
    case Style::kBold:
      return "\x1b[1m";
    case Style::kDim:
      return "\x1b[2m";
    case Style::kGreen:
      return "\x1b[32m";
    case Style::kYellow:
      return "\x1b[33m";
    case Style::kRed:
      return "\x1b[31m";
  }
  return "";
}

// Columns are counted instead of bytes: names may have wide characters.
std::string Pad(std::string text, size_t columns) {
  const size_t have = Columns(text);
  if (have < columns) text.append(columns - have, ' ');
  return text;
}

// A line under construction.
class Line {
 public:
  explicit Line(const Screen& screen)
      : colour_(screen.colour), left_(static_cast<size_t>(std::max(1, screen.width))) {}

  Line& Add(const std::string& text, Style style = Style::kPlain) {
    // Clipping by columns keeps the screen's lines whole;
    // colours are added after it, as they take no room.
    const std::string shown = Clip(text, left_);
    left_ -= Columns(shown);
    if (shown.empty()) return *this;
    const std::string_view code = colour_ ? CodeOf(style) : "";
    // Each part ends its own colour, so that a clipped line colours nothing after it.
    text_.append(code).append(shown).append(code.empty() ? "" : "\x1b[0m");
    return *this;
  }
  std::string Take() { return std::move(text_); }

 private:
  const bool colour_;
  size_t left_;
  std::string text_;
};

Style StyleOfWait(double share) {
  return share >= kMuchWait ? Style::kRed : share >= kSomeWait ? Style::kYellow : Style::kGreen;
}

double WaitShare(const v1::RankFigures& figures) {
  // Figures of a rank that has just started cover no time yet.
  return figures.elapsed_seconds() > 0 ? figures.phases().wait() / figures.elapsed_seconds() : 0;
}

// "48M", "1.2G"
std::string ShortSize(int64_t bytes) {
  const double size = static_cast<double>(bytes);
  // From ten on a digit after the point says nothing to a person who watches.
  if (bytes >= int64_t{10} << 30) return absl::StrFormat("%.0fG", size / (1 << 30));
  if (bytes >= int64_t{1} << 30) return absl::StrFormat("%.1fG", size / (1 << 30));
  return absl::StrFormat("%.0fM", size / (1 << 20));
}

class View {
 public:
  View(const WatchState& state, const Screen& screen) : state_(state), screen_(screen) {}

  std::string Draw() {
    Header();
    // The last words of a failed job are the reason to look, so their room is set aside first.
    const std::vector<std::string> words = LastWords();
    const std::vector<std::string> events = Events();
    // Ranks get the space that the last lines leave; events get the rest.
    const auto height = static_cast<size_t>(std::max(1, screen_.height));
    const size_t used = lines_.size() + words.size();
    Append(Ranks(height > used + 1 ? height - used - 1 : 0));
    const size_t left =
        height > lines_.size() + words.size() ? height - lines_.size() - words.size() : 0;
    // A title with one line is not worth its place.
    if (left >= 3) {
      const size_t shown = std::min(left, events.size());
      Append({events.end() - static_cast<ptrdiff_t>(shown), events.end()}, "last events");
    }
    Append(words);
    // A screen of a few lines cannot hold everything; the top says most.
    if (lines_.size() > height) lines_.resize(height);
    std::string text;
    for (const std::string& line : lines_) absl::StrAppend(&text, text.empty() ? "" : "\n", line);
    return text;
  }

 private:
  Line NewLine() const { return Line(screen_); }
  void Append(const std::vector<std::string>& more) {
    lines_.insert(lines_.end(), more.begin(), more.end());
  }
  // Adds a title, in place of the oldest line if not all fit.
  void Append(std::vector<std::string> more, const std::string& title) {
    if (more.empty()) return;
    const auto height = static_cast<size_t>(std::max(1, screen_.height));
    // Titles are part of the height.
    if (lines_.size() + more.size() + 1 > height) more.erase(more.begin());
    lines_.push_back(NewLine().Add(title, Style::kBold).Take());
    Append(more);
  }

  void Header() {
    const v1::JobStatus& job = state_.job;
    std::string progress = ProgressLine(job, state_.now);
    // Texts of jobs may contain control characters: they are shown as such.
    if (!job.error().empty()) absl::StrAppend(&progress, "  (", ForTerminal(job.error()), ")");
    const bool bad = job.state() == v1::JOB_STATE_FAILED;
    lines_.push_back(NewLine().Add(progress, bad ? Style::kRed : Style::kBold).Take());
    const double share =
        job.steps() > 0 ? static_cast<double>(job.step()) / static_cast<double>(job.steps()) : 0;
    lines_.push_back(NewLine()
                         .Add(Bar(share, kBarColumns, screen_.glyphs), Style::kGreen)
                         .Add(absl::StrCat("  ", ForTerminal(job.name()), "  ", job.id(),
                                           "  attempt ", job.attempt()))
                         .Take());
    Loss();
    Goodput();
    // An empty line separates what is about the job from what is about ranks.
    lines_.emplace_back();
  }

  void Loss() {
    Line line = NewLine();
    line.Add("loss     ");
    if (state_.losses.empty()) {
      lines_.push_back(line.Add("no step yet", Style::kDim).Take());
      return;
    }
    line.Add(Sparkline(state_.losses, kCurveColumns, screen_.glyphs), Style::kGreen)
        .Add(absl::StrFormat("  %.4f to %.4f in %d steps", state_.losses.front(),
                             state_.losses.back(), state_.losses.size()));
    lines_.push_back(line.Take());
  }

  void Goodput() {
    const v1::Goodput& goodput = state_.job.goodput();
    Line line = NewLine();
    line.Add("goodput  ");
    // Time in which the job was stopped is nobody's loss.
    const double all = goodput.total() - goodput.stopped();
    if (all <= 0) {
      lines_.push_back(line.Add("-", Style::kDim).Take());
      return;
    }
    line.Add(absl::StrFormat("%.1f%%", 100 * (goodput.productive() + goodput.degraded()) / all));
    line.Add(" of " + DurationText(all), Style::kDim);
    const std::pair<const char*, double> parts[] = {{"queued", goodput.queued()},
                                                    {"starting", goodput.starting()},
                                                    {"checkpoints", goodput.checkpoint_stall()},
                                                    {"restarting", goodput.restarting()},
                                                    {"lost work", goodput.lost_work()},
                                                    {"degraded", goodput.degraded()}};
    for (const auto& [name, seconds] : parts) {
      // Shares below a second would flicker.
      if (seconds >= 1) line.Add(absl::StrCat("  ", name, " ", DurationText(seconds)));
    }
    lines_.push_back(line.Take());
  }

  // Memory of the device if ranks have one of their own.
  int64_t MemoryOf(const v1::RankFigures& figures) const {
    return state_.job.spec().resources().device() == v1::DEVICE_KIND_CUDA
               ? figures.used_bytes()
               : figures.resident_bytes();
  }

  std::string Cell(const v1::RankView& rank) const {
    // A rank without figures keeps its place in the grid.
    if (!rank.has_figures()) return absl::StrCat("r", rank.rank(), " -");
    const v1::RankFigures& figures = rank.figures();
    return absl::StrFormat("r%d %d %s %.0f%%", rank.rank(), figures.step(),
                           ShortSize(MemoryOf(figures)), 100 * WaitShare(figures));
  }

  std::vector<std::string> Ranks(size_t most) const {
    if (most == 0) return {};
    if (state_.job.ranks().empty()) {
      return {NewLine().Add("no ranks yet", Style::kDim).Take()};
    }
    std::vector<std::string> grid = Grid();
    // A grid shows positions and neighbours; a summary shows the ends of a range.
    return !grid.empty() && grid.size() <= most ? grid : Stages(most);
  }

  // Empty if it is too wide.
  std::vector<std::string> Grid() const {
    using Column = std::pair<int, int>;  // data, tensor
    std::map<int, std::map<Column, const v1::RankView*>> stages;
    std::map<Column, std::string> columns;
    size_t width = 0;
    for (const v1::RankView& rank : state_.job.ranks()) {
      const Column column = {rank.data(), rank.tensor()};
      stages[rank.pipeline()][column] = &rank;
      columns[column] = absl::StrCat("data ", column.first, " tensor ", column.second);
      // All cells are equally wide, so that columns stand below each other.
      width = std::max({width, Columns(Cell(rank)), columns[column].size()});
    }
    const std::string last_stage = absl::StrCat("stage ", stages.rbegin()->first);
    const size_t label = last_stage.size() + 2;
    // The gap after the last column is not needed.
    if (label + columns.size() * (width + 2) - 2 > static_cast<size_t>(screen_.width)) return {};
    Line header = NewLine();
    header.Add(std::string(label, ' '));
    for (const auto& [column, name] : columns) header.Add(Pad(name, width + 2), Style::kDim);
    std::vector<std::string> lines = {header.Take()};
    for (const auto& [stage, ranks] : stages) {
      Line line = NewLine();
      line.Add(Pad(absl::StrCat("stage ", stage), label), Style::kDim);
      for (const auto& [column, rank] : ranks) {
        const Style style =
            rank->has_figures() ? StyleOfWait(WaitShare(rank->figures())) : Style::kDim;
        line.Add(Pad(Cell(*rank), width + 2), style);
      }
      lines.push_back(line.Take());
    }
    return lines;
  }

  struct StageSummary {
    int ranks = 0;
    int known = 0;
    int64_t first_step = 0, last_step = 0;
    int64_t least_memory = 0, most_memory = 0;
    double least_wait = 0, most_wait = 0;
    // The rank that waits least is the one all others wait for.
    int least_waiting = 0;  // the rank for which the others may wait

    void Add(const v1::RankView& rank, int64_t memory) {
      ++ranks;
      if (!rank.has_figures()) return;
      const double wait = WaitShare(rank.figures());
      const int64_t step = rank.figures().step();
      if (known++ == 0) {
        first_step = last_step = step;
        // The first rank gives both ends of each range.
        least_memory = most_memory = memory;
        least_wait = most_wait = wait;
        least_waiting = rank.rank();
      }
      first_step = std::min(first_step, step);
      last_step = std::max(last_step, step);
      least_memory = std::min(least_memory, memory);
      most_memory = std::max(most_memory, memory);
      most_wait = std::max(most_wait, wait);
      if (wait < least_wait) least_waiting = rank.rank();
      least_wait = std::min(least_wait, wait);
    }
  };

  std::vector<std::string> Stages(size_t most) const {
    std::map<int, StageSummary> stages;
    for (const v1::RankView& rank : state_.job.ranks()) {
      stages[rank.pipeline()].Add(rank, MemoryOf(rank.figures()));
    }
    std::vector<std::string> lines;
    for (const auto& [stage, summary] : stages) {
      // The last line counts what is left out, instead of a stage.
      if (lines.size() + 1 == most && stages.size() > most) {
        lines.push_back(NewLine()
                            .Add(absl::StrCat("and ", stages.size() - lines.size(), " more stages"),
                                 Style::kDim)
                            .Take());
        break;
      }
      Line line = NewLine();
      line.Add(absl::StrFormat("stage %-3d %4d ranks  ", stage, summary.ranks), Style::kDim);
      if (summary.known == 0) {
        line.Add("-", Style::kDim);
      } else {
        line.Add(absl::StrFormat("step %d to %d  %s to %s  ", summary.first_step, summary.last_step,
                                 ShortSize(summary.least_memory), ShortSize(summary.most_memory)))
            .Add(absl::StrFormat("wait %.0f%% to %.0f%%, least r%d", 100 * summary.least_wait,
                                 100 * summary.most_wait, summary.least_waiting),
                 StyleOfWait(summary.most_wait));
      }
      lines.push_back(line.Take());
    }
    return lines;
  }

  std::vector<std::string> Events() const {
    std::vector<std::string> lines;
    const size_t all = state_.events.size();
    // The newest events are the ones that matter, so the list is cut at its beginning.
    for (size_t i = all > kMostEvents ? all - kMostEvents : 0; i < all; ++i) {
      const v1::JobEvent& event = state_.events[i];
      const std::string time = TimeText(event.time());
      lines.push_back(NewLine()
                          // The time of day is enough while somebody watches.
                          .Add(time.size() > 19 ? time.substr(11, 8) : time, Style::kDim)
                          .Add("  " + event.kind(), Style::kBold)
                          .Add("  " + ForTerminal(event.message()))
                          .Take());
    }
    return lines;
  }

  std::vector<std::string> LastWords() const {
    const auto& words = state_.job.last_lines();
    if (words.empty()) return {};
    std::vector<std::string> lines = {NewLine()
                                          .Add(absl::StrCat("last output of rank ", words[0].rank(),
                                                            " (attempt ", words[0].attempt(), ")"),
                                               Style::kBold)
                                          .Take()};
    const auto all = static_cast<size_t>(words.size());
    // A quarter of the screen at most, or the ranks would disappear.
    const size_t most = std::min(kMostLastLines, static_cast<size_t>(screen_.height) / 4);
    for (size_t i = all > most ? all - most : 0; i < all; ++i) {
      lines.push_back(NewLine().Add(LogText(words[static_cast<int>(i)]), Style::kRed).Take());
    }
    return lines;
  }

  const WatchState& state_;
  const Screen& screen_;
  std::vector<std::string> lines_;
};

}  // namespace

std::string Sparkline(const std::vector<double>& values, size_t columns, Glyphs glyphs) {
  static const std::array<const char*, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static const std::array<const char*, 8> kAscii = {"_", ".", "-", "~", "=", "*", "^", "#"};
  std::vector<double> means;
  const size_t parts = std::min(columns, values.size());
  for (size_t part = 0; part < parts; ++part) {
    // Parts cover whole ranges of values, so that none is left out between two columns.
    double sum = 0;
    size_t count = 0;
    for (size_t i = part * values.size() / parts; i < (part + 1) * values.size() / parts; ++i) {
      // A loss that is not finite would make its whole part disappear.
      if (!std::isfinite(values[i])) continue;
      sum += values[i];
      ++count;
    }
    if (count > 0) means.push_back(sum / static_cast<double>(count));
  }
  if (means.empty()) return "";
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  std::string line;
  for (const double mean : means) {
    const double share = *high > *low ? (mean - *low) / (*high - *low) : 0;
    const auto level = std::min<size_t>(7, static_cast<size_t>(share * 8));
    line += glyphs == Glyphs::kBlocks ? kBlocks[level] : kAscii[level];
  }
  return line;
}

std::string Bar(double share, size_t columns, Glyphs glyphs) {
  const bool blocks = glyphs == Glyphs::kBlocks;
  const double bounded = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0;
  const size_t inside = columns > 2 ? columns - 2 : 0;
  const auto full = static_cast<size_t>(bounded * static_cast<double>(inside));
  std::string bar = "[";
  for (size_t i = 0; i < inside; ++i) {
    bar += i < full ? (blocks ? "█" : "#") : (blocks ? "░" : "-");
  }
  return bar + "]";
}

std::string WatchView(const WatchState& state, const Screen& screen) {
  return View(state, screen).Draw();
}

}  // namespace tercio::cli
