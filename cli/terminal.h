// The terminal for a full view: taken over, drawn on and restored, also when the process ends by a
// signal or a crash. Also the capabilities of the terminal.
#pragma once

#include <string>

#include "cli/watch_view.h"

namespace tercio::cli {

// Colours are wanted: NO_COLOR is not set (https://no-color.org), TERM is not dumb.
bool WantsColour();
// Blocks where the locale's characters are UTF-8.
Glyphs GlyphsOfLocale();
// TERM is set to a terminal that can move the cursor.
bool CanDraw();

// From here on, SIGINT and SIGTERM restore the screen and end the process with 130 or 143. Verbs
// that have to clean up first block these signals or handle them themselves.
void EndAtInterrupts();

// During its lifetime, the text that EndAtInterrupts writes to stderr before the process ends, on a
// line of its own. One at a time; at most 255 bytes.
class LastWords {
 public:
  explicit LastWords(const std::string& words);
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;
};

// The current size of the terminal of stderr; windows can be resized.
Screen GetScreen();

// One at a time. Draws on stderr.
class TerminalView {
 public:
  // Takes over the screen.
  TerminalView();
  ~TerminalView();
  TerminalView(const TerminalView&) = delete;
  TerminalView& operator=(const TerminalView&) = delete;

  // Lines joined by '\n', at most as many and as long as the screen holds.
  void Draw(const std::string& text);
};

}  // namespace tercio::cli
