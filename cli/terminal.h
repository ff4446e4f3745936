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

// SIGINT and SIGTERM give the screen back and end the process with 130 or 143 from here on. Verbs
// that do something first block them, or take them themselves.
void EndAtInterrupts();

// While it lives, what EndAtInterrupts writes to stderr before the end, on a line of its own. One
// at a time; at most 255 bytes.
class LastWords {
 public:
  explicit LastWords(const std::string& words);
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;
};

// As it is now: windows change their size. Of stderr.
Screen GetScreen();

// One at a time. Draws on stderr.
class TerminalView {
 public:
  // Takes over the screen.
  TerminalView();
  ~TerminalView();
  TerminalView(const TerminalView&) = delete;
  TerminalView& operator=(const TerminalView&) = delete;

  // Lines joined by '\n', no more and no longer than the screen takes.
  void Draw(const std::string& text);
};

}  // namespace tercio::cli
