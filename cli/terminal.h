// The terminal that a full view is drawn on: taken over, drawn on and given back as it was, also
// when the process ends by a signal or a crash. And what a terminal can show.
#pragma once

#include <string>

#include "cli/watch_view.h"

namespace tercio::cli {

// Colours are wanted: NO_COLOR is not set (https://no-color.org), TERM is not dumb.
bool WantsColour();
// The locale's characters are UTF-8.
bool ShowsUnicode();
// TERM says that the cursor can be moved.
bool CanDraw();

// One at a time. Draws on stderr.
class TerminalView {
 public:
  // Takes over the screen. `last_words` are written after it was given back on SIGINT and SIGTERM,
  // which end the process.
  explicit TerminalView(const std::string& last_words);
  ~TerminalView();
  TerminalView(const TerminalView&) = delete;
  TerminalView& operator=(const TerminalView&) = delete;

  // As it is now: windows change their size.
  Screen GetScreen() const;
  // Lines joined by '\n', no more and no longer than the screen takes.
  void Draw(const std::string& text);
};

}  // namespace tercio::cli
